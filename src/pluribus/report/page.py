"""The page of a run: what ran, how well each rule did, and who counted for how much under each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .bars import bar_chart, stacked_bars
from .counted import who_counted
from .data import RuleReport, RunReport
from .figure import Figure, Table
from .findings import findings, mean_weights, most_accurate
from .heat import heat_map, off_diagonal, relation_map
from .layout import fill
from .lines import Series, line_chart, series_class
from .scales import ColourScale, FloatArray, diverging_scale
from .summary import rule_mark, summary_table
from .text import MISSING, fixed, number, percent

_UNFOLDED = 3
"""Rules whose sections are open; of more, those of the baseline and of the most accurate rule."""

_TIMES = 100
"""Moments at which accuracy over time is drawn."""


def render(report: RunReport) -> str:
    """The whole page of ``report`` as one HTML text: no link to anything outside, the same bytes for the same data."""
    cosines = _cosines(report)
    return fill(
        "run.html",
        report=report,
        facts=_facts(report),
        findings=findings(report),
        summary=summary_table(report),
        curves=_curves(report),
        timed=_timed(report),
        rules=[_rule(report, i, rule, cosines) for i, rule in enumerate(report.rules)],
        counted=who_counted(report),
        labels=_labels(report),
        config=list(flat(report.config)),
    )


def _facts(report: RunReport) -> list[tuple[str, str]]:
    seeds = max((r.accuracy.shape[0] for r in report.rules), default=0)
    facts = [
        (str(len(report.clients)), "clients" if len(report.clients) != 1 else "client"),
        (str(report.rounds), "rounds" if report.rounds != 1 else "round"),
        (str(len(report.rules)), "rules" if len(report.rules) != 1 else "rule"),
        (str(seeds), "seeds" if seeds != 1 else "seed"),
    ]
    if report.attackers:
        facts.append((str(len(report.attackers)), "attackers" if len(report.attackers) != 1 else "attacker"))
    return facts


def _curves(report: RunReport) -> Figure:
    series = []
    for rule in report.rules:
        mean, low, high = _over_seeds(rule.accuracy)
        banded = rule.accuracy.shape[0] > 1
        series.append(Series(rule.label, mean, low if banded else None, high if banded else None))
    return line_chart(
        series,
        _round_names(report),
        key="curves",
        title="Accuracy over rounds",
        y_label="accuracy, %",
        show=_short_percent,
        floor=0.0,
        band_note="The line is the mean over seeds, the band goes from the lowest seed to the highest.",
    )


def _timed(report: RunReport) -> Figure | None:
    """Accuracy over the clock: at each of equally spaced times what was measured last, from the first measurement."""
    clocked = [rule for rule in report.rules if rule.time is not None and np.isfinite(rule.time).any()]
    if not report.timed or not clocked:
        return None
    last = max(float(np.nanmax(rule.time)) for rule in clocked if rule.time is not None)
    points = np.linspace(0.0, last, _TIMES)
    series = []
    for rule in report.rules:
        if rule.time is None:
            held = np.full((1, _TIMES), np.nan)
        else:
            held = np.stack([_held(*pair, points) for pair in zip(rule.time, rule.accuracy, strict=True)])
        # A mean over some of the seeds would jump where another seed begins.
        mean = held.mean(axis=0)
        banded = len(held) > 1
        series.append(
            Series(rule.label, mean, held.min(axis=0) if banded else None, held.max(axis=0) if banded else None)
        )
    return line_chart(
        series,
        [number(point, 3) for point in points],
        key="timed",
        title="Accuracy over simulated time",
        x_label="simulated seconds",
        y_label="accuracy, %",
        show=_short_percent,
        floor=0.0,
        band_note="At each moment what was measured last; the band goes from the lowest seed to the highest. "
        "A curve ends with its first finished seed.",
    )


def _held(time: FloatArray, accuracy: FloatArray, points: FloatArray) -> FloatArray:
    """(points,) the last measured accuracy at each time; NaN before the first and after the last round."""
    known = np.isfinite(accuracy) & np.isfinite(time)
    if not known.any():
        return np.full(len(points), np.nan)
    at = np.searchsorted(time[known], points, side="right") - 1
    found = np.where(at >= 0, accuracy[known][np.maximum(at, 0)], np.nan)
    return np.where(points <= np.nanmax(time), found, np.nan)


def _short_percent(value: float) -> str:
    text = percent(value)
    return text.removesuffix(".0")


def _over_seeds(accuracy: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean, lowest and highest over the seeds that have a value; NaN where none has."""
    there = ~np.isnan(accuracy)
    some = there.any(axis=0)
    count = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, accuracy, 0.0).sum(axis=0) / count
    low = np.where(there, accuracy, np.inf).min(axis=0, initial=np.inf)
    high = np.where(there, accuracy, -np.inf).max(axis=0, initial=-np.inf)
    return np.where(some, mean, np.nan), np.where(some, low, np.nan), np.where(some, high, np.nan)


