"""The table of rules by numbers, every number beside its difference to the baseline's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from .bars import interval_mark
from .data import RunReport
from .findings import attackers_share, final
from .lines import series_class, series_mark
from .scales import axis
from .text import fixed, number, percent, signed, signed_percent

_KNOWN = ("accuracy", "spread", "worst_client", "effective_clients", "attackers_weight")
_SHARES = (
    "worst_tenth",
    "attack_success",
)  # the columns that are shown as per cent, of those that are not always there


@dataclass(frozen=True)
class _Cell:
    """A number of the summary, its difference to the baseline's, and whether it is the best of its column."""

    text: str
    difference: str = ""
    best: bool = False
    spread: str = ""


@dataclass(frozen=True)
class _Column:
    title: str
    values: list[float]
    show: Callable[[float], str]
    show_difference: Callable[[float], str]
    unit: str = ""
    higher_is_better: bool = True


def summary_table(report: RunReport) -> dict[str, Any]:
    """The table rules x numbers, every number beside its difference to the first rule."""

    def values(name: str) -> list[float]:
        return [final(rule, name) for rule in report.rules]

    columns = [
        _Column("accuracy", values("accuracy"), percent, signed_percent, "%"),
        _Column("worst client", values("worst_client"), percent, signed_percent, "%"),
        _Column("effective clients", values("effective_clients"), _tenths, _signed_tenths),
    ]
    shares = [attackers_share(report, rule) for rule in report.rules]
    if report.attackers:
        columns.append(_Column("attackers’ weight", shares, percent, signed_percent, "%", higher_is_better=False))
    extra = dict.fromkeys(k for rule in report.rules for k in rule.final if k not in _KNOWN)
    for name in extra:
        of_share = name in _SHARES
        shown = (percent, signed_percent, "%") if of_share else (number, signed, "")
        columns.append(_Column(name.replace("_", " "), values(name), *shown))
    accuracy = np.array(values("accuracy"))
    spread = np.nan_to_num(np.array(values("spread")))
    within = axis(np.concatenate([accuracy - spread, accuracy + spread]), floor=0.0)
    rows = []
    for i, rule in enumerate(report.rules):
        cells = [_cell(column, i, judged=k < 2) for k, column in enumerate(columns)]
        if cells and math.isfinite(final(rule, "spread")):
            cells[0] = _Cell(cells[0].text, cells[0].difference, cells[0].best, f"± {percent(final(rule, 'spread'))}")
        rows.append(
            {
                "label": rule.label,
                "mark": rule_mark(i),
                "index": i,
                "colour": series_class(i),
                "baseline": i == 0,
                "cells": cells,
                "interval": Markup(
                    interval_mark(final(rule, "accuracy"), final(rule, "spread"), within, float(accuracy[0]))
                ),
            }
        )
    return {
        "columns": [(column.title, column.unit) for column in columns],
        "rows": rows,
        "range": (percent(within.low, 0), percent(within.high, 0)),
    }


def _cell(column: _Column, row: int, *, judged: bool) -> _Cell:
    value, base = column.values[row], column.values[0]
    finite = [v for v in column.values if math.isfinite(v)]
    best = judged and len(finite) > 1 and math.isfinite(value) and column.show(value) == column.show(max(finite))
    difference = ""
    if row > 0 and math.isfinite(value) and math.isfinite(base):
        difference = column.show_difference(value - base)
    return _Cell(column.show(value), difference, best)


def _tenths(value: float) -> str:
    return fixed(value, 1)


def _signed_tenths(value: float) -> str:
    return signed_percent(value / 100)


def rule_mark(index: int) -> Markup:
    """The rule's mark as a small picture beside its name."""
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" class="key" viewBox="-7 -7 14 14" width="14" height="14"'
        f' aria-hidden="true">{series_mark(index)}</svg>'
    )
