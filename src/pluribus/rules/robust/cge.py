"""Comparative gradient elimination: leave out the longest contributions."""

from __future__ import annotations

from dataclasses import dataclass

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, ANONYMOUS
from pluribus.core.relations import Gram, Reads, Relation
from pluribus.core.rule import WeightRule, expect_norms, register, whole_number
from pluribus.rules.robust.chosen import mean_of
from pluribus.rules.robust.krum import select_lowest


@register
@dataclass(frozen=True)
class CGE(WeightRule):
    """Weighted mean of all but the f contributions of largest norm (a norm filter).

    Reads norms only. Give it updates or gradients (differences from the model): a short vector in a wrong direction
    passes, so it withstands no attacker in the sense of a breakdown point about the honest contributions; what it
    bounds is the length of the result. Ties go to the earlier contributor. Published as a sum or a mean of those left;
    this is the mean. Compared with a direct computation.

    Parameters
    ----------
    f
        How many leave; n >= 2f + 1.
    """

    f: int

    name = "cge"
    reads = Reads.NORMS
    laws = ANONYMOUS | ABOUT_ORIGIN | {"unanimity", "betweenness", "monotone weight"}
    formula = "mean of the n-f contributions of smallest |x_i|"
    source = (
        "Gupta, Liu and Vaidya, Byzantine Fault-Tolerant Distributed Machine Learning with Norm-Based Comparative "
        "Gradient Elimination, DSN-W 2021"
    )
    example = (("f", 1),)

    def __post_init__(self) -> None:
        whole_number("CGE", "f", self.f, 0)

    @property
    def least(self) -> int:
        """An honest majority."""
        return 2 * self.f + 1

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """The given weights among the shortest, zero for the others."""
        known = expect_norms(relation)
        rows = len(known.gram) if isinstance(known, Gram) else len(known.squared_norms)
        shortest = select_lowest(known.squared_norms[: known.n], known.n - self.f)
        return mean_of(shortest, weights, rows)
