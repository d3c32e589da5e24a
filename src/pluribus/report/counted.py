"""Who counted for how much: the mean weight of every client under every rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .data import RunReport
from .findings import mean_weights
from .scales import FloatArray
from .text import MISSING, counted, percent


def who_counted(report: RunReport) -> dict[str, Any] | None:
    """The cells of the table clients x rules, in per cent, and the attackers' sums; None if no rule has weights.

    Beside the weights stands the client's part of all samples, where it is known. A cell is its text and, for a
    weight, the length of its bar in per cent of the largest weight of the whole table.
    """
    means = [(rule.label, mean_weights(rule)) for rule in report.rules]
    known = [m for _, m in means if m is not None]
    if not report.clients or not known:
        return None
    digits = max(1, math.ceil(math.log10(len(report.clients))) - 1)
    largest = max(float(np.abs(m[np.isfinite(m)]).max(initial=0.0)) for m in known)
    samples = _sample_shares(report)
    heads = [label for label, _ in means] if samples is None else ["samples", *(label for label, _ in means)]
    rows = []
    for i, client in enumerate(report.clients):
        cells: list[tuple[str, str | None]] = [] if samples is None else [(percent(float(samples[i]), digits), None)]
        cells += [(MISSING, None) if m is None else _bar(float(m[i]), largest, digits) for _, m in means]
        rows.append({"name": client, "attacker": i in report.attackers, "cells": cells})
    together = []
    if report.attackers:
        chosen = list(report.attackers)
        sums = [samples] if samples is not None else []
        together = [
            MISSING if m is None else percent(float(m[chosen].sum()), digits) for m in [*sums, *(m for _, m in means)]
        ]
    return {
        "heads": heads,
        "rows": rows,
        "barred": [len(heads) - len(means) + i for i, (_, m) in enumerate(means) if m is not None],
        "together": together,
        "attackers": counted(len(report.attackers), "attacker"),
        "several_seeds": any(rule.accuracy.shape[0] > 1 for rule in report.rules),
        "bar_width": max(32, min(80, 690 // len(report.rules) - 56)),
        "equal_share": percent(1 / len(report.clients), digits),
    }


def _sample_shares(report: RunReport) -> FloatArray | None:
    """(clients,) part of all samples that a client has, or None."""
    if report.label_counts is None:
        return None
    samples = np.nansum(report.label_counts, axis=1)
    return samples / samples.sum() if samples.sum() > 0 else None


def _bar(value: float, largest: float, digits: int) -> tuple[str, str]:
    length = value / largest if largest > 0 and math.isfinite(value) else 0.0
    return percent(value, digits), f"{100 * max(length, 0.0):.1f}"
