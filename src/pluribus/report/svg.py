"""The charts, each a pure function from numbers to a :class:`Figure` (drawing, table, notes)."""

from __future__ import annotations

from .bars import bar_chart, interval_mark, stacked_bars
from .figure import Figure, Table
from .heat import heat_map, relation_map
from .lines import Series, line_chart
from .scales import ColourScale, diverging_scale, linear_scale, robust_scale

__all__ = [
    "ColourScale",
    "Figure",
    "Series",
    "Table",
    "bar_chart",
    "diverging_scale",
    "heat_map",
    "interval_mark",
    "line_chart",
    "linear_scale",
    "relation_map",
    "robust_scale",
    "stacked_bars",
]
