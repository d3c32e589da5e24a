"""FedAU: an unbiased average when nobody knows how often each client will come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive, whole_number
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, mean, register


@register
@dataclass(frozen=True)
class FedAU(Server):
    """``x + lr / N sum over participants of w_i delta_i``, w_i the mean length of i's past gaps between rounds.

    A client that comes with probability p has mean gap 1/p, so it counts like one that is always there. A gap is the
    number of rounds from one participation to the next; one that reaches ``cutoff`` rounds is ended and counted as
    ``cutoff``, so that a client seldom seen cannot get a huge weight. The gap that ends with a participation counts
    from the next one on, and a client without any gap yet has weight 1. A participant that was dropped for NaN did
    not come. Sample counts play no part: the objective is the plain mean over clients, as in the paper.

    Conventions compared with main.py of IBM/fedau.

    Parameters
    ----------
    cutoff
        K, in rounds. 50 is in the authors' examples; the larger, the less bias and the more variance.
    server_lr
        Step along the average.
    """

    cutoff: int = 50
    server_lr: float = 1.0

    key = "fedau"
    formula = "x + lr / N * sum over participants of w_i delta_i, w_i = mean past gap (at most K rounds)"
    source = "Wang and Ji, A Lightweight Method for Tackling Unknown Participation Statistics in FedAvg, ICLR 2024"
    explanation = "Clients that come seldom count for more when they come, as much as their gaps so far were long."
    numbers = (7,)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("FedAU", "cutoff", self.cutoff, 1)
        positive("FedAU", "server_lr", self.server_lr)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``gaps``: rounds since the last participation; ``means`` and ``counts`` of the gaps that ended; (N,) each."""
        return {
            "gaps": np.zeros(n_clients, dtype=np.int64),
            "means": np.zeros(n_clients),
            "counts": np.zeros(n_clients, dtype=np.int64),
        }

    def advance(self, state: State, round: Round) -> Step:
        """Move by the weighted sum over N."""
        here = list(round.clients)
        lengths = np.where(state["counts"] > 0, state["means"], 1.0)[here]
        counted = lengths / round.n_clients
        moved = self.moved(state["params"], mean(round, lengths), self.server_lr * float(counted.sum()))
        return Step(moved, counted, self._counted(state, here))

    def idle(self, state: State, round: Round) -> State:
        """Gaps grow."""
        return self._counted(state, [])

    def _counted(self, state: State, here: list[int]) -> dict[str, Array]:
        gaps = state["gaps"] + 1
        ended = gaps >= self.cutoff
        ended[here] = True
        counts = state["counts"] + ended
        step = np.where(ended, gaps - state["means"], 0.0) / np.maximum(counts, 1)
        return {"gaps": np.where(ended, 0, gaps), "means": state["means"] + step, "counts": counts}
