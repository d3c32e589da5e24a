"""Model Stock: how far from the base model towards the mean, by the angle between the fine-tuned ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import EQUIVARIANT, SYMMETRIC
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register


@register
@dataclass(frozen=True)
class ModelStock(WeightRule):
    """A point between the base model and the mean of models fine-tuned from it: the nearer to the mean, the more alike.

    ``reference=`` is the base model x_0. With c the mean cosine between two differences x_i - x_0 and k models,
    ``t = k c / (1 + (k - 1) c)`` and the result is ``t mean + (1 - t) x_0``: the foot of the perpendicular from the
    centre around which such models are scattered, when they are equally long and at equal angles. A negative c, for
    which the paper says nothing and the formula leaves the segment or divides by zero, counts as zero: the base model.

    Under unequal weights mean and c are weighted, and k is the effective number ``1 / sum w^2``, which is what that
    derivation asks for. A model that equals the base is at a right angle to all others. This is for whole
    contributions; the paper applies it to each layer. Differences are taken through distances, so that models close
    to their base lose no digits. Compared with a direct computation in R^d and the published orthogonality.
    """

    name = "model_stock"
    reads = Reads.GRAM
    numbers = (47,)
    laws = SYMMETRIC | EQUIVARIANT | {"unanimity"}
    formula = "t mean + (1 - t) x_0, t = k c / (1 + (k - 1) c), c = mean cos(x_i - x_0, x_j - x_0)"
    source = "Jang, Yun and Han, Model Stock: All We Need Is Just a Few Fine-Tuned Models, ECCV 2024"
    uses_reference = True
    needs_reference = "the base model that all were fine-tuned from"
    of_models = True

    @property
    def least(self) -> int:
        """Two, between which there is an angle."""
        return 2

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients over the models and the base, of sum one."""
        gram = expect_gram(relation)
        n = gram.n
        base = np.zeros(len(gram.gram))
        base[n] = 1.0
        t = interpolation(gram.centred(base)[:n, :n], weights)
        result = (1 - t) * base
        result[:n] = t * weights
        return np.asarray(result)


def interpolation(inner: Array, weights: Array) -> float:
    """t in [0, 1] from the inner products of differences from the base, shape (k, k), and weights of sum one."""
    lengths = np.sqrt(np.maximum(np.diag(inner), 0.0))
    unit = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    cosines = unit[:, None] * inner * unit
    np.fill_diagonal(cosines, 0.0)
    alone = float(weights @ weights)
    pairs = np.outer(weights, weights)
    np.fill_diagonal(pairs, 0.0)
    # Over their sum, not over 1 - alone, of which nothing is left where one has nearly all the weight.
    cosine = min(max(float((pairs * cosines).sum() / pairs.sum()), 0.0), 1.0)
    # k c / (1 + (k - 1) c) with k = 1 / alone
    return cosine / (cosine + (1 - cosine) * alone)
