"""Heat maps: contributors by rounds, and contributors by contributors."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import figure
from .cells import Plot, Show, legend, plain_cells, titled_cells
from .figure import Figure, Table, c
from .lines import tick_places
from .scales import ColourScale, FloatArray, diverging_scale, linear_scale, robust_scale
from .text import clean, number, shorten, text_width

RelationKind = Literal["squared distance", "cosine"]
_TOP = 46.0
_TURNED_ROOM = 96.0


def heat_map(
    values: NDArray[Any],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    key: str,
    title: str,
    description: str = "",
    scale: ColourScale | None = None,
    quantity: str = "value",
    row_label: str = "row",
    column_label: str = "column",
    marked: Collection[int] = (),
    mark_name: str = "attacker",
    absent: str = "no value",
    show: Show = number,
    width: float = 914,
    square: bool = False,
    most: int = 200,
    cell_titles: bool = False,
) -> Figure:
    """``values`` (rows, columns) as colours; NaN is hatched, infinite values have the colour of their end.

    Beyond ``most`` columns (or rows) neighbouring ones are averaged and the notes say so, so that 100 x 1,000 cells
    stay a small drawing. The default scale is straight from zero. ``square`` makes cells square and turns the column
    names upright; ``cell_titles`` gives each cell its own tooltip, for places where no script runs.
    """
    values = np.asarray(values, dtype=np.float64).reshape(len(rows), len(columns))
    values, row_groups, column_groups, notes = _reduce(values, most, row_label, column_label)
    scale = scale or linear_scale(values)
    names = figure.group_names([clean(name) for name in rows], row_groups)
    heads = figure.group_names([clean(name) for name in columns], column_groups)
    flags = frozenset(i for i, (a, b) in enumerate(row_groups) if any(a <= m <= b for m in marked))
    plot = _place(names, len(heads), width, square)
    body = [
        legend(
            scale,
            quantity,
            plot.left,
            width=width,
            key=key,
            show=show,
            absent=absent if np.isnan(values).any() else "",
            mark=mark_name if flags else "",
        ),
        figure.row_labels(names, plot.left, plot.top, plot.tall, room=plot.left - 16, marked=flags),
        _upright_labels(heads, plot, flags) if square else _level_labels(heads, plot, column_label),
    ]
    geometry = ""
    if not values.size:
        body.append(figure.label(plot.left, plot.top + 14, "nothing to show", "soft"))
    elif cell_titles:
        body.insert(0, titled_cells(values, scale, plot, key, rows=names, columns=heads, show=show))
    else:
        body.insert(0, plain_cells(values, scale, plot, key))
        box = f"{c(plot.left)} {c(plot.top)} {c(plot.width)} {c(plot.height)}"
        geometry = f' data-hover="cells" data-grid="{plot.rows} {plot.columns}" data-plot="{box}"'
    height = plot.bottom + (_upright_room(heads) if square else 42) + (0 if values.size else 24)
    description = description or _describe(values, quantity, show)
    svg = figure.document(key, width, height, "".join(body), title=title, description=description, attributes=geometry)
    cells = tuple((n, *map(show, r)) for n, r in zip(names, values.tolist(), strict=True))
    table = Table(title, (f"{row_label} / {column_label}", *heads), cells, flags)
    return Figure(key, title, svg, table, ((scale.note,) if scale.note else ()) + notes)


def relation_map(
    values: NDArray[Any],
    names: Sequence[str],
    kind: RelationKind,
    *,
    key: str,
    title: str,
    marked: Collection[int] = (),
    mark_name: str = "attacker",
    width: float = 450,
    cell_titles: bool = False,
    scale: ColourScale | None = None,
) -> Figure:
    """An (n, n) relation: squared distances on a scale that outliers do not flatten, cosines around zero.

    The diagonal (always 0, or always 1) does not enter the scale, unless one is given.
    """
    values = np.asarray(values, dtype=np.float64).reshape(len(names), len(names))
    if scale is None:
        others = off_diagonal(values)
        scale = diverging_scale(others) if kind == "cosine" else robust_scale(others)
    return heat_map(
        values,
        names,
        names,
        key=key,
        title=title,
        scale=scale,
        quantity=kind,
        row_label="contributor",
        column_label="contributor",
        marked=marked,
        mark_name=mark_name,
        width=width,
        square=True,
        most=120,
        cell_titles=cell_titles,
    )


def off_diagonal(values: FloatArray) -> FloatArray:
    """All but the diagonal of (n, n), in a row."""
    return values[~np.eye(len(values), dtype=bool)]


def _reduce(
    values: FloatArray, most: int, row_word: str, column_word: str
) -> tuple[FloatArray, list[tuple[int, int]], list[tuple[int, int]], tuple[str, ...]]:
    values, columns = figure.grouped(values, most)
    turned, rows = figure.grouped(values.T, most)
    notes = []
    for groups, word in ((columns, column_word), (rows, row_word)):
        size = groups[0][1] - groups[0][0] + 1 if groups else 1
        if size > 1:
            notes.append(
                f"Each cell is the mean over {size} neighbouring {word}s, of those that have a value; "
                "so are the numbers below."
            )
    return turned.T, rows, columns, tuple(dict.fromkeys(notes))


def _place(names: Sequence[str], columns: int, width: float, square: bool) -> Plot:
    rows = len(names)
    left = figure.gutter(names) + 16
    wide = (width - left - 12) / max(columns, 1)
    if square:
        side = min(34.0, wide)
        return Plot(left, _TOP, side, side, rows, columns)
    tall = next((h for most, h in ((8, 24.0), (24, 17.0), (50, 12.0)) if rows <= most), max(4.0, 800 / max(rows, 1)))
    return Plot(left, _TOP, min(40.0, wide), min(tall, 12.0) if rows > 50 else tall, rows, columns)


def _level_labels(names: Sequence[str], plot: Plot, axis_label: str) -> str:
    widest = max([text_width(name) for name in names], default=0.0)
    parts = []
    for i in tick_places(len(names), widest, plot.width):
        middle = plot.left + (i + 0.5) * plot.wide
        x = min(middle, plot.left + plot.width + 12 - text_width(names[i]) / 2)
        parts.append(figure.label(x, plot.bottom + 17, names[i], "mid soft"))
    parts.append(
        figure.label(plot.left + plot.width / 2, plot.bottom + 35, shorten(axis_label, plot.width), "mid soft")
    )
    return "".join(parts)


def _upright_labels(names: Sequence[str], plot: Plot, flags: Collection[int]) -> str:
    step = max(1, math.ceil(11.5 / plot.wide)) if names else 1
    return "".join(
        figure.label(
            plot.left + (i + 0.5) * plot.wide + 4,
            plot.bottom + 10,
            shorten(names[i], _TURNED_ROOM - 14),
            "end warn" if i in flags else "end",
            turn=-90,
        )
        for i in range(0, len(names), step)
    )


def _upright_room(names: Sequence[str]) -> float:
    return figure.gutter(names, most=_TURNED_ROOM - 14) + 16


def _describe(values: FloatArray, quantity: str, show: Show) -> str:
    finite = values[np.isfinite(values)]
    size = f"{values.shape[0]} rows by {values.shape[1]} columns of {quantity}"
    if not finite.size:
        return f"{size}; none has a value."
    return f"{size}, from {show(float(finite.min()))} to {show(float(finite.max()))}."
