"""What rules that train a generator at the server share: the clients' classes, and the state of its training."""

from __future__ import annotations

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.distillation.generator import AdamMemory, Generator, class_prior, class_shares
from pluribus.federated.seeding import generator
from pluribus.federated.server.base import Array, Round, State, Tree


def told_classes(rule: str, round: Round) -> tuple[Array, Array]:
    """`class_shares`, (k, C), and `class_prior`, (C,), of the participants.

    Raises ``RuleError`` where they told no label counts, or none that is positive.
    """
    if round.label_counts is None:
        raise RuleError(
            f"{rule} weighs clients by the samples of each class, and the round has no label counts; let clients tell "
            "them, or take fedavg"
        )
    return class_shares(round.label_counts), class_prior(round.label_counts)


def fresh(rule: str, made: Generator) -> State:
    """The state of a generator that nobody trained yet, as `kept` names it."""
    params = made.init(generator(0, f"{rule}.init"))
    return kept(params, AdamMemory.fresh(params))


def kept(params: Tree, memory: AdamMemory) -> State:
    """``generator``, its moments ``adam_first`` and ``adam_second``, and their count ``adam_count``."""
    return {
        "generator": params,
        "adam_first": memory.first,
        "adam_second": memory.second,
        "adam_count": np.array(memory.count),
    }


def resumed(state: State) -> tuple[Tree, AdamMemory]:
    """The generator and Adam's memory out of a state."""
    return state["generator"], AdamMemory(state["adam_first"], state["adam_second"], int(state["adam_count"]))
