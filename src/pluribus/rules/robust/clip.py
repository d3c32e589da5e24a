"""Norm clipping, a pre-rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import SYMMETRIC
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import PreRule, expect_norms, positive, register


@register
@dataclass(frozen=True)
class Clip(PreRule):
    """Shorten contributions longer than a norm: ``x_i min(1, max_norm / |x_i|)``.

    Reads norms only. Give it updates (differences from the model), not models: it shrinks towards zero, so the
    coefficients of the result may sum to less than one. Alone it is followed by the mean.

    Parameters
    ----------
    max_norm
        Greatest Euclidean norm of a whole contribution, in its own unit.
    """

    max_norm: float

    name = "clip"
    reads = Reads.NORMS
    merges = False
    laws = SYMMETRIC | {"replication", "rotation", "monotone weight"}
    formula = "x_i min(1, max_norm / |x_i|)"
    source = "Sun et al., Can You Really Backdoor Federated Learning?, 2019"
    example = (("max_norm", 1.0),)

    def __post_init__(self) -> None:
        positive("Clip", "max_norm", self.max_norm)

    def mix(self, relation: Relation | None, weights: Array) -> Array:
        """A diagonal of factors in (0, 1]."""
        known = expect_norms(relation)
        norms = np.sqrt(known.squared_norms)[: known.n]
        with np.errstate(divide="ignore"):
            factors = np.minimum(1.0, np.divide(self.max_norm, norms))
        rows = known.gram.shape[0] if isinstance(known, Gram) else len(known.squared_norms)
        return np.asarray(np.eye(known.n, rows) * factors[:, None])
