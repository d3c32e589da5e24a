"""FedNova: updates divided by how much local work is in them, so that fast clients do not tilt the objective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.server.base import Array, Round, State
from pluribus.federated.server.rule import Server, Step, mean, one_of, register, size_shares
from pluribus.federated.training import LocalTraining


@register
@dataclass(frozen=True)
class FedNova(Server):
    """``x + lr tau sum_i p_i delta_i / |a_i|_1`` with ``p_i = n_i / sum n``, whatever the clients' numbers of steps.

    ``delta_i = -lr_l sum_k a_ik g_ik`` holds the client's gradients with the weights a_i that its optimiser gave them:
    ones under plain SGD, ``(1 - rho^(s-k)) / (1 - rho)`` under momentum rho, ``(1 - lr_l mu)^(s-1-k)`` under a proximal
    term (`normaliser`). Each client reports its ``|a_i|_1``. ``tau = sum_i p_i |a_i|_1``, so equal work is FedAvg.
    FedAvg's fixed point minimises ``sum_i p_i |a_i| F_i``, FedNova's ``sum_i p_i F_i``.

    Compared with the authors' optimiser (JYWa/FedNova, distoptim/FedNova.py): the same |a_i|_1 for momentum alone and
    for the proximal term alone. Both together differ, because there the term comes after the momentum and here, as in
    `LocalTraining`, before it; and for the proximal term its tau counts steps: ``tau="steps"``.

    Parameters
    ----------
    server_lr
        Step along the normalised mean.
    tau
        ``"normaliser"``: tau = sum_i p_i |a_i|_1; ``"steps"``: the clients' mean number of steps, sum_i p_i s_i.
    """

    server_lr: float = 1.0
    tau: str = "normaliser"

    key = "fednova"
    formula = "x + lr tau sum_i p_i delta_i / |a_i|_1, tau = sum_i p_i |a_i|_1, p_i = n_i / sum n"
    source = "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020"
    explanation = "Each update is divided by its amount of local work, so clients with many steps do not pull harder."

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedNova", "server_lr", self.server_lr)
        one_of(self, "tau", ("normaliser", "steps"))

    @property
    def client(self) -> FedNovaClient:
        """Plain training, with its amount told."""
        return FedNovaClient()

    def advance(self, state: State, round: Round) -> Step:
        """The normalised mean; buffers move by their mean with the same weights."""
        told = self.sent(round, "work").updates
        amounts, steps = (np.array([float(tree[name]) for tree in told]) for name in ("normaliser", "steps"))
        shares = size_shares(round)
        rates = shares / amounts
        tau = float(shares @ (amounts if self.tau == "normaliser" else steps))
        counted = rates / rates.sum()
        scale = self.server_lr * tau * float(rates.sum())
        return Step(self.moved(state["params"], mean(round, counted), scale), counted, {})


@dataclass(frozen=True)
class FedNovaClient:
    """The client's half of `FedNova`."""

    def train(self, job: Job) -> Report:
        """Local training; tells ``work``: |a|_1 and the steps."""
        report = job.train()
        amount = normaliser(job.how, report.steps)
        return report._replace(message={"work": {"normaliser": np.array(amount), "steps": np.array(report.steps)}})


def normaliser(how: LocalTraining, steps: int) -> float:
    """``|a|_1``: the weights with which so many local gradients stand in an update, summed."""
    return float(np.abs(gradient_weights(how, steps)).sum())


def gradient_weights(how: LocalTraining, steps: int) -> Array:
    """``a``, shape (steps,): ``w0 - w = lr sum_k a_k g_k`` after SGD with momentum and proximal term from w0.

    A gradient enters the velocity with weight one and goes on from there by itself, so a_k is the response to one unit
    gradient after ``steps - k`` steps. Clipping is taken as part of the gradients.
    """
    response = np.empty(steps)
    moved = velocity = 0.0
    for age in range(steps):
        velocity = how.momentum * velocity + (1.0 if age == 0 else 0.0) - how.lr * how.proximal_mu * moved
        moved += velocity
        response[age] = moved
    return response[::-1].copy()
