"""Sums of one tensor under way: weighted, without overflow where the mean has none, and exact where all agree."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pluribus.core import dtypes
from pluribus.core.contributions import TensorSpec
from pluribus.core.dtypes import Array, DType
from pluribus.core.kernels import Kernels

_STEP = 64  # binary places by which sums make room: enough for 2**63 contributions of the largest float64


@dataclass(eq=False)
class Tally:
    """A weighted sum of what one tensor was: ``sums * 2**exponent``, one float64 a coordinate.

    The exponent is that of the largest weight so far, so sums are those of weights between zero and two, and dividing
    by a power of two changes no bit of them; where values near the largest float64 would overflow it grows by 64.

    ``first`` holds a counter's or mask's own items as they first came, ``agreed`` where all that came since are equal.
    """

    sums: Array
    exponent: int | None = None
    first: Array | None = None
    agreed: Array | None = None
    started: bool = False

    @classmethod
    def empty(cls, spec: TensorSpec) -> Tally:
        """Zeros for a tensor; room for items and for where they agree if it holds counters or a mask."""
        if not spec.dtype.discrete:
            return cls(np.zeros(spec.size * spec.dtype.per_item))
        return cls(
            np.zeros(spec.size), None, np.zeros(spec.size, spec.dtype.storage), np.ones(spec.size, dtype=np.bool_)
        )

    def copy(self) -> Tally:
        """One that can go on by itself."""
        first, agreed = (None if array is None else array.copy() for array in (self.first, self.agreed))
        return Tally(self.sums.copy(), self.exponent, first, agreed, self.started)

    def raised(self, exponent: int) -> Array:
        """The sums under a larger exponent."""
        return self.sums if self.exponent in (None, exponent) else np.ldexp(self.sums, self.exponent - exponent)

    def agree(self, place: slice, items: Array) -> None:
        """Note where counters or masks are what they were in the first contribution."""
        assert self.first is not None
        assert self.agreed is not None
        common = np.result_type(self.first, items)
        if common != self.first.dtype:
            self.first = self.first.astype(common)
        if self.started:
            self.agreed[place] &= self.first[place] == items
        else:
            self.first[place] = items

    def plus(self, other: Tally) -> Tally:
        """The sum of two; both stay as they are."""
        if other.exponent is None or self.exponent is None:
            return (self if other.exponent is None else other).copy()
        exponent = max(self.exponent, other.exponent)
        with np.errstate(over="ignore"):
            sums = self.raised(exponent) + other.raised(exponent)
            if not np.isfinite(sums).all():
                exponent += _STEP
                sums = self.raised(exponent) + other.raised(exponent)
        made = replace(self, sums=sums, exponent=exponent)
        if self.first is not None and self.agreed is not None:
            assert other.first is not None
            assert other.agreed is not None
            made.agreed = self.agreed & other.agreed & (self.first == other.first)
            made.first = self.first.astype(np.result_type(self.first, other.first))
        return made

    def store(self, given: Array, out: Array, dtype: DType) -> None:
        """Write the mean under the weights that were given into stored items."""
        if self.exponent is None:  # a tensor of no items: weights that are all zero were refused
            return
        total = float(np.ldexp(given, -self.exponent).sum())
        largest = np.finfo(np.float64).max
        with np.errstate(over="ignore"):  # a mean of the largest float64 may round up
            mean = np.clip(self.sums / total, -largest, largest)
        dtypes.store(mean, out, dtype)
        if self.first is not None:
            np.copyto(out, self.first, where=self.agreed, casting="unsafe")


def add(tally: Tally, place: slice, view: Array, weight: float, kernel: Kernels) -> None:
    """Add ``weight * view`` to a range of a tally; ``view`` is finite, and ``weight`` positive."""
    own = math.frexp(weight)[1] - 1
    if tally.exponent is None or tally.exponent < own:
        tally.sums, tally.exponent = tally.raised(own), own
    old, wide = tally.sums[place], view.astype(np.float64)
    fresh = np.empty(len(old))
    with np.errstate(over="ignore"):
        kernel.weighted_sum([old, wide], [1.0, math.ldexp(weight, -tally.exponent)], fresh)
        if not kernel.finite(fresh):
            tally.sums, tally.exponent = tally.raised(tally.exponent + _STEP), tally.exponent + _STEP
            kernel.weighted_sum([tally.sums[place], wide], [1.0, math.ldexp(weight, -tally.exponent)], fresh)
    tally.sums[place] = fresh
