"""From numbers to places and colours: axes with round ticks, and colour scales that one outlier does not flatten."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .palette import LEVELS, Family
from .text import number

FloatArray = NDArray[np.float64]
_LARGEST = 1e300  # differences of two larger numbers overflow


@dataclass(frozen=True)
class Axis:
    """A straight axis from ``low`` to ``high`` (``low < high``) with round ``ticks`` inside."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Where ``value`` lies, 0 at ``low`` and 1 at ``high``; what lies outside is held at the ends."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


def axis(values: NDArray[Any], *, count: int = 5, zero: bool = False, floor: float = -math.inf) -> Axis:
    """An axis over the finite ``values``, widened to round ticks, about ``count`` of them.

    ``zero`` makes it include zero; ``floor`` is a number below which it never goes (0 for shares). No finite value
    at all gives 0 to 1; one value alone gets room around it.
    """
    finite = np.asarray(values, dtype=np.float64)
    finite = np.clip(finite[np.isfinite(finite)], -_LARGEST, _LARGEST)
    if zero:
        finite = np.append(finite, 0.0)
    if finite.size == 0:
        finite = np.array([0.0, 1.0])
    low, high = float(finite.min()), float(finite.max())
    if high - low <= 1e-9 * max(abs(low), abs(high)) or high - low < 1e-290:
        room = 0.5 * max(abs(low), 1e-3) if low else 1.0
        low, high = (low - room if low < 0 or not zero else low), (high + room if high >= 0 else high)
    step = _round_step((high - low) / max(count, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    first = max(first, math.ceil(floor / step - 1e-9)) if math.isfinite(floor) else first
    last = max(last, first + 1)
    return Axis(first * step, last * step, tuple(i * step for i in range(first, last + 1)))


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5, 10 times a power of ten that is not below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10, 20) if m * power >= rough * (1 - 1e-9))


@dataclass(frozen=True)
class ColourScale:
    """How values become one of ``LEVELS[family]`` colours.

    ``knots`` (increasing) lie at ``places`` in [0, 1], straight lines between them (between their logarithms if
    ``log``); what lies outside has the colour of the end. ``note`` says it to the reader.
    """

    family: Family
    knots: tuple[float, ...]
    places: tuple[float, ...]
    log: bool = False
    note: str = ""

    def levels(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Level of each value, the same shape; -1 where the value is NaN."""
        values = np.asarray(values, dtype=np.float64)
        knots = np.asarray(self.knots)
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                places = np.interp(np.log10(np.maximum(values, 0)), np.log10(knots), self.places)
        else:
            places = np.interp(values, knots, self.places)
        count = LEVELS[self.family]
        missing = np.isnan(values)
        levels = np.minimum(np.where(missing, 0.0, places) * count, count - 1).astype(np.int64)
        return np.where(missing, -1, levels)

    def value_at(self, place: float) -> float:
        """The value that lies at ``place`` in [0, 1], for the legend; of many knots the last up to there."""
        if len(self.knots) > 3:
            return self.knots[max(0, int(np.searchsorted(self.places, place, side="right")) - 1)]
        if self.log:
            return float(10.0 ** np.interp(place, self.places, np.log10(self.knots)))
        return float(np.interp(place, self.places, self.knots))


def linear_scale(values: NDArray[Any]) -> ColourScale:
    """From zero (or the lowest value, if some are negative) straight to the highest finite value."""
    finite = _finite(values)
    low = min(0.0, float(finite.min(initial=0.0)))
    high = float(finite.max(initial=low))
    return ColourScale("q", (low, high if high > low else low + 1.0), (0.0, 1.0))


def diverging_scale(values: NDArray[Any], *, limit: float | None = None) -> ColourScale:
    """Zero in the middle, the largest magnitude (or ``limit``) at both ends."""
    reach = float(np.abs(_finite(values)).max(initial=0.0)) if limit is None else limit
    reach = reach if reach > 0 else 1.0
    return ColourScale("d", (-reach, 0.0, reach), (0.0, 0.5, 1.0))


def robust_scale(values: NDArray[Any], *, show: Callable[[float], str] = number) -> ColourScale:
    """A sequential scale for non-negative values among which some may be gigantic.

    Straight while the largest is at most 10 times the smallest positive value, logarithmic up to 1,000 times.
    Beyond, a value's place is the mean of its rank and of the place of its logarithm: one value of 1e12, or a third
    of them, leaves the others about half of the colours, and a gap between the groups stays a gap. Infinite values
    have the last colour.
    """
    finite = _finite(values)
    positive = finite[finite > 0]
    if positive.size == 0:
        return ColourScale("q", (0.0, 1.0), (0.0, 1.0))
    low, high = float(positive.min()), float(positive.max())
    if high <= 10 * low:
        return ColourScale("q", (0.0 if high > 2 * low else low * 0.8, high), (0.0, 1.0))
    if high <= 1e3 * low:
        note = f"The colours follow the logarithm of the value, from {show(low)} to {show(high)}."
        return ColourScale("q", (low, high), (0.0, 1.0), log=True, note=note)
    knots, places = _ranks_and_logarithms(positive)
    quarter, half = (float(np.quantile(positive, q, method="nearest")) for q in (0.25, 0.5))
    note = (
        "The values differ by more than a thousand times: the colours follow their rank and their logarithm in "
        f"equal parts. A quarter lie below {show(quarter)}, half below {show(half)}; the largest is {show(high)}."
    )
    return ColourScale("q", knots, places, note=note)


def _ranks_and_logarithms(positive: FloatArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Knots at 65 quantiles (equal ones joined at the middle of their ranks) and their places, 0 to 1."""
    shares = np.linspace(0.0, 1.0, 65)
    quantiles = np.quantile(positive, shares, method="nearest")
    knots, inverse = np.unique(quantiles, return_inverse=True)
    ranks = np.bincount(inverse, weights=shares) / np.bincount(inverse)
    ranks[0], ranks[-1] = 0.0, 1.0
    logarithms = np.log10(knots)
    places = (ranks + (logarithms - logarithms[0]) / (logarithms[-1] - logarithms[0])) / 2
    return tuple(knots.tolist()), tuple(places.tolist())


def _finite(values: NDArray[Any]) -> FloatArray:
    flat = np.asarray(values, dtype=np.float64).ravel()
    return np.clip(flat[np.isfinite(flat)], -_LARGEST, _LARGEST)
