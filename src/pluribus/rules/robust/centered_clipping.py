"""Centered clipping: move from the previous result, by no more than a radius for each contributor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import SYMMETRIC
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, expect_norms, positive, register, whole_number


@register
@dataclass(frozen=True)
class CenteredClipping(WeightRule):
    """From a start v: ``v <- v + sum_i w_i (x_i - v) min(1, radius / |x_i - v|)``, some steps.

    The start is ``reference=`` (last round's result, as one more row of the Gram matrix), or zero without one. A
    contributor moves the result at most ``w_i * radius`` a step. One step from zero reads norms alone. An infinite
    radius gives the mean in one step.
    Compared with byzfl's formula in R^d.

    Parameters
    ----------
    radius
        Greatest length, in the contributions' unit, that one contributor may pull; tune it to the honest spread.
    iterations
        Number of steps.
    """

    radius: float
    iterations: int = 1

    name = "centered_clipping"
    reads = Reads.GRAM
    numbers = (80,)
    laws = SYMMETRIC | {"replication", "rotation", "monotone weight"}
    formula = "v + sum_i w_i (x_i - v) min(1, radius / |x_i - v|), from v = reference or 0"
    source = "Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021"
    example = (("radius", 1.0),)
    uses_reference = True

    def __post_init__(self) -> None:
        positive("CenteredClipping", "radius", self.radius, infinite=True)
        whole_number("CenteredClipping", "iterations", self.iterations, 1)

    def reads_beside(self, extras: Sequence[str]) -> Reads:
        """Norms for one step from zero, where nothing else is asked of distances."""
        return Reads.GRAM if extras or self.iterations > 1 else Reads.NORMS

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients over the contributors and the start."""
        if self.reads_beside(()) is Reads.NORMS and not expect_norms(relation).extras:
            return self._pull(weights, np.sqrt(expect_norms(relation).squared_norms))
        gram = expect_gram(relation)
        current = np.zeros(len(gram.gram))
        if gram.extras:
            current[gram.n] = 1.0
        for _ in range(self.iterations):
            distances = np.sqrt(gram.squared_distances_to(current)[: gram.n])
            pull = self._pull(weights, distances)
            before = current.copy()
            current *= 1 - pull.sum()
            current[: gram.n] += pull
            if np.array_equal(current, before):
                break  # as it will be after any number of iterations
        return current

    def _pull(self, weights: Array, distances: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(weights * np.minimum(1.0, np.divide(self.radius, distances)))
