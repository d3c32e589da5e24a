"""Minimum-diameter averaging: the mean of the n - f contributions that lie closest together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import SELECTING
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register, whole_number
from pluribus.rules.robust.chosen import mean_of

LARGEST_F = 30  # 1.4656^30 < 1e5 nodes of the search, which then takes seconds; each further 6 take ten times as long


def small_cover(far: list[int], alive: int, budget: int) -> int | None:
    """At most ``budget`` vertices that touch every edge, as a bit mask; None when there are none.

    Branches on the vertex with most edges: it is in the cover, or all its neighbours are. Only vertices with three
    or more edges branch (leaves and cycles are settled at once), so the tree has less than 1.4656^budget nodes.

    Parameters
    ----------
    far
        For each vertex the bit mask of its neighbours.
    alive
        The vertices that count.
    budget
        Largest size.
    """
    taken = 0
    while True:
        degrees = [(far[v] & alive).bit_count() for v in _bits(alive)]
        most = max(degrees, default=0)
        if most == 0:
            return taken
        if sum(degrees) > 2 * most * budget:
            return None
        vertices = list(_bits(alive))
        if 1 in degrees:  # the neighbour of a leaf covers no less than the leaf
            chosen = far[vertices[degrees.index(1)]] & alive
        else:
            chosen = 1 << vertices[degrees.index(most)]
            if most > 2:
                neighbours = far[vertices[degrees.index(most)]] & alive
                rest = small_cover(far, alive & ~chosen, budget - 1)
                if rest is not None:
                    return taken | chosen | rest
                if most > budget:
                    return None
                rest = small_cover(far, alive & ~chosen & ~neighbours, budget - most)
                return None if rest is None else taken | neighbours | rest
        taken, alive, budget = taken | chosen, alive & ~chosen, budget - 1
        if budget < 0:
            return None


def _bits(mask: int) -> list[int]:
    return [k for k in range(mask.bit_length()) if mask >> k & 1]


def closest_subset(distances: Array, size: int) -> list[int]:
    """The subset of a size with the least diameter, as increasing positions.

    A subset has no two members farther apart than t exactly when the others cover all pairs farther apart than t. So
    the least diameter is found by bisection over the distances. Of several subsets with that diameter (members who
    are in no extreme pair can often be exchanged) the one whose distances, from the largest down, are smallest is
    taken, which does not depend on the order of the contributors.

    Parameters
    ----------
    distances
        Any increasing function of the distances, shape (n, n).
    size
        Of the subset.
    """
    n = len(distances)
    everyone, f = (1 << n) - 1, n - size
    i, j = np.triu_indices(n, 1)
    order = np.argsort(-distances[i, j], kind="stable")
    values = distances[i, j][order]
    pairs = list(zip(i[order].tolist(), j[order].tolist(), strict=True))

    def beyond(count: int) -> list[int]:
        far = [0] * n
        for a, b in pairs[:count]:
            far[a] |= 1 << b
            far[b] |= 1 << a
        return far

    # The most pairs, from the farthest on, that can be done without; all of one distance together.
    bounds = np.append(np.flatnonzero(np.diff(values, prepend=np.inf)), len(values)).tolist()
    low, high, cover = 0, len(bounds) - 1, 0
    while low < high:
        middle = (low + high + 1) // 2
        found = small_cover(beyond(bounds[middle]), everyone, f)
        if found is None:
            high = middle - 1
        else:
            low, cover = middle, found
    far, kept, needed = beyond(bounds[low]), everyone & ~cover, 0
    for a, b in pairs[bounds[low] :]:
        pair = 1 << a | 1 << b
        if needed & pair == pair:
            continue
        far[a] |= 1 << b
        far[b] |= 1 << a
        if kept & pair != pair:
            continue
        other = _cover_without(far, everyone, f, needed)
        if other is not None:
            kept = everyone & ~other
        else:
            needed |= pair
            far[a] &= ~(1 << b)
            far[b] &= ~(1 << a)
            if needed.bit_count() >= size:
                break
    return _bits(kept)[:size]


def _cover_without(far: list[int], everyone: int, budget: int, needed: int) -> int | None:
    """A cover in which none of the ``needed`` vertices is."""
    forced = 0
    for v in _bits(needed):
        forced |= far[v]
    left = budget - forced.bit_count()
    if forced & needed or left < 0:
        return None
    rest = small_cover(far, everyone & ~forced & ~needed, left)
    return None if rest is None else forced | rest


@register
@dataclass(frozen=True)
class MDA(WeightRule):
    """Weighted mean of the n - f contributions with the least diameter, the largest distance between two of them.

    Exact: it asks who could be left out so that no two are farther apart than t, a vertex cover of at most f, and
    halves the range of t. That takes milliseconds at n = 50, f = 10, where there are 1e10 subsets, but it stays
    exponential in f. Of several subsets with the least diameter it takes the one whose next largest distances are
    smallest. Given weights weigh the chosen; they do not help to be chosen. Compared with trying all subsets.

    Parameters
    ----------
    f
        How many contributors may be arbitrary, at most 30; n >= 2f + 1.
    """

    f: int

    name = "mda"
    reads = Reads.GRAM
    laws = SELECTING | {"monotone weight", "breakdown"}
    formula = "mean of S, S = argmin over subsets of n-f of max |x_i - x_j| in S"
    source = "El Mhamdi et al., Genuinely Distributed Byzantine Machine Learning, PODC 2020; Rousseeuw 1985"
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("MDA", "f", self.f, 0)
        if self.f > LARGEST_F:
            raise RuleError(
                f"MDA: the search is exponential in f, so f is at most {LARGEST_F}, not {self.f}; MultiKrum, NNM or "
                "GeometricMedian take any f"
            )

    @property
    def least(self) -> int:
        """An honest majority."""
        return 2 * self.f + 1

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights among the chosen, zero for the others."""
        gram = expect_gram(relation)
        chosen = closest_subset(gram.squared_distances[: gram.n, : gram.n], gram.n - self.f)
        return mean_of(np.array(chosen), weights, len(gram.gram))

    def tolerates(self, n: int) -> int:
        """Up to f."""
        return self.f

    def breakdown_factor(self, n: int, d: int) -> float:
        """The chosen are no wider than the honest, and one of them is honest."""
        return 2.0
