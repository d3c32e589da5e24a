"""SMEA: the mean of the n - f contributions whose covariance has the smallest top eigenvalue."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import SELECTING
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register, whole_number
from pluribus.rules.robust.chosen import mean_of
from pluribus.rules.robust.faba import nearest_to_mean

MOST_SUBSETS = 100_000
_BATCH_ITEMS = 1 << 18


def scatters(squared_distances: Array, subsets: Array) -> Array:
    """Inner products of each subset's rows about its own mean, shape (k, s, s), for subsets of shape (k, s)."""
    inner = squared_distances[subsets[:, :, None], subsets[:, None, :]]
    about = inner.mean(axis=2)
    return np.asarray(0.5 * (about[:, :, None] + about[:, None, :] - inner - about.mean(axis=1)[:, None, None]))


def least_covariance_subset(relation: Gram, f: int) -> Array:
    """Positions of the n - f contributions with the smallest top eigenvalue of their covariance.

    All subsets are compared. An eigenvalue is only computed where the bound ``|K|^2 / trace K`` from below leaves
    the subset a chance against the best one so far, which starts with what FABA leaves.
    """
    n = relation.n
    squared = relation.squared_distances[:n, :n]
    size = n - f
    best = np.flatnonzero(nearest_to_mean(relation, np.full(n, 1.0 / n), f))
    least = float(np.linalg.eigvalsh(scatters(squared, best[None]))[0, -1])
    everyone = itertools.combinations(range(n), size)
    step = max(1, _BATCH_ITEMS // size**2)
    while subsets := list(itertools.islice(everyone, step)):
        table = np.array(subsets)
        about = scatters(squared, table)
        trace = np.trace(about, axis1=1, axis2=2)
        bound = np.divide((about**2).sum(axis=(1, 2)), trace, out=np.zeros(len(table)), where=trace > 0)
        hopeful = np.flatnonzero(bound < least)
        if not hopeful.size:
            continue
        tops = np.linalg.eigvalsh(about[hopeful])[:, -1]
        place = int(np.argmin(tops))
        if tops[place] < least:
            least, best = float(tops[place]), table[hopeful[place]]
    return best


@register
@dataclass(frozen=True)
class SMEA(WeightRule):
    """Weighted mean of the n - f contributions whose covariance matrix has the smallest top eigenvalue.

    Exact: all C(n, f) subsets are compared through their distances, and more than 100 000 of them are refused (n = 25
    with f = 5 takes seconds); an implementation in the field takes one random power step instead of the eigenvalue.
    Given weights weigh the chosen; they do not help to be chosen. Compared with covariance matrices in R^d.

    The paper's SAFE-DSHB applies it to momenta that the workers clipped and noised; that is theirs to do.

    Parameters
    ----------
    f
        How many contributors may be arbitrary; n >= 2f + 1.
    """

    f: int

    name = "smea"
    reads = Reads.GRAM
    numbers = (365,)
    laws = SELECTING | {"monotone weight", "breakdown"}
    formula = "mean of S, S = argmin over subsets of n-f of the top eigenvalue of Cov(S)"
    source = "Allouah et al., On the Privacy-Robustness-Utility Trilemma in Distributed Learning, ICML 2023"
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("SMEA", "f", self.f, 0)

    @property
    def least(self) -> int:
        """An honest majority."""
        return 2 * self.f + 1

    def check(self, n: int) -> None:
        """Raise `RuleError` when n is too small, or gives more subsets than can be compared."""
        super().check(n)
        count = math.comb(n, self.f)
        if count > MOST_SUBSETS:
            raise RuleError(
                f"{self} would compare C({n}, {self.f}) = {count:.3g} subsets, more than {MOST_SUBSETS}; lower f, put "
                "Bucketing ahead of it, or use MDA or NNM"
            )

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights among the chosen, zero for the others."""
        gram = expect_gram(relation)
        return mean_of(least_covariance_subset(gram, self.f), weights, len(gram.gram))

    def tolerates(self, n: int) -> int:
        """Up to f."""
        return self.f

    def breakdown_factor(self, n: int, d: int) -> float:
        """A part of a set is near the set's mean when its covariance is small; honest and chosen share a part."""
        return 2 * math.sqrt(self.f / (n - 2 * self.f))
