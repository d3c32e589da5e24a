"""Bucketing, a pre-rule: means of a few contributors, drawn together at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import AVERAGE, EQUIVARIANT
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import PreRule, register, whole_number


@register
@dataclass(frozen=True)
class Bucketing(PreRule):
    """Replace the contributions by weighted means of s of them at a time, drawn together by a random permutation.

    Put it ahead of a robust rule: buckets differ less than contributions do. Of n contributors ``ceil(n / s)`` buckets
    come; the last may hold fewer. An attacker spoils one bucket, so a following rule that withstands f of the buckets
    withstands f attackers. A bucket's weight is the sum of its members' weights, so alone (followed by the mean) it
    changes nothing. Compared with byzfl's formula under the same permutation.

    Parameters
    ----------
    s
        Contributors in a bucket, at least 1 (which only permutes).
    seed
        Of the permutation; give another one each round.
    """

    s: int = 2
    seed: int = 0

    name = "bucketing"
    reads = Reads.NOTHING
    laws = AVERAGE | EQUIVARIANT | {"betweenness", "monotone weight", "differentiable"}
    formula = "y_b = weighted mean of x_p(bs), ..., x_p(bs + s - 1), p a random permutation"
    source = "Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022"

    def __post_init__(self) -> None:
        whole_number("Bucketing", "s", self.s, 1)
        whole_number("Bucketing", "seed", self.seed, 0)

    def leaves(self, n: int) -> int:
        """Number of buckets."""
        return -(-n // self.s)

    def mix(self, relation: Relation | None, weights: Array) -> Array:
        """A row of weights for each bucket, of sum one; shape (ceil(n / s), n)."""
        n = len(weights)
        order = np.random.default_rng(self.seed).permutation(n)
        mixing = np.zeros((self.leaves(n), n))
        mixing[np.arange(n) // min(self.s, n), order] = weights[order]
        return np.asarray(mixing / mixing.sum(axis=1, keepdims=True))

    def carry(self, mixing: Array, weights: Array) -> Array:
        """The sum of the weights in each bucket."""
        return np.asarray((mixing > 0) @ weights)
