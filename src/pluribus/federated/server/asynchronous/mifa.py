"""MIFA: the server keeps everybody's last update, and steps along the mean of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive
from pluribus.federated.server.asynchronous.arrivals import untrained
from pluribus.federated.server.asynchronous.memory import forgotten, remembered, weighted
from pluribus.federated.server.base import Round, State, Tree
from pluribus.federated.server.rule import Server, Step, register


@register
@dataclass(frozen=True)
class MIFA(Server):
    """``x + lr / N sum_i h_i`` over all N clients, h_i the last update of client i; zero before its first.

    Whoever is absent is stood for by its last update, so nobody is waited for and rates need not be known. Clients
    count alike. The server keeps N models (beside its own), and copies them at each step. Where everybody comes it
    is FedAvg with uniform weights. The state's ``weights`` tell 1/N for those present; the absent count as much.

    Compared with src/trainers/fdu_no_wait.py of the authors: the same, where updates are divided by the learning rate
    as they are stored and multiplied by the present one, which matters where it decays. In the paper everybody comes
    to the first round.

    Parameters
    ----------
    server_lr
        Step along the mean.
    """

    server_lr: float = 1.0

    key = "mifa"
    formula = "x + lr / N * sum over all clients of their last update"
    source = "Gu et al., Fast Federated Learning in the Presence of Arbitrary Device Unavailability, NeurIPS 2021"
    explanation = "Absent clients are stood for by their last update, which the server remembers."

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("MIFA", "server_lr", self.server_lr)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``last``: a row for each client."""
        return {"last": forgotten(params, self.parameters(params), n_clients)}

    def advance(self, state: State, round: Round) -> Step:
        """Remember the updates, and step along the mean of all."""
        last = remembered(state["last"], round)
        everybody = np.full(round.n_clients, 1 / round.n_clients)
        change = {name: weighted(rows, everybody) for name, rows in last.items()}
        present = np.full(len(round.clients), 1 / len(round.clients))
        change |= untrained(self, state["params"], round, present)
        moved = self.moved(state["params"], change, self.server_lr)
        return Step(moved, everybody[list(round.clients)], {"last": last})
