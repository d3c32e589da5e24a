"""What every server rule is: a pure function from a state and a round to the next state.

A state is a tree of arrays, so that it is checkpointed, resumed and inspected like one. It always holds

* ``params``: the global model, a mapping from names to arrays;
* ``weights``: what each of the N clients counted for in the last round, shape (N,), NaN for those absent or left out;
* whatever else the rule keeps (momentum, participation gaps, learned weights), under names of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tree = dict[str, Array]
State = dict[str, Any]  # "params" is a Tree, all else arrays or Trees
Objective = Callable[[Tree], tuple[float, Tree]]
Validate = Callable[[int, Tree], tuple[float, float]]

PER_PARTICIPANT = ("updates", "sizes", "label_counts", "starts", "steps", "losses", "staleness", "messages")
"""Fields of `Round` that hold one entry for each participant, in the order of ``clients``."""


class Offer(NamedTuple):
    """What the server sends a client: the model to start from, and what else its rule tells, a tree of arrays."""

    params: Tree
    told: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Round:
    """One round: the participants' updates and what is known about the participants.

    Attributes
    ----------
    number
        0, 1, ...
    clients
        Ids of the k participants, increasing, each in 0 .. n_clients - 1. May be empty: nobody came.
    updates
        k trees: local model less the global model that the client started from.
    sizes
        Samples of each participant, shape (k,).
    label_counts
        Samples of each class of each participant, shape (k, C), or None if unknown.
    n_clients, total_size
        Number of all clients, N, and of all their samples.
    proxy
        The server's own small clean set as an objective ``params -> (loss, gradient)``, or None.
    seed
        For rules that draw; the same seed and round give the same draw.
    starts
        The model that each participant started from, k trees, or None: the server's present model.
    steps
        Local steps of each participant, (k,), or None if unknown.
    losses
        Loss of each participant's start model on its own samples, (k,), or None. Measured for rules that need it.
    staleness
        Server steps since each participant got its start model, (k,), 0 for a fresh one; None: all fresh.
    messages
        What each participant's client method sent besides its update: k trees of arrays, or None.
    rates
        How often each of the N clients takes part in the long run, (N,), each in (0, 1], or None if unknown.
    time
        Simulated seconds since the start.
    validate
        ``validate(client, params) -> (loss, error)`` of a model on a client's own samples, for rules that ask the
        clients back; error is 1 - accuracy. None where nobody can be asked.
    """

    number: int
    clients: tuple[int, ...]
    updates: Sequence[Mapping[str, Array]]
    sizes: Array
    n_clients: int
    total_size: float
    label_counts: Array | None = None
    proxy: Objective | None = None
    seed: int = 0
    starts: Sequence[Tree] | None = None
    steps: Array | None = None
    losses: Array | None = None
    staleness: Array | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    rates: Array | None = None
    time: float = 0.0
    validate: Validate | None = None

    def heard(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Each participant and what it sent besides its update: an empty mapping where that is nothing."""
        messages = self.messages or [{}] * len(self.clients)
        return [(client, message or {}) for client, message in zip(self.clients, messages, strict=True)]

    def take(self, positions: Sequence[int]) -> Round:
        """The round of the participants at these positions only, in this order."""
        chosen = list(positions)
        changed: dict[str, Any] = {"clients": tuple(int(self.clients[k]) for k in chosen)}
        for name in PER_PARTICIPANT:
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                changed[name] = value[chosen]
            elif value is not None:
                changed[name] = [value[k] for k in chosen]
        return replace(self, **changed)


@runtime_checkable
class ServerRule(Protocol):
    """``init(params, n_clients) -> state`` and ``step(state, round) -> state``; both pure."""

    @property
    def name(self) -> str:
        """What the command and reports call it."""

    def init(self, params: Tree, n_clients: int) -> State:
        """The state before the first round."""

    def step(self, state: State, round: Round) -> State:
        """The state after a round. The given state is not changed."""


def spread(weights: Array, round: Round) -> Array:
    """Participants' weights as the N clients', NaN where absent."""
    full = np.full(round.n_clients, np.nan)
    full[list(round.clients)] = weights
    return full
