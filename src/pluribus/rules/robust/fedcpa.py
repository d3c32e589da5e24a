"""FedCPA: trust those whose most and least important parameters agree with everybody's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pluribus.core import passes
from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.passes import Active
from pluribus.core.relations import Reads
from pluribus.core.rule import CompositeRule, Execute, register

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome

PREVIOUS = "previous"  # name of the extra row that `previous=` is
_TABLE = 1 << 17  # numbers of a table of all rows over the coordinates of a block
_BITS = 63  # of a float64 without its sign
_DIGIT = 11  # bits that are found in a pass
_FEW = 1 << 10  # numbers a row that are kept and sorted
_ENDS = (0.01, 0.99)  # what the lowest and the highest score count as before the logit, as published
_EQUAL = 1e-9  # scores that differ by less are equal
_ORDINARY = 2.0**-100, 2.0**100  # weights of which fourth powers, and their sums, are numbers


def unit(active: Active) -> float:
    """One; a power of two where weights are so large or small that products of importances would be no numbers."""
    greatest = passes.largest(active)
    return 1.0 if _ORDINARY[0] <= greatest <= _ORDINARY[1] else passes.unit_of(greatest)


def importances(active: Active, views: list[Array], one: float = 1.0) -> Array:
    """|(w_i - g) w_i| of each model, and of the last global step if its start is known; shape (n or n + 1, T).

    In units of ``one`` squared.
    """
    n, extras = len(active.rows), active.data.extras
    last = [n + extras.index(PREVIOUS)] if PREVIOUS in extras else []
    current = views[n + extras.index("reference")]
    after = np.stack([*views[:n], *([current] if last else [])])
    before = np.stack([*([current] * n), *(views[k] for k in last)])
    if one != 1.0:
        after *= 1 / one
        before *= 1 / one
    np.subtract(after, before, out=before)
    before *= after
    return np.abs(before, out=before)


def thresholds(active: Active, count: int, one: float = 1.0) -> tuple[Array, Array]:
    """The ``count``-th largest and smallest importance of each row, each of shape (r,).

    Positive floats are ordered as the whole numbers of the same bits. So the first `_DIGIT` bits of what is sought are
    found by counting, then the next ones among those that share these, until few are left, which are sorted: three
    passes for numbers that differ, and never more than six. What is kept between blocks does not grow with them.
    """
    digits = _Digits(active, one)
    ranks = np.array([active.data.coordinates - count, count - 1])
    places = np.tile(ranks, (digits.rows, 1))  # among those that share the bits found so far
    found = np.zeros(places.shape, dtype=np.uint64)  # these bits, as a number
    left = _BITS
    while left > 0:
        width = min(_DIGIT, left)
        counts = digits.counted(found, left, width)
        up_to = np.cumsum(counts, axis=2)
        digit = (up_to <= places[..., None]).sum(axis=2)
        here = np.take_along_axis(counts, digit[..., None], axis=2)[..., 0]
        places -= np.take_along_axis(up_to, digit[..., None], axis=2)[..., 0] - here
        found = (found << np.uint64(width)) | digit.astype(np.uint64)
        left -= width
        if left and here.max() <= _FEW:
            return digits.picked(found, left, places)
    largest, smallest = found.view(np.float64).T
    return largest, smallest


@dataclass(frozen=True)
class _Digits:
    """The bits of all importances, block by block."""

    active: Active
    one: float

    @property
    def rows(self) -> int:
        """How many importances there are of each coordinate."""
        return len(self.active.rows) + (PREVIOUS in self.active.data.extras)

    def counted(self, found: Array, left: int, width: int) -> Array:
        """How many numbers have which next ``width`` bits after those found, shape (r, 2, 2^width)."""
        anew = left == _BITS  # nothing is found yet: one count serves both
        sought, size = (1 if anew else 2), 1 << width
        total, lock = np.zeros((self.rows, sought, size), dtype=np.int64), threading.Lock()

        def part(views: list[Array]) -> bool:
            bits = self._bits(views)
            if bits is None:
                return False
            for k in range(sought):
                row, mine = (np.arange(self.rows)[:, None], bits) if anew else _among(bits, found[:, k], left)
                digit = ((mine >> np.uint64(left - width)) & np.uint64(size - 1)).view(np.int64)
                digit += row * size
                counts = np.bincount(digit.ravel(), minlength=self.rows * size).reshape(self.rows, size)
                with lock:  # whole numbers: the order of blocks does not matter
                    total[:, k] += counts
            return True

        if not all(blocks(self.active, part)):
            passes.blame(self.active)
            raise AssertionError("in a unit of their own, finite weights have finite squares")
        return np.broadcast_to(total, (self.rows, 2, size))

    def picked(self, found: Array, left: int, places: Array) -> tuple[Array, Array]:
        """The numbers at given places among those whose bits begin as found."""

        def part(views: list[Array]) -> list[tuple[Array, Array]]:
            bits = self._bits(views)
            assert bits is not None, "they were counted"
            return [_among(bits, found[:, k], left) for k in (0, 1)]

        parts = list(blocks(self.active, part))
        values = []
        for k in (0, 1):
            row, bits = (np.concatenate([own[k][j] for own in parts]) for j in (0, 1))
            values.append([np.sort(bits[row == i])[places[i, k]] for i in range(self.rows)])
        largest, smallest = np.array(values, dtype=np.uint64).view(np.float64)
        return largest, smallest

    def _bits(self, views: list[Array]) -> Array | None:
        """The importances' bits, shape (r, T); None where they are not all finite."""
        with np.errstate(invalid="ignore", over="ignore"):
            table = importances(self.active, views, self.one)
        return table.view(np.uint64) if np.isfinite(table).all() else None


