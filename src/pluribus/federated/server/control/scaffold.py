"""SCAFFOLD: local steps corrected by the difference of a client's own and everybody's control variate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.server.base import Offer, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, mean, register
from pluribus.federated.training import Hooks


@register
@dataclass(frozen=True)
class Scaffold(Server):
    """``x + lr mean_i delta_i`` and ``c + (k / N) mean_i dc_i``, with local steps ``y - lr_l (g_i(y) - c_i + c)``.

    c_i is client i's control variate, an estimate of its gradient, and c everybody's. After K local steps option II of
    the paper sets ``c_i <- c_i - c + (x - y) / (K lr_l)`` and sends the change ``dc_i``. Participants count alike.
    With all control variates zero a round is FedAvg's with uniform weights; on quadratics the fixed point is the
    optimum of the mean objective, whatever K. The clients keep one model each.

    Compared with the equations (3) to (5) and algorithm 1 of the paper.

    Parameters
    ----------
    server_lr
        Step along the mean update.
    """

    server_lr: float = 1.0

    key = "scaffold"
    formula = "x + lr mean_i delta_i, c + sum_i dc_i / N; local: y - lr_l (g_i(y) - c_i + c)"
    source = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020"
    explanation = "Each client's steps are corrected by how its gradient differs from everybody's."

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("Scaffold", "server_lr", self.server_lr)

    @property
    def client(self) -> ScaffoldClient:
        """Corrected local steps."""
        return ScaffoldClient()

    def remember(self, params: Tree, n_clients: int) -> State:
        """``control``: c, zero at first."""
        return {"control": {name: np.zeros_like(params[name]) for name in self.parameters(params)}}

    def offer(self, state: State, client: int) -> Offer:
        """The model and c."""
        return Offer(state["params"], {"control": state["control"]})

    def advance(self, state: State, round: Round) -> Step:
        """Move the model by the mean update, and c by the mean change over all N clients."""
        counted = np.full(len(round.clients), 1 / len(round.clients))
        moved = self.moved(state["params"], mean(round, counted), self.server_lr)
        changes = self.sent(round, "control_change")
        share = len(round.clients) / round.n_clients
        control = self.moved(state["control"], mean(changes, counted), share)
        return Step(moved, counted, {"control": control})


@dataclass(frozen=True)
class ScaffoldClient:
    """The client's half of `Scaffold`; keeps ``control``, its c_i."""

    def train(self, job: Job) -> Report:
        """Corrected local steps, and the change of the control variate."""
        everybody = job.told["control"]
        report, own, _ = corrected(job, everybody)
        length = report.steps * job.how.lr
        # c_i - c + (x - y) / (K lr), less c_i
        change = {name: (job.params[name] - report.params[name]) / length - everybody[name] for name in everybody}
        kept = {name: own[name] + change[name] for name in change}
        return report._replace(message={"control_change": change}, memory={"control": kept})


class Corrected(NamedTuple):
    """A report of corrected steps, the client's control variate c_i before them, and what was added, ``c - c_i``."""

    report: Report
    own: Tree
    gap: Tree


def corrected(job: Job, everybody: Tree, rate: Callable[[int, int], float] | None = None) -> Corrected:
    """Local steps along ``g_i(y) - c_i + c``, c being ``everybody``; c_i is kept as ``control``, zero at first."""
    own = job.memory.get("control") or {name: np.zeros_like(value) for name, value in everybody.items()}
    gap = {name: everybody[name] - own[name] for name in everybody}

    def adjust(params: Tree, grads: Tree, step: int) -> None:
        for name in grads:
            grads[name] += gap[name]

    return Corrected(job.train(Hooks(adjust=adjust, rate=rate)), own, gap)
