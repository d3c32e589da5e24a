"""The cells of a heat map: few bytes for many cells, and a legend of their colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .figure import c, flag, label, rectangle
from .palette import LEVELS
from .scales import ColourScale, FloatArray
from .text import escape, shorten, text_width

Show = Callable[[float], str]


@dataclass(frozen=True)
class Plot:
    """Where the cells lie: the corner, the size of one, how many."""

    left: float
    top: float
    wide: float
    tall: float
    rows: int
    columns: int

    @property
    def width(self) -> float:
        """Pixels of all columns."""
        return self.wide * self.columns

    @property
    def height(self) -> float:
        """Pixels of all rows."""
        return self.tall * self.rows

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.top + self.height


def plain_cells(values: FloatArray, scale: ColourScale, plot: Plot, key: str) -> str:
    """All cells, one path a colour; where a value is missing the hatched ground shows through."""
    levels = scale.levels(values)
    move = f"translate({c(plot.left)} {c(plot.top + plot.tall / 2)}) scale({plot.wide:.4f} {plot.tall:.4f})"
    cells = f'<g class="cells" transform="{move}">{_paths(levels, scale.family)}</g>'
    return _ground(plot, key, levels) + cells + _gaps(plot)


def titled_cells(
    values: FloatArray,
    scale: ColourScale,
    plot: Plot,
    key: str,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    show: Show,
) -> str:
    """Each cell a rectangle with its own tooltip, for places where no script runs."""
    levels = scale.levels(values)
    parts = [_ground(plot, key, levels)]
    for (i, j), level in np.ndenumerate(levels):
        kind = f"cell {scale.family}{level}" if level >= 0 else "cell clear"
        box = rectangle(plot.left + j * plot.wide, plot.top + i * plot.tall, plot.wide, plot.tall, kind)
        hint = escape(f"{rows[i]}, {columns[j]}: {show(float(values[i, j]))}")
        parts.append(f"{box[:-2]}><title>{hint}</title></rect>")
    return "".join(parts) + _gaps(plot)


def legend(
    scale: ColourScale,
    quantity: str,
    left: float,
    *,
    width: float,
    key: str,
    show: Show,
    absent: str,
    mark: str,
) -> str:
    """The ramp with the values at its ends and middle, and what hatching (``absent``) and flags (``mark``) mean."""
    count = LEVELS[scale.family]
    quantity = shorten(quantity, 0.35 * width)
    start = left + text_width(quantity) + 14
    keys = sum(text_width(text) + room for text, room in ((absent, 36), (mark, 20)) if text)
    bar = min(160.0, max(96.0, width - start - 18 - keys))
    parts = [label(left, 14, quantity, "strong")]
    parts += [
        rectangle(start + i * bar / count, 5, bar / count + 0.4, 10, f"swatch {scale.family}{i}") for i in range(count)
    ]
    for place, kind in ((0.0, "soft"), (0.5, "mid soft"), (1.0, "end soft")):
        parts.append(label(start + place * bar, 29, show(scale.value_at(place)), kind))
    at = start + bar + 18
    if absent:
        parts.append(f'<rect class="outlined" fill="url(#{key}-h)" x="{c(at)}" y="4" width="14" height="12"/>')
        parts.append(label(at + 20, 14, shorten(absent, width - at - 20), "soft"))
        at += 20 + text_width(absent) + 16
    if mark:
        parts.append(flag(at + 7, 10))
        parts.append(label(at + 13, 14, shorten(mark, width - at - 13), "warn"))
    return "".join(parts)


def _ground(plot: Plot, key: str, levels: NDArray[np.int64]) -> str:
    if (levels >= 0).all():
        return ""
    return (
        f'<defs><pattern id="{key}-h" width="5" height="5" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><rect class="hatch-ground" width="5" height="5"/>'
        '<line class="hatch" x1="0" y1="0" x2="0" y2="5"/></pattern></defs>'
        f'<rect fill="url(#{key}-h)" x="{c(plot.left)}" y="{c(plot.top)}" width="{c(plot.width)}"'
        f' height="{c(plot.height)}"/>'
    )


def _paths(levels: NDArray[np.int64], family: str) -> str:
    """One path a colour: a horizontal stroke, one unit thick, for each run of equal cells."""
    columns = levels.shape[1]
    starts = np.ones(levels.shape, dtype=bool)
    starts[:, 1:] = levels[:, 1:] != levels[:, :-1]
    first = np.flatnonzero(starts)
    length = np.diff(np.append(first, levels.size))
    colour = levels.ravel()[first]
    parts = []
    for level in range(LEVELS[family]):
        mine = colour == level
        moves, x, y = [], 0, 0
        for start, run in zip(first[mine].tolist(), length[mine].tolist(), strict=True):
            row, column = divmod(start, columns)
            moves.append(f"m{column - x} {row - y}h{run}")
            x, y = column + run, row
        if moves:
            parts.append(f'<path class="{family}{level}" d="{"".join(moves)}"/>')
    return "".join(parts)


def _gaps(plot: Plot) -> str:
    """Hairlines of the page's colour between cells that are large enough for it."""
    lines = []
    if plot.tall >= 7:
        lines += [f"M{c(plot.left)} {c(plot.top + i * plot.tall)}h{c(plot.width)}" for i in range(1, plot.rows)]
    if plot.wide >= 7:
        lines += [f"M{c(plot.left + i * plot.wide)} {c(plot.top)}v{c(plot.height)}" for i in range(1, plot.columns)]
    return f'<path class="gaps" d="{"".join(lines)}"/>' if lines else ""