def _among(bits: Array, found: Array, left: int) -> tuple[Array, Array]:
    """Rows and numbers of a table, shape (r, T), whose bits before the last ``left`` are those found for their row."""
    row, column = np.nonzero(bits >> np.uint64(left) == found[:, None])
    return row, bits[row, column]


def blocks(active: Active, part: Callable[[list[Array]], Any]) -> Iterator[Any]:
    """``part(views)`` of blocks so short that tables of all rows are small beside a small model."""
    found: Iterator[Any] = passes.over_blocks(active, part, max(_TABLE // len(active.all_rows), 1))
    return found


@dataclass(frozen=True, eq=False)
class _Shared:
    """Sums over the coordinates that two rows' index sets share, each of shape (r, r): entry ij is about row i."""

    sizes: Array
    counts: Array
    sums: Array
    squares: Array
    products: Array

    def __add__(self, other: _Shared) -> _Shared:
        return _Shared(
            self.sizes + other.sizes,
            self.counts + other.counts,
            self.sums + other.sums,
            self.squares + other.squares,
            self.products + other.products,
        )

    @property
    def agreement(self) -> Array:
        """Jaccard index of the sets plus the correlation on what they share, mapped to [0, 1]; halved."""
        union = self.sizes[:, None] + self.sizes[None, :] - self.counts
        jaccard = self.counts / np.maximum(union, 1.0)
        shared = np.maximum(self.counts, 1.0)
        spread = np.maximum(self.squares - self.sums**2 / shared, 0.0)
        common = self.products - self.sums * self.sums.T / shared
        scale = np.sqrt(spread * spread.T)
        # Sets that share nothing, or values that do not vary, are uncorrelated.
        real = scale > 1e-12 * np.sqrt(self.squares * self.squares.T)
        correlation = np.clip(np.divide(common, scale, out=np.zeros_like(common), where=real), -1.0, 1.0)
        return np.asarray(0.5 * (jaccard + 0.5 * (correlation + 1)))


def _shared(table: Array, inside: Array, about: Array) -> _Shared:
    mask = inside.astype(np.float64)
    values = (table - about[:, None]) * mask
    return _Shared(mask.sum(axis=1), mask @ mask.T, values @ mask.T, values**2 @ mask.T, values @ values.T)


def agreements(active: Active, fraction: float) -> Array:
    """Similarity of rows in their most and least important coordinates, in [0, 2], shape (r, r); five passes."""
    count = max(1, int(fraction * active.data.coordinates + 1e-9))
    one = unit(active)
    largest, smallest = thresholds(active, count, one)

    def part(views: list[Array]) -> tuple[_Shared, _Shared]:
        table = importances(active, views, one)
        return (
            _shared(table, table >= largest[:, None], largest),
            _shared(table, table <= smallest[:, None], smallest),
        )

    with passes.single_blas():
        parts = iter(blocks(active, part))
        top, bottom = next(parts)
        for more_top, more_bottom in parts:
            top, bottom = top + more_top, bottom + more_bottom
    return top.agreement + bottom.agreement


def trust(scores: Array) -> Array:
    """Weights in [0, 1] from scores: scaled to [0, 1], ``logit + 0.5``, cut to [0, 1]; all one when they are equal."""
    reach = np.ptp(scores)
    if reach <= _EQUAL * max(float(np.abs(scores).max()), 1.0):
        return np.ones(len(scores))
    scaled = (scores - scores.min()) / reach
    scaled = np.clip(scaled, *_ENDS)
    return np.asarray(np.clip(np.log(scaled / (1 - scaled)) + 0.5, 0.0, 1.0))


@register
@dataclass(frozen=True)
class FedCPA(CompositeRule):
    """Mean of model differences, weighted by how the models agree on which parameters matter most and least.

    ``reference=`` is the global model g; contributions are models w_i trained from it. The importance of a parameter
    is ``|(w_i - g) w_i|``. Two models are as similar as their sets of the most and of the least important coordinates
    overlap (Jaccard) and as the importances on what they share correlate. A model's score is its mean similarity to
    all; with ``previous=``, the global model before g, its similarity to the last global step, from there to g, is
    added, as published (a server gives it from the second round on). Scores, scaled to [0, 1], go through
    ``logit + 0.5`` cut to [0, 1], which leaves out
    the lowest; the result is ``g + sum_i w_i a_i (w_i - g) / sum of w_i over a_i > 0``.

    Whoever ties with the last one in a set is in it too, so that the order of coordinates does not matter. Where the
    published code has no number it stops or gives NaN: correlations of constants or of nothing count as none, and
    equal scores give equal weights. It takes matrices and kernels alone; this takes all parameters. Results equal
    those of a direct computation in R^d with the authors' formulas. Five passes and a sum.

    Parameters
    ----------
    fraction
        The share of the parameters in each set, in (0, 0.5].
    """

    fraction: float = 0.01

    name = "fedcpa"
    reads = Reads.COORDINATES
    takes_tensors = True
    numbers = (364,)
    laws = frozenset({"anonymity", "anonymity at ties", "unanimity", "null", "scale", "deterministic"})
    formula = (
        "g + mean of a_i (w_i - g), a_i by Jaccard and correlation of the sets of largest and smallest |(w_i - g) w_i|"
    )
    source = "Han et al., Towards Attack-Tolerant Federated Learning via Critical Parameter Analysis, ICCV 2023"
    uses_reference = True
    needs_reference = "the global model that all were trained from"
    uses_previous = True
    of_models = True
    example = (("fraction", 0.4),)

    def __post_init__(self) -> None:
        good = isinstance(self.fraction, (int, float)) and not isinstance(self.fraction, bool)
        if not good or not 0 < self.fraction <= 0.5:
            raise RuleError(f"FedCPA: fraction is a share of the parameters, in (0, 0.5], not {self.fraction!r}")

    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """Agreement, trust, and one weighted sum."""
        from pluribus.core.execution import Outcome, refuse_unreadable

        refuse_unreadable(active.data, "models")
        n = len(active.rows)
        similar = (
            agreements(active, self.fraction) if active.data.coordinates else np.zeros((n, n))
        )  # of nothing: alike
        among = similar[:n, :n].copy()
        np.fill_diagonal(among, 1.0)  # as published; the same for all
        scores = among.mean(axis=1)
        if len(similar) > n:
            scores = scores + similar[:n, n]
        trusted = trust(scores)
        coefficients = np.zeros(len(active.all_rows))
        coefficients[:n] = shares * trusted / shares[trusted > 0].sum()
        coefficients[n + active.data.extras.index("reference")] = 1 - coefficients[:n].sum()
        return Outcome(active, passes.weighted_sums(active, coefficients[None]), coefficients=coefficients)
