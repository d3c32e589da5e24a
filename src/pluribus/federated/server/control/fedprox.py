"""FedProx: FedAvg whose clients are held near the model that they started from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pluribus.core.rule import positive
from pluribus.federated.server.base import State
from pluribus.federated.server.fedavg import FedAvg
from pluribus.federated.server.rule import register
from pluribus.federated.training import LocalTraining


@register
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg, with ``mu / 2 |w - w0|^2`` added to each client's loss: ``g = grad L(w) + mu (w - w0)``.

    The rule sets the training's ``proximal_mu``, so ``fedprox:mu=0.1`` is ``fedavg`` under ``--proximal 0.1``, bit for
    bit; it takes the place of a setting that the federation has. mu = 0 is FedAvg. ``server_lr`` and ``weighting`` as
    for `FedAvg`.

    Compared with equation (2) of the paper, as `LocalTraining` has it.

    Parameters
    ----------
    mu
        How strongly a client is held.
    """

    mu: float = 0.01

    key = "fedprox"
    formula = "x + lr * sum_i n_i delta_i / sum_i n_i; local: y - lr_l (g_i(y) + mu (y - x))"
    source = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    explanation = "FedAvg, where a pull back to the global model keeps the clients from drifting apart."

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedProx", "mu", self.mu, zero=True)

    def local(self, state: State, client: int, how: LocalTraining) -> LocalTraining:
        """With the proximal term."""
        return replace(how, proximal_mu=float(self.mu))
