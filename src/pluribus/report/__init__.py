"""The page that shows a result: one self-contained HTML file, drawings and the same numbers as tables."""

from __future__ import annotations

from .aggregate import fragment, render_aggregate
from .data import AggregateReport, Relation, ReportError, RuleReport, RunReport
from .grid import GridCell, GridReport, render_grid
from .page import render
from .results import aggregate_fragment, aggregate_page
from .write import write_text

__all__ = [
    "AggregateReport",
    "GridCell",
    "GridReport",
    "Relation",
    "ReportError",
    "RuleReport",
    "RunReport",
    "aggregate_fragment",
    "aggregate_page",
    "fragment",
    "render",
    "render_aggregate",
    "render_grid",
    "write_text",
]
