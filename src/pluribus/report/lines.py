"""Curves over rounds: a mean line and a band of spread for each series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from . import figure
from .figure import Figure, Table, c
from .palette import SERIES
from .scales import Axis, FloatArray, axis
from .text import clean, number, shorten, text_width

_MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-3.6-3.6h7.2v7.2h-7.2z",  # square
    "M0-4.6L4.4 3.4h-8.8z",  # triangle
    "M0-5L5 0L0 5L-5 0z",  # diamond
    "M0 4.6L4.4-3.4h-8.8z",  # triangle on its tip
    "M-1.6-4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",  # plus
    "M-5-2.6h10v5.2h-10z",  # bar
    "M-2.6-5h5.2v10h-5.2z",  # upright bar
)
_MOST_POINTS = 400
_NAME = 14.3  # names are 13 pixels and bold, about a tenth wider


@dataclass(frozen=True, eq=False)
class Series:
    """A curve: ``mean`` (points,) with NaN where nothing was measured, and the band ``low`` to ``high`` or none."""

    label: str
    mean: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None


def series_class(index: int) -> str:
    """CSS class of the colour of series ``index``; the first has the baseline's, and it is not used again."""
    return "s0" if index == 0 else f"s{1 + (index - 1) % (SERIES - 1)}"


def series_mark(index: int, scale: float = 1.0) -> str:
    """The mark of series ``index`` around (0, 0): shape and colour together tell 56 series apart."""
    shape = _MARKS[index % len(_MARKS)]
    turn = "" if scale == 1 else f' transform="scale({c(scale)})"'
    return f'<path class="mark {series_class(index)}" d="{shape}"{turn}/>'


def line_chart(
    series: Sequence[Series],
    points: Sequence[str],
    *,
    key: str,
    title: str,
    description: str = "",
    x_label: str = "round",
    y_label: str = "",
    show: Callable[[float], str] = number,
    floor: float = -np.inf,
    band_note: str = "",
    width: float = 914,
    narrow_width: float = 400,
) -> Figure:
    """Curves of equally spaced ``points``; beyond 400 of them groups are averaged, and the notes say so.

    ``show`` writes a value for axis and table; ``floor`` is a number below which the axis never goes. Values that
    were not measured (NaN) are bridged by a straight line; infinite values are drawn at the edge.
    """
    reduced, names, notes = _reduce(series, points)
    if any(s.low is not None for s in reduced) and band_note:
        notes = (band_note, *notes)
    description = description or _describe(reduced, names, x_label, show)
    sheet = _Sheet(key, title, description, x_label, y_label, show, floor)
    wide = _draw(reduced, names, sheet, width, 340, ends=True)
    narrow = _draw(reduced, names, replace(sheet, key=f"{key}n"), narrow_width, 300, ends=False)
    return Figure(key, title, wide, _table(reduced, names, title, x_label, show), notes, narrow)


@dataclass(frozen=True)
class _Sheet:
    """What both drawings of a chart share."""

    key: str
    title: str
    description: str
    x_label: str
    y_label: str
    show: Callable[[float], str]
    floor: float


def _reduce(series: Sequence[Series], points: Sequence[str]) -> tuple[list[Series], list[str], tuple[str, ...]]:
    groups = [(i, i) for i in range(len(points))]
    reduced = []
    for s in series:
        mean, groups = figure.grouped(s.mean, _MOST_POINTS)
        low = None if s.low is None else figure.grouped(s.low, _MOST_POINTS)[0]
        high = None if s.high is None else figure.grouped(s.high, _MOST_POINTS)[0]
        reduced.append(Series(s.label, mean, low, high))
    names = figure.group_names(points, groups)
    size = groups[0][1] - groups[0][0] + 1 if groups else 1
    notes = (f"Each point is the mean of {size} neighbouring ones.",) if size > 1 else ()
    return reduced, names, notes


def _draw(
    series: Sequence[Series], names: Sequence[str], sheet: _Sheet, width: float, height: float, *, ends: bool
) -> str:
    """The chart with names at the ends of the curves, or (for a phone) with a key below."""
    everything = [a for s in series for a in (s.mean, s.low, s.high) if a is not None]
    y_axis = axis(np.concatenate(everything) if everything else np.empty(0), floor=sheet.floor)
    height = max(height, 17 * len(series) + 70) if ends else height
    left = 14 + max(text_width(sheet.show(t)) for t in y_axis.ticks)
    room = min(160.0, max([0.0, *(text_width(clean(s.label), _NAME) for s in series)]))
    right = width - (room + 30 if ends and series else 14)
    top, bottom = 26.0, height - 44.0
    key_part, key_height = "", 0.0
    if not ends:
        items = [(series_mark(i), s.label) for i, s in enumerate(series)]
        key_part, key_height = figure.key_row(items, 4, height - 2, width - 8)
    places = _Places(left, right, top, bottom, len(names), y_axis)
    body = [_axes(places, names, sheet, width)]
    body += [_curve(places, i, s) for i, s in enumerate(series)]
    if ends:
        body.append(_end_labels(places, series, room))
    body.append(key_part)
    if not any(np.isfinite(s.mean).any() for s in series):
        body.append(figure.label((left + right) / 2, (top + bottom) / 2, "nothing was measured", "mid soft"))
    geometry = (
        f' data-hover="rows" data-plot="{c(left)} {c(top)} {c(right - left)} {c(bottom - top)}"'
        if names and series
        else ""
    )
    return figure.document(
        sheet.key,
        width,
        height + key_height,
        "".join(body),
        title=sheet.title,
        description=sheet.description,
        attributes=geometry,
    )


