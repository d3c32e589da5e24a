"""Sums of one tensor under way: weighted, without overflow where the mean has none, and exact where all agree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pluribus.core import dtypes
from pluribus.core.contributions import TensorSpec
from pluribus.core.dtypes import Array, DType
from pluribus.core.kernels import Kernels

_TILE = 1 << 16  # items that are raised, merged or rounded at once: never a second model
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

    def raise_to(self, exponent: int) -> None:
        """Hold the sums under a larger exponent, in their place."""
        if self.exponent not in (None, exponent):
            np.ldexp(self.sums, self.exponent - exponent, out=self.sums)
        self.exponent = exponent

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

    def absorb(self, other: Tally) -> None:
        """Add another's sums, which stay as they are."""
        if other.exponent is None:
            return
        if self.exponent is None:
            np.copyto(self.sums, other.sums)
            self.exponent, self.started = other.exponent, other.started
            self.first, self.agreed = (None if a is None else a.copy() for a in (other.first, other.agreed))
            return
        self.raise_to(max(self.exponent, other.exponent))
        for place in _places(len(self.sums)):
            self._put(place, other.sums[place], other.exponent)
        if self.first is not None and self.agreed is not None:
            assert other.first is not None
            assert other.agreed is not None
            self.agreed &= other.agreed & (self.first == other.first)
            self.first = self.first.astype(np.result_type(self.first, other.first))

    def _put(self, place: slice, values: Array, exponent: int) -> None:
        """Add ``values * 2**exponent`` to a range, and make room first where the sums would overflow."""
        while True:
            assert self.exponent is not None
            with np.errstate(over="ignore"):
                fresh = self.sums[place] + np.ldexp(values, exponent - self.exponent)
            if np.isfinite(fresh).all():
                self.sums[place] = fresh
                return
            self.raise_to(self.exponent + _STEP)

    def store(self, given: Array, out: Array, dtype: DType) -> None:
        """Write the mean under the weights that were given into stored items, which may lie in the sums' own memory."""
        if self.exponent is None:  # a tensor of no items: weights that are all zero were refused
            return
        total = float(np.ldexp(given, -self.exponent).sum())
        largest = np.finfo(np.float64).max
        for place in _places(out.size):
            with np.errstate(over="ignore"):  # a mean of the largest float64 may round up
                mean = self.sums[place.start * dtype.per_item : place.stop * dtype.per_item] / total
            np.clip(mean, -largest, largest, out=mean)
            mean += 0.0  # no negative zero
            dtypes.store(mean, out[place], dtype)
            if self.first is not None and self.agreed is not None:
                np.copyto(out[place], self.first[place], where=self.agreed[place], casting="unsafe")

    def become(self, given: Array, spec: TensorSpec) -> Array:
        """Turn the sums into the mean's stored items, tile by tile in their own memory, and give back what is left.

        No item is longer than its sums, so what is written never reaches what is still to be read.
        """
        size = spec.size * spec.dtype.storage.itemsize
        self.store(given, self.sums.view(np.uint8)[:size].view(spec.dtype.storage), spec.dtype)
        self.sums.resize(-(-size // 8), refcheck=False)  # nobody else holds them
        return self.sums.view(np.uint8)[:size].view(spec.dtype.storage).reshape(spec.shape)


def _places(size: int) -> Iterator[slice]:
    return (slice(start, min(start + _TILE, size)) for start in range(0, size, _TILE))


def add(tally: Tally, place: slice, view: Array, weight: float, kernel: Kernels) -> None:
    """Add ``weight * view`` to a range of a tally; ``view`` is finite, and ``weight`` positive."""
    own = math.frexp(weight)[1] - 1
    if tally.exponent is None or tally.exponent < own:
        tally.raise_to(own)
    while True:
        assert tally.exponent is not None
        with np.errstate(over="ignore"):
            fresh = np.multiply(view, math.ldexp(weight, -tally.exponent), dtype=np.float64)
            fresh += tally.sums[place]
        if kernel.finite(fresh):
            break
        tally.raise_to(tally.exponent + _STEP)
    tally.sums[place] = fresh
