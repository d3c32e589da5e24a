"""How far a result moves without each contributor, for rules that know a shorter way than to decide n times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from pluribus.core import execution
from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.execution import Outcome
from pluribus.core.relations import Gram
from pluribus.core.rule import Rule, steps


@runtime_checkable
class WeighsWithout(Protocol):
    """A rule of weights that decides without each contributor at once."""

    def weigh_without(self, relation: Gram, weights: Array) -> Iterator[Array]:
        """For each contributor left out: coefficients over all rows, shape (m,), its own zero.

        What ``weigh`` gives on the relation of the others. ``weights`` have sum one, shape (n,).
        """


def leave_one_out(rule: Rule, outcome: Outcome, shares: Array) -> Array:
    """How far the result moves when each active contributor is left out, shape (n,); see `execution.leave_one_out`."""
    pre, last = steps(rule)
    relation, coefficients = outcome.relation, outcome.coefficients
    short = isinstance(last, WeighsWithout) and not pre and not outcome.active.data.incomplete
    if not short or not isinstance(relation, Gram) or coefficients is None or len(shares) < 2:
        return execution.leave_one_out(rule, outcome, shares)
    assert isinstance(last, WeighsWithout)
    moved = np.full(len(shares), np.nan)
    try:
        rule.check(len(shares) - 1)
    except RuleError:  # the rest is too few
        return moved
    for k, without in enumerate(last.weigh_without(relation, shares)):
        difference = coefficients - without
        moved[k] = np.sqrt(relation.squared_gap(difference)) * relation.scale if difference.any() else 0.0
    return moved
