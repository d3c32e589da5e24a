"""FedFix: steps at fixed times, with weights that make up for how seldom a slow client arrives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive
from pluribus.federated.server.asynchronous.arrivals import arrived, count_arrivals, told_rates
from pluribus.federated.server.base import Round, State, Tree
from pluribus.federated.server.rule import Server, Step, one_of, register


@register
@dataclass(frozen=True)
class FedFix(Server):
    """``x + lr sum_i d_i delta_i`` over those who arrived, ``d_i = p_i / P_i``; p_i are shares of the samples.

    P_i is the chance that client i arrives at a step. With stochastic weights omega_i the limit is the optimum of
    ``sum_i E[omega_i] F_i``; ``E[omega_i] = d_i P_i = p_i`` makes it the right one. In a window of dt a client that
    takes tau_i arrives every ``ceil(tau_i / dt)`` windows, and d_i is that many times p_i. The estimate is the share of
    the steps so far at which the client arrived, this one included: so a steady client's is exact from its first
    arrival on. Use the schedule ``window:DT``; a window in which nobody arrives counts too. Where everybody always
    arrives it is FedAvg. The d_i of one step need not sum to one; only over many steps they do.

    Compared with FL/clients_parameters.py, clients_schedule.py and server.py of the authors (branch asynchronous_FL):
    the same weights and steps, where there the tau_i are known.

    Parameters
    ----------
    server_lr
        Step along the sum.
    arrival
        Where P_i comes from: ``"estimated"``; ``"told"``, the round's rates; ``"one"``, which is the naive rule whose
        limit leans towards fast clients.
    """

    server_lr: float = 1.0
    arrival: str = "estimated"

    key = "fedfix"
    formula = "x + lr * sum over arrivals of p_i / P(i arrives) delta_i"
    source = "Fraboni et al., A General Theory for Federated Optimization with Asynchronous and Heterogeneous Clients "
    source += "Updates, JMLR 2023"
    explanation = "Steps at fixed times; who arrives seldom counts for more when it does."
    numbers = (170,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedFix", "server_lr", self.server_lr)
        one_of(self, "arrival", ("estimated", "told", "one"))

    def remember(self, params: Tree, n_clients: int) -> State:
        """``arrivals`` of each client, (N,), and ``steps``, windows so far."""
        return {"arrivals": np.zeros(n_clients, dtype=np.int64), "steps": np.array(0)}

    def advance(self, state: State, round: Round) -> Step:
        """Step with what arrived."""
        here = list(round.clients)
        memory = count_arrivals(state, here)
        chance = np.ones(len(here))
        if self.arrival == "estimated":
            chance = memory["arrivals"][here] / int(memory["steps"])
        elif self.arrival == "told":
            chance = told_rates(self, round)[here]
        counted = round.sizes / round.total_size / chance
        return Step(arrived(self, state["params"], round, counted, self.server_lr), counted, memory)

    def idle(self, state: State, round: Round) -> State:
        """A window without arrivals."""
        return count_arrivals(state, [])
