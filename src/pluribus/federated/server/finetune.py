"""FedAvg, then plain training on the server's own set: the honest baseline of whatever learns on that set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive, whole_number
from pluribus.federated.server.base import Round, State, Tree
from pluribus.federated.server.proxy import lowest, objective
from pluribus.federated.server.rule import Server, Step, mean, register, size_shares


@register
@dataclass(frozen=True)
class ServerFineTune(Server):
    """FedAvg's model w, then ``w <- w - lr grad L(w)`` on the proxy loss, some steps; the best point met is taken.

    It sees what FedLAW sees and by default takes as many gradients, so what FedLAW gains beyond it is due to weighing,
    and what it gains beyond FedLAW shows that the proxy set itself is worth training on. Buffers and counters stay at
    FedAvg's. The state holds ``proxy_loss`` (before, after); its ``weights`` are FedAvg's.

    Parameters
    ----------
    steps
        Gradient steps a round.
    lr
        Their length.
    """

    steps: int = 50
    lr: float = 0.1

    key = "finetune"
    formula = "w - lr grad L(w), repeated, from w = x + sum_i n_i delta_i / sum_i n_i"
    source = "the server-finetune baseline of Li et al., ICML 2023 (FedLAW)"
    explanation = "FedAvg, and then the server trains on its own clean data."

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("ServerFineTune", "steps", self.steps, 0)
        positive("ServerFineTune", "lr", self.lr)

    def remember(self, params: Tree, n_clients: int) -> State:
        """What is reported of the last round."""
        return {"proxy_loss": np.full(2, np.nan)}

    def advance(self, state: State, round: Round) -> Step:
        """Average, then descend."""
        loss = objective("ServerFineTune", round)
        shares = size_shares(round)
        start = self.moved(state["params"], mean(round, shares))
        trained = self.parameters(start)

        def descend(point: Tree, gradient: Tree, number: int) -> Tree:
            return self.moved(point, {name: gradient[name] for name in trained if name in gradient}, -self.lr)

        best, losses = lowest(start, loss, descend, self.steps)
        return Step(best, shares, {"proxy_loss": np.array(losses)})
