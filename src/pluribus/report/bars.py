"""Bars: weights of contributors, labels of clients, and the small mark of an interval in a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import figure
from .cells import Show
from .figure import Figure, Table, c
from .palette import CLASSES
from .scales import Axis, FloatArray, axis
from .text import clean, escape, number, shorten, text_width

_MOST_ROWS = 100
_TOP = 34.0


def bar_chart(
    names: Sequence[str],
    values: NDArray[Any],
    *,
    key: str,
    title: str,
    description: str = "",
    quantity: str = "weight",
    landmark: float | None = None,
    landmark_name: str = "equal share",
    marked: Collection[int] = (),
    mark_name: str = "attacker",
    show: Show = number,
    width: float = 398,
) -> Figure:
    """One horizontal bar for each of ``values`` (n,), from zero; a dashed line at ``landmark``.

    A value that is missing gets a dash, an infinite one a bar to the edge. Of more than 100 the largest are drawn.
    """
    values = np.asarray(values, dtype=np.float64).reshape(len(names))
    kept, notes = _largest(values, "contributors")
    shown = [clean(names[i]) for i in kept]
    tall = row_height(len(kept))
    x_axis = axis(np.append(values, landmark if landmark is not None else 0.0), count=3, zero=True)
    left = figure.gutter(shown, most=110) + 16
    end = width - 14 - max([text_width(show(float(values[i]))) for i in kept], default=0.0)
    bottom = _TOP + tall * len(kept)
    zero = left + (end - left) * x_axis.place(0.0)
    body = [figure.label(left, 14, shorten(quantity, width - left), "strong")]
    crossed = left + (end - left) * x_axis.place(landmark) if landmark is not None else 0.0
    if landmark is not None:
        text = f"{landmark_name} {show(landmark)}"
        at = min(crossed, width - text_width(text) - 2)
        body.append(figure.label(max(at, left + text_width(quantity) + 16), 14, text, "soft"))
        body.append(figure.line(crossed, 20, crossed, bottom + 2, "landmark"))
    for row, i in enumerate(kept):
        value, y = float(values[i]), _TOP + row * tall
        x = zero if np.isnan(value) else left + (end - left) * x_axis.place(value)
        kind = "bar warned" if i in marked else "bar"
        box = figure.rectangle(min(x, zero), y + 0.12 * tall, abs(x - zero), 0.76 * tall, kind, round_=min(2, tall / 5))
        body.append(f"<g><title>{escape(f'{names[i]}: {show(value)}')}</title>{box}</g>")
        if tall >= 11:
            at = max(x, zero) + 5
            if landmark is not None and at - 3 < crossed < at + text_width(show(value)) + 3:
                at = crossed + 4  # the dashed line would strike the number through
            body.append(figure.label(at, y + tall / 2 + 4, show(value), "soft halo"))
    flags = frozenset(row for row, i in enumerate(kept) if i in marked)
    body.append(figure.row_labels(shown, left, _TOP, tall, room=left - 16, marked=flags))
    body.append(figure.line(zero, _TOP - 2, zero, bottom + 2, "base"))
    if not kept:
        body.append(figure.label(left + 6, _TOP + 14, "nothing to show", "soft"))
    if flags:
        body.append(figure.flag(left + 7, bottom + 16))
        body.append(figure.label(left + 13, bottom + 20, shorten(mark_name, width - left - 16), "warn"))
    height = max(bottom, _TOP + 20) + (28 if flags else 8)
    description = description or f"{len(names)} bars: {quantity} of each contributor."
    svg = figure.document(key, width, height, "".join(body), title=title, description=description)
    rows = tuple((clean(n), show(v)) for n, v in zip(names, values.tolist(), strict=True))
    return Figure(key, title, svg, Table(title, ("contributor", quantity), rows, frozenset(marked)), notes)


def stacked_bars(
    names: Sequence[str],
    counts: NDArray[Any],
    classes: Sequence[str],
    *,
    key: str,
    title: str,
    description: str = "",
    quantity: str = "samples",
    marked: Collection[int] = (),
    mark_name: str = "attacker",
    width: float = 914,
) -> Figure:
    """Label histograms: for each of ``counts`` (clients, classes) a bar as long as the client has samples.

    Ten classes have a colour of their own (and their name inside where it fits); of more the nine largest have, and
    the rest are one grey part. Counts that are negative or not finite are drawn as zero.
    """
    counts = np.asarray(counts, dtype=np.float64).reshape(len(names), len(classes))
    drawn = np.where(np.isfinite(counts) & (counts > 0), counts, 0.0)
    kept, notes = _largest(drawn.sum(axis=1), "clients")
    groups = _class_groups(drawn, classes)
    if len(classes) > CLASSES:
        notes += (f"The {CLASSES - 1} most frequent classes have a colour of their own; the table has all.",)
    shown = [clean(names[i]) for i in kept]
    flags = frozenset(row for row, i in enumerate(kept) if i in marked)
    tall = row_height(len(kept))
    left = figure.gutter(shown) + 16
    end = width - 14 - text_width("00,000")
    items = [(f'<rect class="part {kind}" x="-6" y="-6" width="12" height="12"/>', name) for kind, name, _ in groups]
    if flags:
        items.append((figure.flag(4, 0), mark_name))
    key_part, key_height = figure.key_row(items, left, 0, width - left)
    top = key_height + 14
    x_axis = axis(drawn.sum(axis=1), count=5, zero=True)
    scale = (end - left) / (x_axis.high - x_axis.low)
    body = [key_part]
    for row, i in enumerate(kept):
        body.append(_stack(str(names[i]), drawn[i], groups, (left, scale), top=top + row * tall, tall=tall))
    bottom = top + tall * len(kept)
    body.append(figure.row_labels(shown, left, top, tall, room=left - 16, marked=flags))
    body.append(figure.line(left, top - 3, left, bottom + 3, "base"))
    for tick in x_axis.ticks:
        x = left + (end - left) * x_axis.place(tick)
        body.append(figure.label(x, bottom + 17, _count(tick), "mid soft"))
    body.append(figure.label((left + end) / 2, bottom + 35, shorten(quantity, end - left), "mid soft"))
    description = description or f"For each of {len(names)} clients the number of {quantity} of each class."
    svg = figure.document(key, width, bottom + 42, "".join(body), title=title, description=description)
    head = ("client", *(clean(name) for name in classes), "all")
    rows = tuple(
        (clean(name), *map(_count, r), _count(float(np.nansum(r))))
        for name, r in zip(names, counts.tolist(), strict=True)
    )
    return Figure(key, title, svg, Table(title, head, rows, frozenset(marked)), notes)


def interval_mark(value: float, spread: float, within: Axis, baseline: float, *, width: float = 120) -> str:
    """A dot at ``value`` with a whisker of ``spread`` to both sides and a tick at the ``baseline``, for a cell.

    It repeats numbers that stand beside it, so it is hidden from screen readers.
    """
    parts = [figure.line(4, 9, width - 4, 9, "hair")]

    def x(v: float) -> float:
        return 4 + (width - 8) * within.place(v)

    if np.isfinite(baseline):
        parts.append(figure.line(x(baseline), 2, x(baseline), 16, "landmark"))
    if np.isfinite(value):
        if np.isfinite(spread):
            parts.append(figure.line(x(value - spread), 9, x(value + spread), 9, "whisker"))
        parts.append(f'<circle class="dot" cx="{c(x(value))}" cy="9" r="4"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="interval" viewBox="0 0 {c(width)} 18" width="{c(width)}"'
        f' height="18" aria-hidden="true">{"".join(parts)}</svg>'
    )


def row_height(rows: int) -> float:
    """Pixels of a row of bars: large for few, small for many."""
    return next((h for most, h in ((8, 24.0), (24, 18.0), (50, 13.0)) if rows <= most), 6.0)


def _largest(values: FloatArray, what: str) -> tuple[list[int], tuple[str, ...]]:
    """Which rows are drawn: all up to 100, else the 100 of largest magnitude, in their order."""
    if values.size <= _MOST_ROWS:
        return list(range(values.size)), ()
    size = np.where(np.isnan(values), -1.0, np.abs(values))
    kept = np.sort(np.argsort(-size, kind="stable")[:_MOST_ROWS])
    note = f"The {_MOST_ROWS} largest of {values.size} {what} are drawn; the table has all."
    return kept.tolist(), (note,)


def _class_groups(counts: FloatArray, classes: Sequence[str]) -> list[tuple[str, str, list[int]]]:
    """(CSS class, name, columns) of each part of a bar."""
    if len(classes) <= CLASSES:
        return [(f"c{j}", clean(name), [j]) for j, name in enumerate(classes)]
    largest = sorted(np.argsort(-counts.sum(axis=0), kind="stable")[: CLASSES - 1].tolist())
    rest = [j for j in range(len(classes)) if j not in set(largest)]
    groups = [(f"c{i}", clean(classes[j]), [j]) for i, j in enumerate(largest)]
    return [*groups, (f"c{CLASSES}", f"{len(rest)} other classes", rest)]


def _stack(
    name: str,
    counts: FloatArray,
    groups: Sequence[tuple[str, str, list[int]]],
    place: tuple[float, float],
    *,
    top: float,
    tall: float,
) -> str:
    """One client's bar; ``place`` is where it starts and how many pixels a sample is."""
    left, scale = place
    parts, x = [], left
    for kind, text, columns in groups:
        count = float(counts[columns].sum())
        wide = count * scale
        if wide <= 0:
            continue
        box = figure.rectangle(x, top + 0.1 * tall, wide, 0.8 * tall, f"part {kind}")
        hint = f"<title>{escape(f'{name}, class {text}: {_count(count)}')}</title>"
        inside = ""
        if tall >= 13 and wide > text_width(text, 11) + 6:
            inside = figure.label(x + wide / 2, top + tall / 2 + 3.8, text, f"inside {kind}")
        parts.append(f"<g>{hint}{box}{inside}</g>")
        x += wide
    if tall >= 11:
        parts.append(figure.label(x + 5, top + tall / 2 + 4, _count(float(counts.sum())), "soft"))
    return "".join(parts)


def _count(value: float) -> str:
    """A whole number with thin marks between thousands; others as they are."""
    return f"{int(value):,}" if np.isfinite(value) and value == int(value) and abs(value) < 1e15 else number(value)
