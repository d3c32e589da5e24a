"""FedAvg and the two naive averages for clients that come and go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive
from pluribus.federated.server.base import Array, Round, State
from pluribus.federated.server.rule import Server, Step, mean, one_of, register, shares_by


@register
@dataclass(frozen=True)
class FedAvg(Server):
    """The model moves by the mean update: ``x + lr sum_i n_i delta_i / sum_i n_i`` over the participants.

    Parameters
    ----------
    server_lr
        Step along the mean update; 1 is the average of the clients' models.
    weighting
        ``"size"``: by sample counts, as published. ``"uniform"``: participants count alike. ``"all"``: each counts
        1/N of all N clients, present or not, so whoever is absent votes for the model as it is. The last two are what
        FedAU is compared with ("average participating" and "average all" there).
    """

    server_lr: float = 1.0
    weighting: str = "size"

    key = "fedavg"
    formula = "x + lr * sum_i n_i delta_i / sum_i n_i"
    source = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    explanation = "The mean of the clients' models, each counting by its number of samples."

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedAvg", "server_lr", self.server_lr)
        one_of(self, "weighting", ("size", "uniform", "all"))

    def advance(self, state: State, round: Round) -> Step:
        """Move by the weighted mean."""
        counted = self.counted(round)
        moved = self.moved(state["params"], mean(round, counted), self.server_lr * float(counted.sum()))
        return Step(moved, counted, {})

    def counted(self, round: Round) -> Array:
        """What each participant counts for, (k,): shares of sum one, or less where those absent count too."""
        if self.weighting == "all":
            return np.full(len(round.clients), 1 / round.n_clients)
        return shares_by(round, self.weighting)
