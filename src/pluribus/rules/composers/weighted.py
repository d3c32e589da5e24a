"""How weights enter rules, and a composer that makes them enter as copies.

The definition is one for all: *a contributor of weight two is two contributors* (the replication law). Only ratios of
weights matter. What follows from it, rule by rule:

=========================================  =============================================================================
kind                                       weights
=========================================  =============================================================================
means, power means, Fréchet means          ``sum_i w_i ...``: the law holds exactly
medians, quantiles, sign votes             cumulative weight: the law holds exactly
geometric median, clipping towards a start  ``sum_i w_i ...`` in each step: the law holds exactly
trimmed means, Meamed, Phocas              shares of weight are trimmed; f counts contributors of mean weight, so that f
                                           means the same share of the weight whatever the weights are
selections (Krum, Multi-Krum, MDA, ...)    by default everybody has one voice in who is chosen, since f counts
                                           contributors; the chosen are averaged by weight
any of these in `weighted(rule)`           copies are made first, and the rule sees as many equal contributors; f then
                                           counts copies
=========================================  =============================================================================

The law in full, "weights 2, 2 are as good as four copies", is out of reach of any rule with a fixed number f: only
ratios of weights are known, so weights 2, 2 are weights 1, 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING

import numpy as np

from pluribus.core import passes
from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import SELECTING, SYMMETRIC
from pluribus.core.passes import Active
from pluribus.core.relations import Reads
from pluribus.core.rule import CompositeRule, Execute, PointRule, Rule, WeightRule, register, steps, whole_number
from pluribus.rules.composers.checks import a_rule
from pluribus.rules.robust.krum import Krum

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome

MOST = 1000
_ROOM = 5000
_KEPT = SYMMETRIC | SELECTING | {"breakdown"}


@register
@dataclass(frozen=True)
class Weighted(CompositeRule):
    """A rule on copies: whoever has k times the least weight takes part k times, and all have equal weight.

    It gives weights a meaning in rules that have little use for them (Krum and other selections), by replication. Equal
    weights change nothing. Copies are made of rows of n x n numbers, never of contributions. For rules on points,
    which use weights by themselves, it changes nothing.

    Parameters
    ----------
    rule
        Any rule. Numbers such as its f count copies.
    resolution
        None: the fewest copies whose numbers have the ratios of the weights, at most 1000 in all, and an error when
        these do not suffice. A number R: weights are rounded to multiples of 1/R of their sum first, and to one at
        least; about R copies are made.
    """

    rule: Rule
    resolution: int | None = None

    name = "weighted"
    formula = "A(x_1, ..., x_1, x_2, ..., x_2, ...) with numbers of copies in the ratios of the weights"
    source = "the replication law"
    example = (("rule", Krum(f=1)),)

    def __post_init__(self) -> None:
        a_rule("Weighted", "rule", self.rule)
        if self.resolution is not None:
            whole_number("Weighted", "resolution", self.resolution, 1)

    @property
    def laws(self) -> frozenset[str]:  # type: ignore[override]
        """What the rule declares, of the laws that copies keep."""
        return self.rule.laws & _KEPT

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        """As the rule."""
        return self.rule.reads

    @property
    def uses_reference(self) -> bool:  # type: ignore[override]
        """As the rule."""
        return self.rule.uses_reference

    @property
    def needs_reference(self) -> str:  # type: ignore[override]
        """As the rule."""
        return self.rule.needs_reference

    @property
    def uses_previous(self) -> bool:  # type: ignore[override]
        """As the rule."""
        return self.rule.uses_previous

    @property
    def of_models(self) -> bool:  # type: ignore[override]
        """As the rule."""
        return self.rule.of_models

    @property
    def precision(self) -> float:  # type: ignore[override]
        """As the rule."""
        return self.rule.precision

    @property
    def any_vectors(self) -> bool:  # type: ignore[override]
        """As the rule."""
        return self.rule.any_vectors

    @property
    def takes_tensors(self) -> bool:  # type: ignore[override]
        """As the rule."""
        return self.rule.takes_tensors

    def draw(self, x: Array) -> Array:
        """As the rule."""
        return self.rule.draw(x)

    @property
    def least(self) -> int:
        """As the rule, of contributors of equal weight; of others fewer may do, since copies count."""
        return self.rule.least

    def check(self, n: int) -> None:
        """Copies are counted, when their number is known."""

    def tolerates(self, n: int) -> int:
        """As the rule, among n of equal weight."""
        return self.rule.tolerates(n)

    def breakdown_factor(self, n: int, d: int) -> float:
        """As the rule."""
        return self.rule.breakdown_factor(n, d)

    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """Make copies of rows, and run the rule on them under equal weights."""
        from pluribus.core.execution import Outcome, coefficients_of, counted, needed, relate

        pre, last = steps(self.rule)
        if isinstance(last, PointRule):
            return execute(self.rule, active, shares)
        numbers = self.copies(shares)
        total = int(numbers.sum())
        self.rule.check(total)
        rows = np.repeat(np.arange(len(shares)), numbers)
        equal = np.full(total, 1 / total)
        if isinstance(last, WeightRule) and not active.data.incomplete:
            relation = relate(needed(pre, last, active.data.extras), active, *pre, last)
            extras = np.arange(len(shares), len(active.all_rows))
            mixing = np.eye(len(active.all_rows))[np.concatenate([rows, extras])]
            seen = None if relation is None else relation.mixed(mixing)
            coefficients = coefficients_of(pre, last, seen, equal, len(mixing)) @ mixing
            return Outcome(active, passes.weighted_sums(active, coefficients[None]), relation, coefficients)
        repeated = replace(active, rows=tuple(active.rows[k] for k in rows))
        outcome = execute(self.rule, repeated, equal)
        found: Callable[[], Array] = lambda: np.bincount(rows, counted(self.rule, outcome), len(shares))  # noqa: E731
        return Outcome(active, outcome.results, counted=found)

    def copies(self, shares: Array) -> Array:
        """How many copies stand for each share, shape (n,)."""
        if self.resolution is not None:
            rounded = [max(int(self.resolution * Fraction(share) + Fraction(1, 2)), 1) for share in shares.tolist()]
            least = np.array([number // gcd(*rounded) for number in rounded], dtype=float)
            if least.sum() > _ROOM:
                raise RuleError(f"{self}: these weights need more than {_ROOM} copies; give a lower resolution")
            return least.astype(int)
        # Shares are rounded, and so the ratio of two is that of small whole numbers up to rounding.
        far = bool(shares.min() * MOST < shares.max())
        ratios = [Fraction(1.0 if far else share / shares.min()).limit_denominator(MOST) for share in shares]
        scale = lcm(*(ratio.denominator for ratio in ratios))
        whole = [int(ratio * scale) for ratio in ratios]
        far = far or sum(whole) > MOST
        numbers = np.array([1] * len(whole) if far else whole)
        if far or not np.allclose(numbers / numbers.sum(), shares, rtol=1e-9, atol=0):
            raise RuleError(
                f"{self}: the ratios of these weights need more than {MOST} copies; round the weights, or give "
                "resolution=, such as 100"
            )
        return numbers


def weighted(rule: Rule, resolution: int | None = None) -> Weighted:
    """The rule on copies of contributors, in the ratios of their weights; see `Weighted`."""
    return Weighted(rule, resolution)
