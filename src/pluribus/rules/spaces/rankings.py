"""Consensus of rankings: Borda's, and Kemeny's exactly where there are few items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import AVERAGE
from pluribus.core.rule import PointRule, register, whole_number

MOST = 18
"""Items up to which the exact search runs: 2^18 sets of items take a tenth of a second and 40 MB."""

_TIE = 1e-9
_CELLS = 1 << 22
_FARTHEST = 1 << 31


@dataclass(frozen=True)
class _Ranking(PointRule):
    """Rules on ranks: along the last axis each item's rank, counted from ``first``; items that tie share the least.

    ``[0, 1, 1, 3]`` is a ranking from 0, in which the second and third item tie.
    """

    first: int = 0

    whole = True
    masks = False
    laws = AVERAGE

    def __post_init__(self) -> None:
        whole_number(type(self).__name__, "first", self.first, 0)
        if self.first > _FARTHEST:
            raise RuleError(f"{type(self).__name__}: first must be at most {_FARTHEST}, not {self.first!r}")

    def complaint(self, points: Array, rounding: float) -> tuple[int, str] | None:
        """Each rank must be the number of items ahead."""
        good = (points == _ahead(points).sum(axis=-1) + self.first).all(axis=-1)
        if good.all():
            return None
        bad = int(np.argmin(good))
        return bad, (
            f"is {points[bad].tolist()}, no ranking from first={self.first} on; the rank of an item is first plus the "
            "number of items ahead of it"
        )

    def draw(self, x: Array) -> Array:
        """Ranks of the numbers in a row."""
        return np.asarray(np.argsort(np.argsort(x, axis=1, kind="stable"), axis=1)) + self.first


@register
@dataclass(frozen=True)
class Borda(_Ranking):
    """Rank by the weighted mean rank; items that tie share a rank.

    Tied items of a contributor count with the mean of the ranks that they fill. It minimises the weighted sum of
    squared rank differences (Spearman) over all orders, costs n m^2, and treats all items alike.

    Parameters
    ----------
    first
        The rank of the best, 0 or 1.
    """

    name = "borda"
    formula = "rank of sum_i w_i rank_i(item)"
    source = "Borda 1784; Young, An Axiomatization of Borda's Rule, JET 1974"

    def combine(self, points: Array, weights: Array) -> Array:
        """Mean ranks, ranked."""
        mean = np.einsum("i,i...->...", weights, _middle_ranks(points))
        ahead = mean[..., None, :] < mean[..., :, None] - _TIE
        return np.asarray((ahead.sum(axis=-1) + self.first).astype(points.dtype))

    def squared_distances(self, points: Array, others: Array) -> Array:
        """Sums of squared differences of middle ranks (Spearman)."""
        return np.asarray(((_middle_ranks(points) - _middle_ranks(others)) ** 2).sum(axis=-1))


@register
@dataclass(frozen=True)
class Kemeny(_Ranking):
    """The order with the least weighted number of disagreements about pairs of items, exactly.

    By dynamic programming over sets of items, which takes 2^m m steps: up to 18 items. Of several best orders the one
    that puts the item with the smallest number first, and so on. The result never ties items; a contributor's ties
    count for neither order.

    Parameters
    ----------
    first
        The rank of the best, 0 or 1.
    """

    name = "kemeny"
    formula = "argmin over orders of sum_i w_i #{pairs that they order otherwise}"
    source = "Kemeny 1959; Davenport and Kalagnanam, AAAI 2004; Held and Karp 1962 for the recursion"

    def combine(self, points: Array, weights: Array) -> Array:
        """Search all sets of items that may come first."""
        items = points.shape[-1]
        if items > MOST:
            raise RuleError(
                f"{self}: {items} items are more than an exact search can order ({MOST}); use Borda, whose order is "
                "near, or order the strongest items only"
            )
        prefer = np.einsum("i,i...->...", weights, _ahead(points).astype(np.float64))
        ranks = np.empty(points.shape[1:], points.dtype)
        step = max(1, _CELLS // ((1 << items) * max(items, 1)))
        for start in range(0, len(ranks), step):
            ranks[start : start + step] = _best_orders(prefer[start : start + step]) + self.first
        return ranks

    def squared_distances(self, points: Array, others: Array) -> Array:
        """Squared numbers of pairs that are ordered otherwise (Kendall), a tie against an order being half a pair."""
        one, other = (_ahead(p).astype(float) - _ahead(p).swapaxes(-1, -2) for p in (points, others))
        return np.asarray((np.abs(one - other).sum(axis=(-1, -2)) / 4) ** 2)


def _ahead(ranks: Array) -> Array:
    """Whether item b is ahead of item a: shape (..., items a, items b)."""
    return np.asarray(ranks[..., None, :] < ranks[..., :, None])


def _middle_ranks(ranks: Array) -> Array:
    """The mean of the ranks that tied items fill, from 0."""
    ahead = _ahead(ranks)
    return np.asarray((ahead.sum(axis=-1) + (ranks.shape[-1] - 1 - ahead.swapaxes(-1, -2).sum(axis=-1))) / 2)


def _best_orders(prefer: Array) -> Array:
    """Ranks from 0 of the best orders, shape (m, items).

    ``prefer[:, a, b]`` is the weight of those who put b ahead of a.
    """
    many, items = prefer.shape[:2]
    sets = 1 << items
    # costs[j][S]: what it costs to put j ahead of all of S, as those who prefer a member of S to j have it.
    costs = np.zeros((items, many, sets))
    for j in range(items):
        for k in range(items):
            half = 1 << k
            costs[j, :, half : 2 * half] = costs[j, :, :half] + prefer[:, j, k, None]
    size_of = np.array([int(s).bit_count() for s in range(sets)])
    order = np.argsort(size_of, kind="stable")
    bounds = np.searchsorted(size_of[order], np.arange(items + 2))
    # least[S]: what it costs to order S at best. The first of S is put ahead of the rest.
    least = np.full((many, sets), np.inf)
    least[:, 0] = 0.0
    for size in range(1, items + 1):
        layer = order[bounds[size] : bounds[size + 1]]
        for j in range(items):
            having = layer[(layer >> j) & 1 == 1]
            rest = having ^ (1 << j)
            least[:, having] = np.minimum(least[:, having], least[:, rest] + costs[j][:, rest])
    return _traced(least, costs)


def _traced(least: Array, costs: Array) -> Array:
    """Ranks of the best orders: at each place the item with the smallest number that leads to one."""
    items, many, sets = costs.shape
    ranks = np.empty((many, items), np.int64)
    left, rows = np.full(many, sets - 1), np.arange(many)
    for place in range(items):
        chosen = np.full(many, -1)
        for j in reversed(range(items)):
            has = (left >> j) & 1 == 1
            rest = np.where(has, left ^ (1 << j), 0)
            good = has & (least[rows, rest] + costs[j][rows, rest] <= least[rows, left] + _TIE)
            chosen = np.where(good, j, chosen)
        ranks[rows, chosen] = place
        left = left ^ (1 << chosen)
    return ranks