def _round_names(report: RunReport) -> list[str]:
    return [str(i) for i in range(1, report.rounds + 1)]


def _rule(report: RunReport, index: int, rule: RuleReport, cosines: ColourScale | None) -> dict[str, Any]:
    """One rule's section: weights client x round, what it saw in the last round, mean weights."""
    key = f"rule{index}"
    weights = relation = bars = None
    means = mean_weights(rule)
    share = 1 / len(report.clients) if report.clients else math.nan
    show = _weights_shown(len(report.clients))
    said = "Of the first seed." if rule.accuracy.shape[0] > 1 else ""
    if rule.weights is not None:
        weights = _weights(report, rule, rule.weights, f"{key}w", show)
    if rule.relation is not None:
        attackers = {report.clients[i] for i in report.attackers}
        relation = relation_map(
            rule.relation.values,
            rule.relation.labels,
            rule.relation.kind,
            key=f"{key}r",
            title=f"{rule.relation.kind.capitalize()}s of the last round under {rule.label}",
            marked=[i for i, name in enumerate(rule.relation.labels) if name in attackers],
            scale=cosines if rule.relation.kind == "cosine" else None,
        )
    if means is not None:
        bars = bar_chart(
            report.clients,
            means,
            key=f"{key}b",
            title=f"Mean weight of each client under {rule.label}",
            quantity="mean weight",
            landmark=share,
            marked=report.attackers,
            show=show,
        )
    return {
        "label": rule.label,
        "formal": rule.formal,
        "folded": len(report.rules) > _UNFOLDED and index > 0 and rule is not most_accurate(report),
        "id": key,
        "mark": rule_mark(index),
        "colour": series_class(index),
        "explanation": rule.explanation,
        "weights": weights,
        "relation": relation,
        "bars": bars,
        "contributions": _contributions(report, rule),
        "aside": f"{said} An equal share would be {show(share)}.".strip(),
    }


def _contributions(report: RunReport, rule: RuleReport) -> Table | None:
    if not rule.contributions:
        return None
    return Table(
        f"What each client contributed under {rule.label}, by several measures. Of the first seed.",
        ("client", *rule.contributions),
        tuple(
            (name, *(number(float(values[i])) for values in rule.contributions.values()))
            for i, name in enumerate(report.clients)
        ),
        frozenset(report.attackers),
    )


def _weights(report: RunReport, rule: RuleReport, values: FloatArray, key: str, show: Callable[[float], str]) -> Figure:
    """Weights client x round; on a phone with fewer columns, so that letters keep their size."""

    def draw(key: str, width: float, most: int) -> Figure:
        return heat_map(
            values,
            report.clients,
            _round_names(report),
            key=key,
            title=f"Weight of each client in each round under {rule.label}",
            quantity="weight",
            row_label="client",
            column_label="round",
            marked=report.attackers,
            absent="did not take part",
            show=show,
            width=width,
            most=most,
        )

    wide = draw(key, 914, 200)
    if len(report.clients) > 60:  # the rows of a phone would have to be averaged too
        return wide
    return replace(wide, narrow=draw(f"{key}n", 430, 60).svg)


def _cosines(report: RunReport) -> ColourScale | None:
    """One scale for the cosines of all rules, so that a colour is the same number on the whole page."""
    seen = [r.relation.values for r in report.rules if r.relation is not None and r.relation.kind == "cosine"]
    return diverging_scale(np.concatenate([off_diagonal(values) for values in seen])) if seen else None


def _weights_shown(clients: int) -> Callable[[float], str]:
    """Weights with so many decimals that an equal share has three digits."""
    digits = 3 + max(0, math.ceil(math.log10(max(clients, 1))) - 1)
    return lambda value: fixed(value, digits)


def _labels(report: RunReport) -> Figure | None:
    if report.label_counts is None or not report.clients:
        return None
    return stacked_bars(
        report.clients,
        report.label_counts,
        report.class_labels,
        key="labels",
        title="Samples of each class that each client has",
        marked=report.attackers,
    )


def flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, value as in TOML) of every leaf, in the order given."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", _value(value)


def _value(value: Any) -> str:
    if value is None or (isinstance(value, Mapping) and not value):
        return MISSING
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, np.generic):
        return _value(value.item())
    if isinstance(value, np.ndarray):
        return _value(value.tolist())
    if isinstance(value, list | tuple):
        return ", ".join(_value(v) for v in value) if value else MISSING
    return str(value)
