"""Rules on the arrays of ResNet-50, beside numpy, flwr and byzfl, and beside the machine's read limit.

    python -m benchmarks.rules [--n 10 50] [--json FILE]
    python -m benchmarks.rules --python VENV/bin/python      # and the peers in a virtual environment of their own

Prints, for each rule: CPU seconds, wall seconds, peak memory above the inputs in models, and the CPU seconds over the
time in which this machine reads all inputs once, measured in the same run. Peers are measured on the same arrays, in a
process of their own where they live in another environment; none of their code is here.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import Cost, measure, read_limit
from benchmarks.shapes import resnet50

Models = list[dict[str, np.ndarray]]


def models(n: int, seed: int = 0) -> Models:
    """n models of float32 noise with ResNet-50's shapes."""
    rng = np.random.default_rng(seed)
    return [
        {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in resnet50().items()} for _ in range(n)
    ]


def ours(xs: Models) -> dict[str, Callable[[], object]]:
    """Our rules, f = n / 5."""
    from pluribus import rules

    n, f = len(xs), len(xs) // 5
    weights = np.arange(1, n + 1)
    return {
        "mean": lambda: rules.Mean()(xs),
        "mean, weighted": lambda: rules.Mean()(xs, weights),
        "median": lambda: rules.Median()(xs),
        "trimmed mean": lambda: rules.TrimmedMean(f)(xs),
        "krum": lambda: rules.Krum(f)(xs),
        "geometric median": lambda: rules.GeometricMedian()(xs),
        "nnm + geometric median": lambda: rules.chain(rules.NNM(f), rules.GeometricMedian())(xs),
    }


def with_numpy(xs: Models) -> dict[str, Callable[[], object]]:
    """What one writes in numpy."""
    return {
        "mean": lambda: {k: np.mean([x[k] for x in xs], axis=0) for k in xs[0]},
        "median": lambda: {k: np.median([x[k] for x in xs], axis=0) for k in xs[0]},
    }


def with_flwr(xs: Models) -> dict[str, Callable[[], object]]:
    """flwr's aggregate functions on lists of arrays."""
    from flwr.server.strategy import aggregate as peer

    n, f = len(xs), len(xs) // 5
    results = [(list(x.values()), 1) for x in xs]
    return {
        "mean": lambda: peer.aggregate(results),
        "median": lambda: peer.aggregate_median(results),
        "trimmed mean": lambda: peer.aggregate_trimmed_avg(results, f / n),
        "krum": lambda: peer.aggregate_krum(results, f, 0),
    }


def with_byzfl(xs: Models) -> dict[str, Callable[[], object]]:
    """byzfl's aggregators on a matrix that is already stacked (the stacking is not counted)."""
    import byzfl

    f = len(xs) // 5
    matrix = np.stack([np.concatenate([a.ravel() for a in x.values()]) for x in xs])
    return {
        "mean": lambda: byzfl.Average()(matrix),
        "median": lambda: byzfl.Median()(matrix),
        "trimmed mean": lambda: byzfl.TrMean(f=f)(matrix),
        "krum": lambda: byzfl.Krum(f=f)(matrix),
        "geometric median": lambda: byzfl.GeometricMedian()(matrix),
        "nnm + geometric median": lambda: byzfl.GeometricMedian()(byzfl.NNM(f=f)(matrix)),
    }


SIDES: dict[str, Callable[[Models], dict[str, Callable[[], object]]]] = {
    "pluribus": ours,
    "numpy": with_numpy,
    "flwr": with_flwr,
    "byzfl": with_byzfl,
}


