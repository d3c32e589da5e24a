"""Bulyan: choose by Krum again and again, then average around the median at each coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ANONYMOUS, SELECTING
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import Chain, CoordinateRule, PreRule, PresetRule, chain, expect_gram, register, whole_number
from pluribus.rules.coordinates.around import MeanAround
from pluribus.rules.coordinates.median import Median
from pluribus.rules.robust.krum import neighbour_scores

SOURCE = "El Mhamdi, Guerraoui and Rouault, The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018"


def repeated_krum(squared_distances: Array, f: int) -> Array:
    """Positions of the n - 2f chosen one by one by Krum among those not chosen yet, in increasing order.

    Scores are computed anew on what is left after each choice. When one neighbour counts the two nearest to each other
    score alike; ties go to whoever is nearer to all that are left, then to the earlier contributor.

    Parameters
    ----------
    squared_distances
        Shape (n, n).
    f
        How many contributors may be arbitrary.
    """
    n = len(squared_distances)
    left = np.arange(n)
    for _ in range(n - 2 * f):
        among = squared_distances[np.ix_(left, left)]
        left = np.delete(left, np.lexsort((among.sum(axis=1), neighbour_scores(among, f)))[0])
    return np.setdiff1d(np.arange(n), left)


@register
@dataclass(frozen=True)
class BulyanSelection(PreRule):
    """Bulyan's first stage: keep n - 2f contributions, chosen one by one by Krum on those not chosen yet.

    Scores are computed anew after each choice, as published (an implementation in the field never updates them).
    Given weights go with the chosen; they do not help to be chosen. Alone it is followed by the mean.
    Compared with a direct computation of the published procedure.

    Parameters
    ----------
    f
        How many contributors may be arbitrary; n >= 4f + 3.
    """

    f: int

    name = "bulyan_selection"
    reads = Reads.GRAM
    merges = False
    laws = SELECTING | {"monotone weight", "breakdown"}
    formula = "n-2f times: take Krum's choice out of the rest; those taken"
    source = SOURCE
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("BulyanSelection", "f", self.f, 0)

    @property
    def least(self) -> int:
        """The published condition."""
        return 4 * self.f + 3

    def leaves(self, n: int) -> int:
        """How many are chosen."""
        return n - 2 * self.f

    def tolerates(self, n: int) -> int:
        """One less than f: when the last is chosen f - 1 neighbours count, and f attackers in one place are as many."""
        return max(self.f - 1, min(self.f, 1))

    def breakdown_factor(self, n: int, d: int) -> float:
        """Whoever is chosen scores no worse than an honest one, so it has an honest neighbour within this factor."""
        return float(np.sqrt(max(n - self.f - 2, 1)) + 1)

    def mix(self, relation: Relation | None, weights: Array) -> Array:
        """A one in each row, for each contribution that is chosen."""
        gram = expect_gram(relation)
        chosen = repeated_krum(gram.squared_distances[: gram.n, : gram.n], self.f)
        mixing = np.zeros((len(chosen), len(gram.gram)))
        mixing[np.arange(len(chosen)), chosen] = 1.0
        return mixing

    def carry(self, mixing: Array, weights: Array) -> Array:
        """The weights of the chosen, of sum one."""
        kept = mixing[:, : len(weights)] @ weights
        return np.asarray(kept / kept.sum())


@dataclass(frozen=True)
class _AroundMedian(MeanAround):
    """Bulyan's second stage: the mean of the k - 2f of k values that are nearest to their median."""

    f: int

    def centre(self) -> CoordinateRule:
        return Median()

    def kept(self, n: int) -> int:
        return n - 2 * self.f


@register
@dataclass(frozen=True)
class Bulyan(PresetRule):
    """Choose theta = n - 2f by repeated Krum; at each coordinate, average the theta - 2f nearest to their median.

    A chain: ``BulyanSelection(f)``, then a mean around the median. No coordinate of an attacker who was chosen gets
    farther from the honest ones than they are from each other. With unequal weights median, nearness and mean are by
    weight among the chosen. Compared with a direct computation of the published procedure.

    Parameters
    ----------
    f
        How many contributors may be arbitrary; n >= 4f + 3.
    """

    f: int

    name = "bulyan"
    reads = Reads.COORDINATES
    laws = ANONYMOUS | {"unanimity", "translation", "scale", "betweenness", "breakdown"}
    formula = "z_k = mean of the n-4f of the n-2f values chosen by repeated Krum that are nearest to their median"
    source = SOURCE
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("Bulyan", "f", self.f, 0)

    @property
    def least(self) -> int:
        """The published condition."""
        return 4 * self.f + 3

    def chained(self) -> Chain:
        """The two stages."""
        return chain(BulyanSelection(self.f), _AroundMedian(self.f))

    def tolerates(self, n: int) -> int:
        """Up to f."""
        return self.f

    def breakdown_factor(self, n: int, d: int) -> float:
        """At each coordinate the median is among the honest, and who is averaged no farther from it than they are."""
        return 2 * float(np.sqrt(d))
