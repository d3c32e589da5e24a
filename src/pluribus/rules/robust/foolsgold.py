"""FoolsGold: less weight for those who resemble each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, SYMMETRIC
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register

_TOP = 0.99  # what the most dissimilar counts as before the logit, as published
_ALIKE = 1e-9  # below this everybody resembles somebody in full


def foolsgold_weights(cosines: Array, confidence: float) -> Array:
    """Weights in [0, 1] from pairwise cosines, shape (n, n); all zero when everybody has a twin.

    v_i is the greatest positive cosine of i with another. Cosines with somebody who has a greater v are pardoned by
    v_i / v_j; one minus the greatest of what remains, scaled to a maximum of one, goes through
    ``confidence * (logit + 0.5)``, cut to [0, 1].
    """
    others = cosines.copy()
    np.fill_diagonal(others, 0.0)
    nearest = np.maximum(others.max(axis=1), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        pardon = np.where(nearest[None, :] > nearest[:, None], nearest[:, None] / nearest[None, :], 1.0)
    alone = np.clip(1.0 - np.maximum((others * pardon).max(axis=1), 0.0), 0.0, 1.0)
    if alone.max() < _ALIKE:
        return np.zeros(len(cosines))
    alone = np.minimum(alone / alone.max(), _TOP)
    with np.errstate(divide="ignore"):
        logit = np.log(alone / (1.0 - alone))
    return np.asarray(np.clip(confidence * (logit + 0.5), 0.0, 1.0))


@register
@dataclass(frozen=True)
class FoolsGold(WeightRule):
    """Mean weighted by how little each contribution resembles any other: sybils who push together lose their weight.

    Published on each client's history, the sum of its updates so far, which grows smoother than one round's noise.
    The rule sees what it is given; with histories kept by the server, take the weights from them and apply them to
    the round's updates: ``Mean()(updates, FoolsGold()(histories).weights)``.

    It assumes that honest contributors differ (unlike data): two honest twins lose their weight as sybils would, a
    single attacker keeps it, and a weight of two is not two copies. Given weights multiply. Published as a sum of
    weighted updates; this is their mean, and where everybody has a twin (the published formula divides zero by zero)
    the given weights stand. Compared with the authors' formula in R^d.

    Parameters
    ----------
    confidence
        The slope at which similarity costs weight (kappa in the paper).
    """

    confidence: float = 1.0

    name = "foolsgold"
    reads = Reads.GRAM
    laws = SYMMETRIC | ABOUT_ORIGIN | {"unanimity", "betweenness", "monotone weight"}
    formula = "sum_i a_i x_i, a_i from kappa (logit(1 - max_j pardoned cos(x_i, x_j)) + 0.5) cut to [0, 1]"
    source = "Fung, Yoon and Beschastnikh, The Limitations of Federated Learning in Sybil Settings, RAID 2020"

    def __post_init__(self) -> None:
        positive("FoolsGold", "confidence", self.confidence)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights times dissimilarity."""
        gram = expect_gram(relation)
        found = weights * foolsgold_weights(gram.cosines[: gram.n, : gram.n], self.confidence)
        result = np.zeros(len(gram.gram))
        result[: gram.n] = found if found.any() else weights
        return np.asarray(result / result.sum())
