"""The page of several experiments: accuracy rule x experiment, what each says, and all numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .data import ReportError
from .figure import Table
from .layout import fill
from .page import flat
from .scales import FloatArray
from .text import MISSING, number, percent

MARKS = ("", "best", "tied")


@dataclass(frozen=True)
class GridCell:
    """An experiment: name, a link to its page, the settings in which it differs from the others, its verdict."""

    name: str
    link: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    verdict: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class GridReport:
    """Several experiments side by side.

    ``accuracy`` and ``spread`` are (rules, cells), shares, NaN where a rule was not run; ``marks`` likewise, of
    `MARKS`. ``numbers`` are rows under ``head``, each a cell's name, a rule and numbers; ``config`` is what all share.
    """

    title: str
    subtitle: str
    cells: tuple[GridCell, ...]
    rules: tuple[str, ...]
    accuracy: FloatArray
    spread: FloatArray
    marks: tuple[tuple[str, ...], ...]
    findings: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    numbers: tuple[tuple[Any, ...], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = len(self.rules), len(self.cells)
        for name in ("accuracy", "spread"):
            if np.shape(getattr(self, name)) != shape:
                raise ReportError(f"{name} has shape {np.shape(getattr(self, name))}, expected {shape} (rules x cells)")
        if len(self.marks) != shape[0] or any(len(row) != shape[1] for row in self.marks):
            raise ReportError(f"marks must be {shape[0]} rows of {shape[1]}")
        if any(mark not in MARKS for row in self.marks for mark in row):
            raise ReportError(f"marks are of {', '.join(map(repr, MARKS))}")


def render_grid(report: GridReport) -> str:
    """The whole page as one HTML text; its only links are those of the cells."""
    keys = list(dict.fromkeys(key for cell in report.cells for key in cell.settings))
    apart = Table(
        "The settings in which the experiments differ.",
        ("experiment", *keys),
        tuple((cell.name, *(_shown(cell.settings.get(key)) for key in keys)) for cell in report.cells),
    )
    numbers = Table(
        "Means over the seeds: accuracies and weights as shares, MB both ways, simulated seconds.",
        report.head,
        tuple(tuple(_shown(value) for value in row) for row in report.numbers),
    )
    return fill(
        "grid.html",
        report=report,
        facts=[(str(len(report.cells)), "experiments"), (str(len(report.rules)), "rules")],
        rows=[(rule, [_cell(report, i, k) for k in range(len(report.cells))]) for i, rule in enumerate(report.rules)],
        apart=apart if keys else None,
        numbers=numbers if report.numbers else None,
        config=list(flat(report.config)),
    )


def _cell(report: GridReport, i: int, k: int) -> tuple[str, str, str]:
    mean, spread = float(report.accuracy[i, k]), float(report.spread[i, k])
    if np.isnan(mean):
        return MISSING, "", ""
    return percent(mean), "" if np.isnan(spread) else f"± {percent(spread)}", report.marks[i][k]


def _shown(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return number(value)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
