"""FedDA and FedGP: a target with little data, helped by sources of another distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import ABOUT_ORIGIN, EQUIVARIANT, SYMMETRIC
from pluribus.core.parameters import is_real
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register

AUTO = "auto"
_TARGET = "the target's gradient, which the contributions (the sources) are to help"
_SOURCE = "Jiang, Zhang and Koyejo, Principled Federated Domain Adaptation, ICLR 2024"


@dataclass(frozen=True)
class _Adaptation(WeightRule):
    beta: float | str = 0.5
    variance: float | None = None

    reads = Reads.GRAM
    uses_reference = True
    needs_reference = _TARGET
    source = _SOURCE

    def __post_init__(self) -> None:
        who = type(self).__name__
        if isinstance(self.beta, str) and self.beta == AUTO:
            if self.variance is None:
                raise RuleError(f"{who}: beta='auto' needs variance=, that of the target's gradient (E|g_T - E g_T|^2)")
            positive(who, "variance", self.variance, zero=True)
        elif isinstance(self.beta, str) or not is_real(self.beta) or not 0 <= self.beta <= 1:
            raise RuleError(f"{who}: beta must be a number in [0, 1] or 'auto', not {self.beta!r}")
        elif self.variance is not None:
            raise RuleError(f"{who}: variance is for beta='auto'; leave it out with beta={self.beta!r}")

    def trust(self, squared_distances: Array, unit: float = 1.0) -> Array:
        """How much each source counts beside the target, in [0, 1], from squared distances to the target, shape (n,).

        These are in ``unit``, squared.

        Automatic: ``s2 / (s2 + d2)``, where s2 is the variance of the target's gradient and d2 what of the distance s2
        does not explain. Between two gradients that are alike and certain (0 / 0) there is nothing to choose.
        """
        if not isinstance(self.beta, str):
            return np.full(len(squared_distances), float(self.beta))
        assert self.variance is not None, "checked when the rule was made"
        variance = self.variance / unit / unit
        total = np.maximum(squared_distances, variance)  # s2 + max(distance - s2, 0)
        return np.divide(variance, total, out=np.zeros(len(total)), where=total > 0)


@register
@dataclass(frozen=True)
class FedDA(_Adaptation):
    """Target and sources mixed: ``sum_i w_i ((1 - b_i) g_T + b_i x_i)``; ``reference=`` is the target's gradient g_T.

    With ``beta="auto"`` each source gets the b that minimises the expected error, from the variance of g_T; the squared
    distance is freed of that variance (the estimator of the authors' code, read there). A weight of two equals two
    copies of a source.

    Parameters
    ----------
    beta
        Share of the sources in [0, 1]: 0 is the target alone; or ``"auto"``.
    variance
        For ``"auto"``: ``E |g_T - E g_T|^2`` over all coordinates: the variance among the target's batch gradients over
        the number of batches.
    """

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        """Nothing while beta is given."""
        return Reads.GRAM if self.beta == AUTO else Reads.NOTHING

    name = "fedda"
    numbers = (467,)
    laws = SYMMETRIC | EQUIVARIANT | {"replication", "differentiable"}  # as given: automatic ones are clipped
    formula = "sum_i w_i ((1 - b_i) g_T + b_i x_i)"

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Convex weights over the sources and the target."""
        n = len(weights)
        trust = self.trust(np.zeros(n))
        if self.beta == AUTO:
            gram = expect_gram(relation)
            trust = self.trust(gram.squared_distances[n, :n], gram.scale)
        shares = weights * trust
        return np.append(shares, 1.0 - shares.sum())


@register
@dataclass(frozen=True)
class FedGP(_Adaptation):
    """The target's gradient and its projections on the sources that do not oppose it; ``reference=`` is that gradient.

    ``sum_i w_i ((1 - b_i) g_T + b_i max(<g_T, x_i>, 0) / |x_i|^2 x_i)``: a source lends its direction, not its length.
    With ``beta="auto"`` each source gets the b that minimises the expected error, from the variance of g_T and the
    distance of g_T to the source's line, freed of that variance (which assumes that few of many coordinates' noise lie
    along the source). A weight of two equals two copies of a source. The authors' code scales by cosines and learning
    rates layer by layer where their paper, and their synthetic experiment, project as here.

    Parameters
    ----------
    beta
        Share of the projections in [0, 1]: 0 is the target alone; or ``"auto"``.
    variance
        As in `FedDA`.
    """

    name = "fedgp"
    numbers = (467,)
    laws = SYMMETRIC | ABOUT_ORIGIN | {"replication"}
    formula = "sum_i w_i ((1 - b_i) g_T + b_i max(<g_T, x_i>, 0) / |x_i|^2 x_i)"

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Non-negative coefficients over the sources and the target."""
        gram = expect_gram(relation)
        inner, squares = gram.gram[gram.n, : gram.n], gram.squared_norms[: gram.n]
        shares = weights * self.trust(_to_lines(gram), gram.scale)
        lent = np.divide(np.maximum(inner, 0.0), squares, out=np.zeros(gram.n), where=squares > 0)
        return np.append(shares * lent, 1.0 - shares.sum())


def _to_lines(gram: Gram) -> Array:
    """Squared distance of the reference to the line of each contribution, shape (n,); to zero for a zero one."""
    return np.asarray((1.0 - gram.cosines[gram.n, : gram.n] ** 2) * gram.squared_norms[gram.n])