def run(side: str, n: int, share: int) -> list[dict[str, Any]]:
    """Measure one side in this process."""
    xs = models(n)
    if share > 1:  # a part of every array, for peers that would take too long or too much memory
        xs = [{k: np.ascontiguousarray(a.ravel()[: max(1, a.size // share)]) for k, a in x.items()} for x in xs]
    arrays = [a for x in xs for a in x.values()]
    limit = read_limit(arrays)
    model = sum(a.nbytes for a in xs[0].values())
    rows = []
    for name, function in SIDES[side](xs).items():
        try:
            cost: Cost = measure(function, runs=3 if side == "pluribus" else 1)
        except Exception as error:  # a peer that fails is a row that says so
            rows.append({"side": side, "n": n, "rule": name, "error": f"{type(error).__name__}: {error}"})
            continue
        row = {
            "side": side, "n": n, "rule": name, "share": share, "cpu": cost.cpu, "wall": cost.wall,
            "ratio": cost.cpu / limit, "extra_models": cost.extra / model, "limit": limit,
        }  # fmt: skip
        rows.append(row)
        print(
            f"{side:9} n={n:<3} {name:24} {cost.cpu:8.3f} CPU s {cost.wall:8.3f} s "
            f"{cost.extra / model:6.2f} models {cost.cpu / limit:8.1f} x the read limit ({limit:.3f} s)",
            file=sys.stderr,
            flush=True,
        )
    return rows


def elsewhere(side: str, n: int, share: int, python: str, kernels: str | None) -> list[dict[str, Any]]:
    """Measure one side in a process of its own, so that no side pays for another's memory."""
    environment = os.environ | ({"PLURIBUS_KERNELS": kernels} if kernels else {})
    command = [python, "-m", "benchmarks.rules", "--inside", side, "--n", str(n), "--share", str(share)]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, cwd=Path(__file__).parents[1], check=False)
    if done.returncode:
        return [{"side": side, "n": n, "rule": "all", "error": f"exit {done.returncode} (not installed?)"}]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return [row | {"side": f"{side} ({kernels})" if kernels else side} for row in rows]


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| | n | rule | CPU s | wall s | extra models | x read limit |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        if "error" in r:
            lines.append(f"| {r['side']} | {r['n']} | {r['rule']} | {r['error']} | | | |")
        else:
            part = "" if r["share"] == 1 else f" (1/{r['share']} of it)"
            lines.append(
                f"| {r['side']} | {r['n']} | {r['rule']}{part} | {r['cpu']:.3f} | {r['wall']:.3f} "
                f"| {r['extra_models']:.2f} | {r['ratio']:.1f} |"
            )
    return "\n".join(lines)


TARGETS = {  # CPU seconds over the read limit at n = 10, compiled and plain; None: no target
    "mean": (3.0, None),
    "median": (4.0, 9.0),
    "trimmed mean": (4.0, 9.0),
    "krum": (14.0, 14.0),
}


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """What was to be reached, and whether it was; ours against every peer in this run."""
    told = []
    for row in rows:
        if "error" in row or not row["side"].startswith("pluribus"):
            continue
        compiled = "compiled" in row["side"]
        target = TARGETS.get(row["rule"], (None, None))[0 if compiled else 1]
        if row["n"] == 10 and target is not None:
            reached = "reached" if row["ratio"] <= target else "NOT reached"
            told.append(f"{row['side']} {row['rule']}: {row['ratio']:.1f} x the read limit, {reached} (<= {target:g})")
        if row["extra_models"] > 2:
            told.append(
                f"{row['side']} {row['rule']} n={row['n']}: NOT reached, {row['extra_models']:.1f} models extra"
            )
        told += [
            f"{row['side']} {row['rule']} n={row['n']}: {peer['ratio'] / row['ratio']:.1f} x as fast as {peer['side']}"
            for peer in rows
            if "error" not in peer and not peer["side"].startswith("pluribus")
            if (peer["n"], peer["rule"]) == (row["n"], row["rule"])
        ]
    return told


def installed(python: str) -> list[str]:
    """numpy, and the peers that an interpreter can import."""
    return ["numpy", *(peer for peer in ("flwr", "byzfl") if _imports(python, peer))]


def _imports(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[10, 50], help="numbers of contributors")
    parser.add_argument("--peer", action="append", default=[], choices=["numpy", "flwr", "byzfl"], help="beside ours")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the peers' environment")
    parser.add_argument("--share", type=int, default=1, help="measure peers on one in so many of the coordinates")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        print(json.dumps(run(chosen.inside, chosen.n[0], chosen.share)))
        return
    size = sum(math.prod(shape) for shape in resnet50().values())
    print(f"ResNet-50: {len(resnet50())} arrays, {size:,} float32 numbers", file=sys.stderr)
    rows = []
    for n in chosen.n:
        for kernels in ("compiled", "plain"):
            rows += elsewhere("pluribus", n, 1, sys.executable, kernels)
        for peer in chosen.peer or installed(chosen.python):
            python = sys.executable if peer == "numpy" else chosen.python
            rows += elsewhere(peer, n, chosen.share, python, None)
    print(table(rows))
    print("\n".join(["", *verdicts(rows)]))
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
