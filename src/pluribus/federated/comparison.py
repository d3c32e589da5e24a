"""Finished experiments side by side: read from their folders, rule x experiment, and what they differ in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from pluribus import report
from pluribus.federated.config import SETTINGS
from pluribus.federated.folder import GRID, SUMMARY, FolderError, look, read_json
from pluribus.federated.verdict import judge

NUMBERS = (
    "accuracy",
    "worst_client",
    "worst_tenth",
    "jain",
    "attack_success",
    "attackers_weight",
    "bytes",
    "seconds",
    "seconds_to_target",
)
"""What is told of each rule in each experiment; see the ``meanings`` of a summary."""


@dataclass(frozen=True, eq=False)
class Told:
    """A finished experiment: what it is called, where it stands, all that its bytes depend on, its rules' numbers."""

    name: str
    folder: Path
    binding: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    verdict: Mapping[str, Any]

    def row(self, rule: str) -> Mapping[str, Any] | None:
        """A rule's numbers; None where it was not run."""
        return next((row for row in self.rows if row["rule"] == rule), None)


def told(name: str, folder: Path, summary: Mapping[str, Any]) -> Told:
    """An experiment from its summary."""
    rows = summary["rules"]
    return Told(name, folder, summary["binding"], rows, summary.get("verdict") or judge(rows))


def read(folder: Path) -> list[Told]:
    """The experiment of a folder, or those of its grid.

    Raises
    ------
    FolderError
        Nothing finished is there.
    """
    grid = read_json(folder / GRID)
    if grid is not None and isinstance(grid.get("cells"), dict):
        return [_read(folder / name, f"{folder}/{name}") for name in grid["cells"]]
    return [_read(folder, str(folder))]


def differing(experiments: Sequence[Told]) -> dict[str, list[Any]]:
    """Settings (and contents of files) that are not the same everywhere, each with its value in every experiment."""
    keys = dict.fromkeys(key for one in experiments for key in one.binding if key != "rules")
    values = {key: [one.binding.get(key) for one in experiments] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def rules_of(experiments: Sequence[Told]) -> list[str]:
    """All rules, in the order in which they are met."""
    return list(dict.fromkeys(row["rule"] for one in experiments for row in one.rows))


def mark(one: Told, rule: str) -> str:
    """``best`` for the rule that is ahead of all others, ``tied`` for those that the highest does not lead."""
    if rule == one.verdict["best"]:
        return "best"
    return "tied" if rule in one.verdict["tied"] else ""


def sentences(experiments: Sequence[Told]) -> list[str]:
    """Which rule when: how often each is ahead, and what each experiment says."""
    if len(experiments) == 1:
        return list(experiments[0].verdict["sentences"])
    ahead = [one.verdict["best"] for one in experiments]
    counts = {rule: ahead.count(rule) for rule in rules_of(experiments) if rule in ahead}
    n = len(experiments)
    parts = [f"{rule} is ahead of every other rule in {count} of {n}" for rule, count in counts.items()]
    undecided = ahead.count(None)
    if undecided:
        parts.append(f"in {undecided} of {n} the best do not separate")
    return ["; ".join(parts) + ".", *(f"{one.name}: {s}" for one in experiments for s in one.verdict["sentences"])]


def as_plain(experiments: Sequence[Told]) -> dict[str, Any]:
    """All of it for JSON."""
    return {
        "differing": differing(experiments),
        "experiments": [
            {
                "name": one.name,
                "folder": str(one.folder),
                "rules": [{"rule": r["rule"], **{name: r[name] for name in NUMBERS if name in r}} for r in one.rows],
                "verdict": dict(one.verdict),
            }
            for one in experiments
        ],
        "sentences": sentences(experiments),
    }


def page(experiments: Sequence[Told], title: str, beside: Path) -> str:
    """The page as one text; its links are from the folder ``beside``."""
    rules, apart = rules_of(experiments), differing(experiments)
    first = experiments[0].binding
    return report.render_grid(
        report.GridReport(
            title=title,
            subtitle="Accuracy after the last round: mean over the seeds ± their standard deviation.",
            cells=tuple(
                report.GridCell(
                    one.name,
                    _link(one.folder / "report.html", beside),
                    {key: values[k] for key, values in apart.items()},
                    tuple(one.verdict["sentences"]),
                )
                for k, one in enumerate(experiments)
            ),
            rules=tuple(rules),
            accuracy=_numbers(experiments, rules, "mean"),
            spread=_numbers(experiments, rules, "spread"),
            marks=tuple(tuple(mark(one, rule) for one in experiments) for rule in rules),
            findings=tuple(sentences(experiments)[:1]) if len(experiments) > 1 else (),
            head=("experiment", "rule", *("MB" if name == "bytes" else name.replace("_", " ") for name in NUMBERS)),
            numbers=tuple(_row(one, row) for one in experiments for row in one.rows),
            config={key: first[key] for key in SETTINGS if key in first and key not in apart},
        )
    )


def _row(one: Told, row: Mapping[str, Any]) -> tuple[Any, ...]:
    def value(name: str) -> float:
        found = row.get(name, {}).get("mean")
        return float("nan") if found is None else float(found) * (1e-6 if name == "bytes" else 1.0)

    return (one.name, row["rule"], *(value(name) for name in NUMBERS))


def _numbers(experiments: Sequence[Told], rules: Sequence[str], part: str) -> Any:
    found = [[(one.row(rule) or {}).get("accuracy", {}).get(part) for one in experiments] for rule in rules]
    return np.array(found, dtype=np.float64)


def _link(target: Path, beside: Path) -> str:
    try:
        return quote(Path(os.path.relpath(target, beside)).as_posix())
    except ValueError:  # on another drive
        return target.resolve().as_uri()


def _read(folder: Path, name: str) -> Told:
    summary = read_json(folder / SUMMARY)
    if summary is None or not isinstance(summary.get("binding"), dict):
        unfinished = folder.is_dir() and look(folder).what == "unfinished"
        why = "an unfinished experiment; go on with --resume" if unfinished else "no finished experiment"
        raise FolderError(f"{folder} holds {why}; give folders that `pluribus federate --out` wrote to its end")
    return told(name, folder, summary)
