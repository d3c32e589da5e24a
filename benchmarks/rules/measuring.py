"""One side's rules, measured in one process; and processes of their own for all sides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import measure, read_limit
from benchmarks.rules.contenders import SIDES, VARIANTS, gram_rules, models

Row = dict[str, Any]

EVERY = 101  # of a result's coordinates one in so many is kept, to be compared
BASE, LIMIT = "gram and mean", 1.3


def run(side: str, n: int, share: int, only: list[str], kept: Path | None) -> list[Row]:
    """Measure one side in this process; ``only`` some rules, if any are named. Results go to the file ``kept``."""
    xs, reference = models(n, share)
    limit = read_limit([a for x in xs for a in x.values()])
    model = sum(a.nbytes for a in xs[0].values())
    rows: list[Row] = []
    results: dict[str, np.ndarray] = {}
    timed = SIDES[side](xs, reference)
    on_gram = set(gram_rules(xs, reference)) if side == "pluribus" else set()
    for name, function in timed.items():
        if (only and name not in only and name != BASE) or (
            side == "pluribus" and not only and n > 20 and name in VARIANTS
        ):
            continue
        row: Row = {"side": side, "n": n, "rule": name, "share": share}
        rows.append(row)
        try:
            cost = measure(_Kept(function, name, results), runs=_runs(side, n, name in on_gram))
        except Exception as error:  # a peer that fails is a row that says so
            row["error"] = f"{type(error).__name__}: {error}"
            continue
        row |= {"cpu": cost.cpu, "wall": cost.wall, "extra_models": cost.extra / model, "limit": limit}
        if name in on_gram:
            row["gram"] = True
        tell(row)
    if on_gram and any(row["rule"] == BASE for row in rows):
        again(rows, timed)
    for row in rows:
        if "cpu" in row:
            row["ratio"] = row["cpu"] / limit
    if kept is not None:
        np.savez(kept, **results)
    return rows


class _Kept:
    """A function whose first result, of the run that only warms up, is kept in part."""

    def __init__(self, function: Callable[[], Any], name: str, results: dict[str, np.ndarray]) -> None:
        self.function, self.name, self.results = function, name, results

    def __call__(self) -> Any:
        value = self.function()
        if self.name not in self.results:
            self.results[self.name] = sample(value)
        return value


def _runs(side: str, n: int, gram: bool) -> int:
    """How many measured runs the best is taken of."""
    if side != "pluribus":
        return 1
    return (1 if gram else 2) if n > 20 else (2 if gram else 3)


def again(rows: list[Row], timed: dict[str, Any]) -> None:
    """Rules over the Gram matrix and the mean; what other jobs made too long, and what it is compared to, once more."""
    base = next(row for row in rows if row["rule"] == BASE)
    base["cpu"] = min(base["cpu"], measure(timed[BASE], runs=2).cpu)
    for row in (row for row in rows if row.get("gram") and "cpu" in row):
        if row["cpu"] > LIMIT * base["cpu"]:
            row["cpu"] = min(row["cpu"], measure(timed[row["rule"]], runs=2).cpu)
            tell(row)
        row["over_base"] = row["cpu"] / base["cpu"]


def tell(row: Row) -> None:
    """A line of progress."""
    print(
        f"{row['side']:9} n={row['n']:<3} {row['rule']:34} {row['cpu']:8.3f} CPU s {row['wall']:8.3f} s "
        f"{row['extra_models']:6.2f} models {row['cpu'] / row['limit']:8.1f} x the read limit ({row['limit']:.3f} s)",
        file=sys.stderr,
        flush=True,
    )


def sample(result: Any) -> np.ndarray:
    """Some coordinates of a result in float64, whoever made it."""
    value = getattr(result, "value", result)
    if value is None or (isinstance(value, np.ndarray) and value.ndim > 1):
        return np.empty(0)
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    arrays = list(value.values()) if isinstance(value, dict) else value
    whole = arrays if isinstance(arrays, np.ndarray) else np.concatenate([np.ravel(a) for a in arrays])
    return np.asarray(whole).ravel()[::EVERY].astype(np.float64)


def elsewhere(
    side: str, n: int, share: int, python: str, *, kernels: str = "", only: list[str] | None = None, kept: Path
) -> list[Row]:
    """Measure one side in a process of its own, so that no side pays for another's memory."""
    environment = os.environ | ({"PLURIBUS_KERNELS": kernels} if kernels else {})
    command = [python, "-m", "benchmarks.rules", "--inside", side, "--n", str(n), "--share", str(share)]
    command += ["--kept", str(kept), *(part for name in only or [] for part in ("--only", name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[2], check=False)
    if done.returncode:
        return [{"side": side, "n": n, "rule": "all", "share": share, "error": f"exit {done.returncode}"}]
    rows: list[Row] = json.loads(done.stdout)
    return [row | {"side": f"{side} ({kernels})" if kernels else side} for row in rows]


def compare(rows: list[Row], kept: Path, mine: Path) -> None:
    """Write into a peer's rows how far its results are from ours, over the largest number of ours."""
    if not (kept.exists() and mine.exists()):
        return
    with np.load(kept) as theirs, np.load(mine) as own:
        for row in rows:
            name = row["rule"].partition(" | ")[0]
            if row["rule"] in theirs and name in own and theirs[row["rule"]].size == own[name].size > 0:
                gap = np.abs(theirs[row["rule"]] - own[name]).max()
                row["difference"] = float(gap / np.abs(own[name]).max())
