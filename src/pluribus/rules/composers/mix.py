"""Two rules mixed: a share of what one gives, and the rest of what the other gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pluribus.core import passes
from pluribus.core.contributions import Contributions
from pluribus.core.dtypes import Array
from pluribus.core.law_groups import AVERAGE, EQUIVARIANT
from pluribus.core.passes import Active
from pluribus.core.relations import Reads
from pluribus.core.rule import Execute, Rule, WeightRule, register, steps
from pluribus.rules.composers.checks import a_rule
from pluribus.rules.composers.several import Several
from pluribus.rules.coordinates.quantile import unit_interval
from pluribus.rules.mean import Mean
from pluribus.rules.robust.krum import Krum

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome

# Whatever holds of two results holds of a point between them, for these laws.
_KEPT = AVERAGE | EQUIVARIANT | {"betweenness", "breakdown", "differentiable"}
_ITEMS = 1 << 16


@register
@dataclass(frozen=True)
class Mix(Several):
    """``share * first(x) + (1 - share) * second(x)``, each run on the same contributions and weights.

    Two linear rules (of weights) share one relation and one weighted sum. Of other rules both results are made, and
    mixed in float64. The result tolerates no more than the weaker of the two.

    Parameters
    ----------
    first, second
        Rules.
    share
        What the first counts for, 0 to 1.
    """

    first: Rule
    second: Rule
    share: float = 0.5

    name = "mix"
    formula = "a A(x) + (1 - a) B(x)"
    source = "convex combinations; Rodio and Neglia, FedStale, ECAI 2024, mixes fresh and stale updates so"
    example = (("first", Mean()), ("second", Krum(f=1)))

    def __post_init__(self) -> None:
        a_rule("Mix", "first", self.first)
        a_rule("Mix", "second", self.second)
        unit_interval("Mix", "share", self.share)

    @property
    def _rules(self) -> tuple[Rule, Rule]:
        return self.first, self.second

    @property
    def laws(self) -> frozenset[str]:  # type: ignore[override]
        """What both declare, of the laws that mixing keeps."""
        return self.first.laws & self.second.laws & _KEPT

    def breakdown_factor(self, n: int, d: int) -> float:
        """The factors, mixed alike."""
        one, other = (rule.breakdown_factor(n, d) for rule in self._rules)
        return self.share * one + (1 - self.share) * other

    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """Mix coefficients where both are linear, and results where they are not."""
        from pluribus.core.execution import Outcome, coefficients_of, counted, needed, relate

        split = [steps(rule) for rule in self._rules]
        if not active.data.incomplete and all(isinstance(last, WeightRule) for _, last in split):
            asked = [needed(pre, last, active.data.extras) for pre, last in split]
            reading = [step for pre, last in split for step in (*pre, last)]
            relation = relate(max(asked, key=list(Reads).index), active, *reading)
            rows = len(active.all_rows)
            one, other = (
                coefficients_of(pre, last, relation, shares, rows)
                for pre, last in split
                if isinstance(last, WeightRule)
            )
            mixed = self.share * one + (1 - self.share) * other
            return Outcome(active, passes.weighted_sums(active, mixed[None]), relation, mixed)
        outcomes = [execute(rule, active, shares) for rule in self._rules]
        result = blend(active.data, outcomes[0].results[0], outcomes[1].results[0], self.share)

        def both() -> Array:
            one, other = (counted(rule, outcome) for rule, outcome in zip(self._rules, outcomes, strict=True))
            return self.share * one + (1 - self.share) * other

        return Outcome(active, [result], counted=both)


def mix(first: Rule, second: Rule, share: float = 0.5) -> Mix:
    """``share * first(x) + (1 - share) * second(x)``; see `Mix`."""
    return Mix(first, second, share)


def blend(data: Contributions, one: Sequence[Any], other: Sequence[Any], share: float) -> list[Any]:
    """``share * one + (1 - share) * other`` of stored results, in float64; counters that agree stay as they are."""
    from pluribus.core import stores

    result, medium = data.allocate(), data.medium
    for discrete in (False, True):
        for block in data.blocks(_ITEMS, discrete=discrete):
            dtype = data.specs[block.tensor].dtype
            left, right = (stores.items(arrays[block.tensor], block) for arrays in (one, other))
            a, b = (medium.coordinates(items, dtype, np.dtype(np.float64)) for items in (left, right))
            mixed = medium.rounded(share * a + (1 - share) * b, dtype)
            agreed = medium.xp.where(left == right, left, mixed) if discrete else mixed
            passes.stored(result, block)[...] = agreed
    return result
