"""What a chart is: a drawing, the same numbers as a table, and what must be said about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scales import FloatArray
from .text import clean, coordinate, escape, shorten, text_width

c = coordinate


@dataclass(frozen=True)
class Table:
    """Cells as shown; the first of each row names the row. ``marked`` are the rows of attackers."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Figure:
    """One chart: ``svg`` (and ``narrow``, the same for a phone, where it pays), its ``table``, its ``notes``.

    ``key`` is the page-wide unique prefix of the ids inside.
    """

    key: str
    title: str
    svg: str
    table: Table
    notes: tuple[str, ...] = ()
    narrow: str = ""


def document(
    key: str,
    width: float,
    height: float,
    body: str,
    *,
    title: str,
    description: str,
    attributes: str = "",
) -> str:
    """A whole ``<svg>`` with its title and description for those who do not see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {c(width)} {c(height)}" width="{c(width)}"'
        f' height="{c(height)}" role="img" aria-labelledby="{key}-t {key}-d"{attributes}>'
        f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(description)}</desc>{body}</svg>'
    )


def label(x: float, y: float, text: object, kind: str = "", *, turn: float = 0) -> str:
    """A ``<text>`` at (x, y); ``kind`` is its CSS classes (``end``, ``mid``, ``soft``, ``strong``)."""
    css = f' class="{kind}"' if kind else ""
    turned = f' transform="rotate({c(turn)} {c(x)} {c(y)})"' if turn else ""
    return f'<text x="{c(x)}" y="{c(y)}"{css}{turned}>{escape(text)}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, *, round_: float = 0) -> str:
    """A ``<rect>``, never of negative size."""
    corner = f' rx="{c(round_)}"' if round_ else ""
    return (
        f'<rect class="{kind}" x="{c(x)}" y="{c(y)}" width="{c(max(width, 0))}" height="{c(max(height, 0))}"{corner}/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A ``<line>``."""
    return f'<line class="{kind}" x1="{c(x1)}" y1="{c(y1)}" x2="{c(x2)}" y2="{c(y2)}"/>'


def flag(x: float, y: float) -> str:
    """The small triangle that marks an attacker, its right tip at (x, y)."""
    return f'<path class="flag" d="M{c(x - 7)} {c(y - 4.5)}L{c(x)} {c(y)}L{c(x - 7)} {c(y + 4.5)}z"/>'


def gutter(names: Sequence[str], *, most: float = 130, least: float = 24) -> float:
    """Room that row labels need, in pixels."""
    return min(most, max([least, *(text_width(clean(n)) for n in names)]))


def row_labels(
    names: Sequence[str],
    right: float,
    top: float,
    height: float,
    *,
    room: float,
    marked: Collection[int],
) -> str:
    """Names to the left of rows of ``height`` pixels: all, or as many as fit, those of marked rows first.

    Marked rows have a flag between name and row, with or without a name.
    """
    parts = [flag(right - 4, top + (i + 0.5) * height) for i in sorted(marked)]
    for i in _labelled(len(names), height, marked):
        kind = "end warn" if i in marked else "end"
        parts.append(label(right - 15, top + (i + 0.5) * height + 4, shorten(names[i], room), kind))
    return "".join(parts)


def _labelled(count: int, height: float, marked: Collection[int]) -> list[int]:
    """Rows whose names do not touch, 11.5 pixels apart at least: marked ones, then every k-th of the others."""
    apart = max(1, int(np.ceil(11.5 / height)))
    chosen: set[int] = set()
    for i in [*sorted(marked), *range(0, count, apart)]:
        if not any(j in chosen for j in range(i - apart + 1, i + apart)):
            chosen.add(i)
    return sorted(chosen)


def grouped(values: NDArray[Any], limit: int) -> tuple[FloatArray, list[tuple[int, int]]]:
    """Columns of ``values`` (..., columns) averaged in groups of equal size so that at most ``limit`` are left.

    Returns the means of what is there in each group (NaN where nothing is) and the groups as (first, last), from
    zero. Infinite values stay infinite; +inf and -inf together give NaN.
    """
    values = np.asarray(values, dtype=np.float64)
    columns = values.shape[-1]
    size = max(1, -(-columns // limit))
    groups = [(start, min(start + size, columns) - 1) for start in range(0, columns, size)]
    if size == 1:
        return values, groups
    there = ~np.isnan(values)
    starts = [first for first, _ in groups]
    count = np.add.reduceat(there, starts, axis=-1, dtype=np.int64)
    scale = 1.0 / np.maximum(count, 1)
    # Divided before adding, so that a group of huge numbers does not overflow.
    spread_out = np.repeat(scale, [last - first + 1 for first, last in groups], axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        means = np.add.reduceat(np.where(there, values, 0.0) * spread_out, starts, axis=-1)
    return np.where(count > 0, means, np.nan), groups


def group_names(names: Sequence[str], groups: Sequence[tuple[int, int]]) -> list[str]:
    """``7`` for a group of one, ``6–10`` for a group of five."""
    return [names[first] if first == last else f"{names[first]}–{names[last]}" for first, last in groups]


def key_row(items: Sequence[tuple[str, str]], x: float, y: float, width: float) -> tuple[str, float]:
    """A key of (mark, text) items that flows over lines of 18 pixels; the height it took.

    Each mark is drawn around (0, 0) and is 12 pixels wide.
    """
    parts, left, row = [], x, y
    for mark, text in items:
        short = shorten(text, width - 24)
        wide = 24 + text_width(short) + 12
        if left > x and left + wide - 12 > x + width:
            left, row = x, row + 18
        parts.append(f'<g transform="translate({c(left + 6)} {c(row + 8)})">{mark}</g>')
        parts.append(label(left + 18, row + 12, short))
        left += wide
    return "".join(parts), (row - y + 18 if items else 0.0)
