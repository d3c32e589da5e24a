"""The page of one aggregation, and the small form of it that a notebook shows."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np

from .bars import bar_chart
from .data import AggregateReport
from .figure import Figure, Table
from .heat import heat_map, relation_map
from .layout import fill
from .scales import FloatArray
from .text import MISSING, counted, number

_FEW = 20
_FRAGMENT_ROWS = 12
_FRAGMENT_RELATION = 24


def render_aggregate(report: AggregateReport) -> str:
    """The whole page of ``report`` as one HTML text: opens offline, the same bytes for the same data."""
    share = 1 / len(report.names) if report.names else math.nan
    bars = [
        _bars(report, report.mean_weights, "w", "weight", "Weight of each contributor", landmark=share),
        _weights_of_results(report),
        _influence(report),
        _bars(report, report.distances, "d", "distance", "Distance of each contributor to the result"),
    ]
    return fill(
        "aggregate.html",
        report=report,
        facts=_facts(report),
        figures=[figure for figure in (*bars, _relation(report, "r", 424, titles=False)) if figure is not None],
        table=_table(report, list(range(len(report.names)))),
    )


def _influence(report: AggregateReport) -> Figure | None:
    title = "How far the result moves when a contributor is left out"
    bars = _bars(report, report.influence, "i", "influence", title)
    if bars is None or len(report.names) > _FEW:
        return bars
    note = (
        "Among few contributors the result may move most without an honest one: those that are left decide otherwise. "
        "Influence is no sign of an attack; weights and distances say more."
    )
    return replace(bars, notes=(*bars.notes, note))


def fragment(report: AggregateReport) -> str:
    """A piece of HTML for ``_repr_html_``: the numbers, the contributors of largest weight, a small relation map.

    It brings its own style, confined to itself, needs no script, and its ids differ from those of other fragments.
    """
    order = list(range(len(report.names)))
    weights = report.mean_weights
    if len(order) > _FRAGMENT_ROWS and weights is not None:
        size = np.nan_to_num(np.abs(weights), nan=-1.0)
        order = np.argsort(-size, kind="stable").tolist()
    shown = order[:_FRAGMENT_ROWS]
    small = report.relation is not None and len(report.relation.labels) <= _FRAGMENT_RELATION
    return fill(
        "fragment.html",
        report=report,
        facts=_facts(report),
        table=_table(report, shown),
        rest=len(order) - len(shown),
        relation=_relation(report, _digest(report), 420, titles=True) if small else None,
    )


def _facts(report: AggregateReport) -> list[tuple[str, str]]:
    n = len(report.names)
    facts = [(str(n), "contributor" if n == 1 else "contributors")]
    if report.effective_size is not None:
        facts.append((number(report.effective_size, 3), "effective"))
    if report.dispersion is not None:
        facts.append((number(report.dispersion), "dispersion"))
    if report.marked:
        facts.append((str(len(report.marked)), counted(len(report.marked), report.mark_name).partition(" ")[2]))
    return facts


def _bars(
    report: AggregateReport,
    values: FloatArray | None,
    key: str,
    quantity: str,
    title: str,
    *,
    landmark: float | None = None,
) -> Figure | None:
    if values is None:
        return None
    return bar_chart(
        report.names,
        values,
        key=key,
        title=title,
        quantity=quantity,
        landmark=landmark if landmark is not None and math.isfinite(landmark) else None,
        marked=report.marked,
        mark_name=report.mark_name,
        width=424,
    )


def _weights_of_results(report: AggregateReport) -> Figure | None:
    """Contributors x results, where there are several."""
    if report.weights is None or report.weights.ndim == 1:
        return None
    return heat_map(
        report.weights.T,
        report.names,
        [str(i) for i in range(len(report.weights))],
        key="k",
        title="Weight of each contributor in each result",
        quantity="weight",
        row_label="contributor",
        column_label="result",
        marked=report.marked,
        mark_name=report.mark_name,
        width=424,
    )


def _relation(report: AggregateReport, key: str, width: float, *, titles: bool) -> Figure | None:
    if report.relation is None:
        return None
    flagged = {report.names[i] for i in report.marked}
    return relation_map(
        report.relation.values,
        report.relation.labels,
        report.relation.kind,
        key=key,
        title=f"{report.relation.kind.capitalize()} of every two contributors",
        marked=[i for i, name in enumerate(report.relation.labels) if name in flagged],
        mark_name=report.mark_name,
        width=width,
        cell_titles=titles,
    )


def _table(report: AggregateReport, rows: list[int]) -> Table:
    columns = [
        (name, values)
        for name, values in (
            ("weight", report.mean_weights),
            ("influence", report.influence),
            ("distance to the result", report.distances),
        )
        if values is not None
    ]
    cells = tuple(
        (report.names[i], *(number(float(values[i])) for _, values in columns))
        if columns
        else (report.names[i], MISSING)
        for i in rows
    )
    head = ("contributor", *(name for name, _ in columns)) if columns else ("contributor", "weight")
    flags = frozenset(row for row, i in enumerate(rows) if i in report.marked)
    return Table("Contributors", head, cells, flags)


def _digest(report: AggregateReport) -> str:
    """Eight hexadecimal digits that differ between different aggregations, the same for the same."""
    state = hashlib.sha256(repr((report.title, report.names, report.marked)).encode("utf-8", "surrogatepass"))
    parts: tuple[Any, ...] = (report.weights, report.influence, report.distances)
    for part in (*parts, None if report.relation is None else report.relation.values):
        state.update(b"-" if part is None else np.ascontiguousarray(part).tobytes())
    return f"p{state.hexdigest()[:8]}"
