"""Gradient vaccine: gradients leaned towards each other until their cosines reach targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import ABOUT_ORIGIN
from pluribus.core.parameters import flag
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, register, whole_number
from pluribus.rules.gradients.surgery import bend, orders

Targets = float | tuple[tuple[float, ...], ...]


@register
@dataclass(frozen=True)
class GradVac(WeightRule):
    """The SUM of the contributions, each first leaned towards every other until their cosine reaches a target.

    The rule has no hidden state: its targets are a parameter, and `after` gives the rule of the next step, whose
    targets followed what was met (the published moving average). With targets of zero it is PCGrad, which is also the
    first step of the published method. A sum, as published; ``mean=True`` divides by n. Given weights weigh the
    leaned contributions (relative to their mean). Compared with torchjd 0.18 under the same orders, over several steps.

    Parameters
    ----------
    targets
        Wanted cosine of all pairs, or an n x n matrix of them (row i: of i with the others), in [-1, 1]. A pair whose
        cosine is above its target is left alone.
    seed
        Of the random order in which each meets the others. Change it every step.
    mean
        Divide the sum by n.
    """

    targets: Targets = 0.0
    seed: int = 0
    mean: bool = False

    name = "gradvac"
    reads = Reads.GRAM
    laws = ABOUT_ORIGIN | {"null", "deterministic"}
    formula = "sum_i y_i; y_i = x_i, then for all j in random order y_i += a x_j so that cos(y_i, x_j) >= t_ij"
    source = "Wang et al., Gradient Vaccine, ICLR 2021"
    example = (("targets", 0.3),)

    def __post_init__(self) -> None:
        whole_number("GradVac", "seed", self.seed, 0)
        flag("GradVac", "mean", self.mean)
        object.__setattr__(self, "targets", _frozen(self.targets))

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients of sum n or more (one or more with ``mean``) while targets are not negative."""
        gram = expect_gram(relation)
        bent, _ = self._bent(gram, 0.0)
        return np.asarray((weights if self.mean else gram.n * weights) @ bent)

    def after(self, gram: Gram, beta: float = 0.5) -> GradVac:
        """The rule of the next step: targets ``(1 - beta) t + beta p`` for the cosines p that were met, another seed.

        Parameters
        ----------
        gram
            The step's relation, ``result.relation`` or ``result.gram`` of its `Aggregate`.
        beta
            In [0, 1]; 0 keeps the targets.
        """
        if not 0 <= beta <= 1:
            raise RuleError(f"GradVac: beta must lie in [0, 1], not {beta!r}")
        _, targets = self._bent(gram, beta)
        return replace(self, targets=targets, seed=self.seed + 1)  # type: ignore[arg-type]

    def _bent(self, gram: Gram, beta: float) -> tuple[Array, Array]:
        n = gram.n
        targets = np.asarray(self.targets, dtype=np.float64)
        if targets.ndim and targets.shape != (n, n):
            raise RuleError(f"GradVac: targets are for {len(targets)} contributors, and {n} take part")
        return bend(gram.gram[:n, :n], np.broadcast_to(targets, (n, n)), orders(n, self.seed), beta)


def _frozen(targets: Any) -> Targets:
    """Targets as a number or nested tuples, so that the rule stays a value."""
    try:
        array = np.asarray(targets)
        array = array.astype(np.float64) if array.dtype.kind in "iuf" else np.full(1, np.nan)
    except (TypeError, ValueError):
        array = np.full(1, np.nan)
    if array.ndim not in (0, 2) or (array.ndim == 2 and array.shape[0] != array.shape[1]):
        raise RuleError(f"GradVac: targets must be one cosine or an n x n matrix of them, not {targets!r}")
    if not (np.abs(array) <= 1).all():
        raise RuleError("GradVac: targets are cosines, so they lie in [-1, 1]")
    return tuple(tuple(float(v) for v in row) for row in array) if array.ndim else float(array)