@dataclass(frozen=True)
class _Places:
    left: float
    right: float
    top: float
    bottom: float
    points: int
    y_axis: Axis

    def x(self, index: int) -> float:
        if self.points == 1:
            return (self.left + self.right) / 2
        return self.left + (self.right - self.left) * index / (self.points - 1)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * self.y_axis.place(value)


def _axes(places: _Places, names: Sequence[str], sheet: _Sheet, width: float) -> str:
    parts = []
    for tick in places.y_axis.ticks:
        y = places.y(tick)
        parts.append(figure.line(places.left, y, places.right, y, "hair" if tick != places.y_axis.low else "base"))
        parts.append(figure.label(places.left - 8, y + 4, sheet.show(tick), "end soft"))
    for i in tick_places(len(names), max([text_width(n) for n in names], default=0), places.right - places.left):
        parts.append(figure.line(places.x(i), places.bottom, places.x(i), places.bottom + 4, "base"))
        x = min(places.x(i), width - text_width(names[i]) / 2)
        parts.append(figure.label(x, places.bottom + 18, names[i], "mid soft"))
    parts.append(
        figure.label(
            (places.left + places.right) / 2,
            places.bottom + 36,
            shorten(sheet.x_label, places.right - places.left),
            "mid soft",
        )
    )
    parts.append(figure.label(0, 12, shorten(sheet.y_label, width), "soft"))
    return "".join(parts)


def tick_places(count: int, label_width: float, width: float) -> list[int]:
    """Which of ``count`` equally spaced points get a label: the first, then every fifth, tenth, fiftieth, …"""
    if count == 0:
        return []
    room = max(1.0, width / (label_width + 14))
    step = next(s for p in range(10) for s in (10**p, 5 * 10**p) if count / s <= room)
    return [0, *range(step - 1, count, step)] if step > 1 else list(range(count))


def _curve(places: _Places, index: int, s: Series) -> str:
    seen = [i for i in range(places.points) if not np.isnan(s.mean[i])]
    points = [f"{c(places.x(i))} {c(places.y(float(s.mean[i])))}" for i in seen]
    parts = []
    if s.low is not None and s.high is not None:
        banded = [i for i in seen if not (np.isnan(s.low[i]) or np.isnan(s.high[i]))]
        if len(banded) > 1:
            upper = [f"{c(places.x(i))} {c(places.y(float(s.high[i])))}" for i in banded]
            lower = [f"{c(places.x(i))} {c(places.y(float(s.low[i])))}" for i in reversed(banded)]
            parts.append(f'<path class="band" d="M{"L".join(upper + lower)}z"/>')
        elif banded:
            x = places.x(banded[0])
            ends = [places.y(float(side[banded[0]])) for side in (s.low, s.high)]
            parts.append(figure.line(x, ends[0], x, ends[1], "whisker"))
    if len(points) > 1:
        parts.append(f'<path class="curve" d="M{"L".join(points)}"/>')
    if points:
        parts.append(f'<g transform="translate({points[-1]})">{series_mark(index)}</g>')
    dashes = ("", " dash", " dots")[(index - 1) // (SERIES - 1) % 3] if index else " dash"
    return f'<g class="series {series_class(index)}{dashes}" data-series="{index}">{"".join(parts)}</g>'


def _end_labels(places: _Places, series: Sequence[Series], room: float) -> str:
    """Each curve's name beside its last point, moved apart where they would overlap."""
    wanted = []
    for i, s in enumerate(series):
        seen = np.flatnonzero(~np.isnan(s.mean))
        last = int(seen[-1]) if seen.size else places.points - 1
        wanted.append((places.y(float(s.mean[last])) if seen.size else places.bottom, i))
    order = sorted(wanted)
    heights = _spread([y for y, _ in order], 17.0, places.top, places.bottom)
    parts = []
    for (y, i), at in zip(order, heights, strict=True):
        text = figure.label(places.right + 24, at + 4, shorten(series[i].label, room, _NAME), "name")
        leader = f'<path class="lead-line" d="M{c(places.right + 7)} {c(y)}L{c(places.right + 21)} {c(at)}"/>'
        parts.append(f'<g class="{series_class(i)}" data-series="{i}">{leader}{text}</g>')
    return "".join(parts)


def _spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Increasing places close to ``wanted`` (increasing), at least ``gap`` apart, inside [low, high] if they fit.

    Neighbours that touch become one block, centred on the mean of what its members want.
    """
    blocks: list[tuple[float, int]] = []  # (sum of wanted minus its own offset, members)
    for index, y in enumerate(wanted):
        total, size = y - index * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / size:
            before, members = blocks.pop()
            total, size = total + before, size + members
        blocks.append((total, size))
    starts = [total / size for total, size in blocks for _ in range(size)]
    room = high - (len(wanted) - 1) * gap
    return [max(low, min(start, room)) + i * gap for i, start in enumerate(starts)]


def _table(
    series: Sequence[Series], names: Sequence[str], title: str, x_label: str, show: Callable[[float], str]
) -> Table:
    def cell(s: Series, i: int) -> str:
        text = show(float(s.mean[i]))
        if s.low is None or s.high is None or np.isnan(s.mean[i]):
            return text
        return f"{text} ({show(float(s.low[i]))} to {show(float(s.high[i]))})"

    rows = tuple((name, *(cell(s, i) for s in series)) for i, name in enumerate(names))
    return Table(title, (x_label, *(s.label for s in series)), rows)


def _describe(series: Sequence[Series], names: Sequence[str], x_label: str, show: Callable[[float], str]) -> str:
    lasts = []
    for s in series:
        seen = s.mean[~np.isnan(s.mean)]
        lasts.append(f"{s.label} ends at {show(float(seen[-1]))}" if seen.size else f"{s.label} has no value")
    return f"{len(series)} curves over {len(names)} points ({x_label}). " + "; ".join(lasts) + "."
