"""FedCPA: trust those whose most and least important parameters agree with everybody's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pluribus.core import passes
from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.passes import Active
from pluribus.core.relations import Reads
from pluribus.core.rule import CompositeRule, Execute, register

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome

PREVIOUS = "previous"  # name of an extra row: the global model before the reference
_SHIFT = 49  # the upper bits of a positive float64: 2^14 bins, eight an octave
_BINS = 1 << (63 - _SHIFT)
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
    views = views if one == 1.0 else [view * (1 / one) for view in views]
    current = views[n + extras.index("reference")]
    steps = [(view, current) for view in views[:n]]
    if PREVIOUS in extras:
        steps.append((current, views[n + extras.index(PREVIOUS)]))
    return np.stack([np.abs((after - before) * after) for after, before in steps])


def thresholds(active: Active, count: int, one: float = 1.0) -> tuple[Array, Array]:
    """The ``count``-th largest and smallest importance of each row, each of shape (r,), in two passes."""

    def binned(views: list[Array]) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            table = importances(active, views, one)
        if not np.isfinite(table).all():
            return np.empty(0)
        bins = table.view(np.uint64) >> np.uint64(_SHIFT)
        return np.stack([np.bincount(row, minlength=_BINS) for row in bins.astype(np.int64)])

    counts: Array = np.zeros(1, dtype=np.int64)
    for part in passes.over_blocks(active, binned):
        if not part.size:
            passes.blame(active)
            raise AssertionError("in a unit of their own, finite weights have finite squares")
        counts = counts + part
    up_to = np.cumsum(counts, axis=1)
    total = up_to[:, -1:]
    low = (up_to < count).sum(axis=1)  # the bin of the count-th smallest
    high = (up_to <= total - count).sum(axis=1)
    edges = (np.arange(_BINS + 1, dtype=np.uint64) << np.uint64(_SHIFT)).view(np.float64)

    def between(views: list[Array]) -> list[tuple[Array, Array]]:
        table = importances(active, views, one)
        return [
            (row[(row >= edges[a]) & (row < edges[a + 1])], row[(row >= edges[b]) & (row < edges[b + 1])])
            for row, a, b in zip(table, low, high, strict=True)
        ]

    found = list(passes.over_blocks(active, between))
    rows = np.arange(len(low))
    largest, smallest = np.empty(len(rows)), np.empty(len(rows))
    for i in rows:
        lower = np.concatenate([part[i][0] for part in found])
        upper = np.concatenate([part[i][1] for part in found])
        below = up_to[i, low[i]] - counts[i, low[i]]
        above = total[i, 0] - up_to[i, high[i]]
        smallest[i] = np.partition(lower, count - below - 1)[count - below - 1]
        largest[i] = np.partition(upper, len(upper) - (count - above))[len(upper) - (count - above)]
    return largest, smallest


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
    """Similarity of rows in their most and least important coordinates, in [0, 2], shape (r, r); four passes."""
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
        parts = iter(passes.over_blocks(active, part))
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
    all; where the global model before g is an extra row called ``"previous"`` (server rules), its similarity to the
    last global step is added. Scores, scaled to [0, 1], go through ``logit + 0.5`` cut to [0, 1], which leaves out
    the lowest; the result is ``g + sum_i w_i a_i (w_i - g) / sum of w_i over a_i > 0``.

    Whoever ties with the last one in a set is in it too, so that the order of coordinates does not matter. Where the
    published code has no number it stops or gives NaN: correlations of constants or of nothing count as none, and
    equal scores give equal weights. It takes matrices and kernels alone; this takes all parameters. Results equal
    those of a direct computation in R^d with the authors' formulas. Four passes and a sum.

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
    example = (("fraction", 0.4),)

    def __post_init__(self) -> None:
        good = isinstance(self.fraction, (int, float)) and not isinstance(self.fraction, bool)
        if not good or not 0 < self.fraction <= 0.5:
            raise RuleError(f"FedCPA: fraction is a share of the parameters, in (0, 0.5], not {self.fraction!r}")

    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """Agreement, trust, and one weighted sum."""
        from pluribus.core.execution import Outcome

        n = len(active.rows)
        similar = agreements(active, self.fraction)
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
