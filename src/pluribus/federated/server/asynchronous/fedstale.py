"""FedStale: from inverse-probability FedAvg to FedVARP, by how far stale updates are trusted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.server.asynchronous.arrivals import check_rates, count_arrivals, told_rates
from pluribus.federated.server.asynchronous.memory import forgotten, remembered, weighted
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, mean, one_of, register


@register
@dataclass(frozen=True)
class FedStale(Server):
    """``x + lr (beta sum_all p_i h_i + sum_S p_i / pi_i (delta_i - beta h_i))``, h_i the last update of client i.

    p_i is the share of the samples (or 1/N), pi_i the chance that client i takes part, S who did. beta = 0 is FedAvg
    with inverse probabilities, beta = 1 FedVARP; the step is unbiased for ``sum_i p_i delta_i`` for every beta. Where
    everybody comes, always, beta is irrelevant. With beta = 1 and rates of one it would be MIFA. h_i is zero before a
    client's first update. A round to which nobody comes takes no step. The server keeps N models beside its own, and
    copies them at each step.

    Compared with aggregator.py, history_tracker.py and utils/optim.py of the authors (arodio/FedStale): the same for
    beta = 1; there, beta scales the whole term of the past, which is this formula.

    Parameters
    ----------
    beta
        Trust in stale updates, in [0, 1].
    server_lr
        Step along the sum.
    weighting
        ``"size"`` or ``"uniform"``: the p_i.
    rates
        ``"told"``: pi_i of the round; ``"estimated"``: the share of the rounds so far, this one included, to which the
        client came.
    """

    beta: float = 0.5
    server_lr: float = 1.0
    weighting: str = "size"
    rates: str = "told"

    key = "fedstale"
    formula = "x + lr (beta sum_all p_i h_i + sum over participants of p_i / pi_i (delta_i - beta h_i))"
    source = "Rodio and Neglia, FedStale: Leveraging Stale Client Updates in Federated Learning, 2024; beta = 1: "
    source += "Jhunjhunwala et al., FedVARP, UAI 2022"
    explanation = "Absent clients are stood for in part by their last update, and those seldom seen count for more."
    numbers = (217,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedStale", "beta", self.beta, zero=True)
        if self.beta > 1:
            raise RuleError(f"FedStale: beta lies in [0, 1], not {self.beta!r}; 1 is FedVARP")
        positive("FedStale", "server_lr", self.server_lr)
        one_of(self, "weighting", ("size", "uniform"))
        check_rates(self)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``last``, ``shares`` (the p_i of those who have come) and counts of arrivals."""
        return {
            "last": forgotten(params, self.parameters(params), n_clients),
            "shares": np.zeros(n_clients),
            "arrivals": np.zeros(n_clients, dtype=np.int64),
            "steps": np.array(0),
        }

    def advance(self, state: State, round: Round) -> Step:
        """Step along the corrected sum, and remember the updates."""
        here = list(round.clients)
        counts = count_arrivals(state, here)
        shares = state["shares"].copy()
        shares[here] = round.sizes / round.total_size if self.weighting == "size" else 1 / round.n_clients
        counted = shares[here] / self._chances(round, counts)[here]
        here_only = np.zeros(round.n_clients)
        here_only[here] = counted
        past = self.beta * (shares - here_only)
        change = mean(round, counted)
        total = float(counted.sum())
        change |= {name: total * change[name] + weighted(rows, past) for name, rows in state["last"].items()}
        moved = self.moved(state["params"], change, self.server_lr)
        return Step(moved, counted, {"last": remembered(state["last"], round), "shares": shares, **counts})

    def idle(self, state: State, round: Round) -> State:
        """A round to which nobody came."""
        return count_arrivals(state, [])

    def _chances(self, round: Round, counts: State) -> Array:
        if self.rates == "told":
            return told_rates(self, round)
        return np.maximum(counts["arrivals"], 1) / int(counts["steps"])
