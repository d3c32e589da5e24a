"""The running server as attackers see it who know its rule: what it would do if they sent this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pluribus.federated.attacks.little import Defence
from pluribus.federated.models import Tree, real

if TYPE_CHECKING:
    from pluribus.federated.server.base import Round, ServerRule, State


def defence_of(rule: ServerRule, state: State, round: Round, attackers: Sequence[int]) -> Defence:
    """What a rule's model would move by.

    Parameters
    ----------
    rule, state
        The server's, before the step. Neither is changed: a step is pure.
    round
        The round as the rule will get it.
    attackers
        Positions in ``round.updates`` of what the attackers send.
    """

    def defence(sent: list[Tree]) -> Tree:
        updates = list(round.updates)
        for position, update in zip(attackers, sent, strict=True):
            updates[position] = update
        after = rule.step(state, replace(round, updates=updates))["params"]
        before = state["params"]
        return {name: np.subtract(after[name], value) for name, value in before.items() if real(value)}

    return defence
