"""FedSpeed: a proximal term with its bias corrected, and steps that look uphill for flat ground."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Batch
from pluribus.federated.server.base import Round, State, Tree
from pluribus.federated.server.control.feddyn import tilted
from pluribus.federated.server.rule import Server, Step, mean, register
from pluribus.federated.training import Evaluate, Hooks


@register
@dataclass(frozen=True)
class FedSpeed(Server):
    """``mean_i (y_i - lam c_i)``; local: ``y - lr (v - c_i + (y - x) / lam)`` with a gradient v that looks uphill.

    ``v = (1 - a) g(y) + a g(y + rho g(y) / |g(y)|)``. After its K steps client i sets
    ``c_i <- c_i - (y - x) / lam`` and sends ``y - lam c_i``, one model as under FedAvg.
    With ``correct=False`` c_i stays zero: then a = 0 is FedProx with mu = 1 / lam, and FedAvg as lam grows.
    Participants count alike. On full-batch quadratics with a = 0 the fixed point is the optimum of the mean objective.
    The clients keep one model each.

    Compared with the algorithm as the authors' code has it (woodenchild95/FL-Simulator, client and server fedspeed;
    theirs averages the corrections of all N clients at the server, the paper and this those of the participants).

    Parameters
    ----------
    lam
        Weight of the proximal term is 1 / lam.
    rho
        How far uphill the second gradient is taken.
    ascent
        a, its share in [0, 1]; 0 spares the second gradient.
    correct
        Whether the proximal term's bias is corrected.
    """

    lam: float = 10.0
    rho: float = 0.1
    ascent: float = 0.9
    correct: bool = True

    key = "fedspeed"
    formula = "mean_i (y_i - lam c_i); local: y - lr ((1 - a) g(y) + a g(y + rho g / |g|) - c_i + (y - x) / lam)"
    source = "Sun et al., FedSpeed: Larger Local Interval, Less Communication Round, and Higher Accuracy, ICLR 2023"
    explanation = "Clients are held near the global model without the bias this brings, and step towards flat ground."
    numbers = (302,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedSpeed", "lam", self.lam)
        positive("FedSpeed", "rho", self.rho, zero=True)
        positive("FedSpeed", "ascent", self.ascent, zero=True)
        if self.ascent > 1:
            raise RuleError(f"FedSpeed: ascent must be at most 1, a share, not {self.ascent!r}")
        if not isinstance(self.correct, bool):
            raise RuleError(f"FedSpeed: correct must be true or false, not {self.correct!r}")

    @property
    def client(self) -> FedSpeedClient:
        """Held, corrected steps."""
        return FedSpeedClient(self.lam, self.rho, self.ascent, self.correct)

    def advance(self, state: State, round: Round) -> Step:
        """The mean of what the participants sent."""
        counted = np.full(len(round.clients), 1 / len(round.clients))
        return Step(self.moved(state["params"], mean(round, counted)), counted, {})


@dataclass(frozen=True)
class FedSpeedClient:
    """The client's half of `FedSpeed`; keeps ``correction``, its c_i."""

    lam: float
    rho: float
    ascent: float
    correct: bool

    def train(self, job: Job) -> Report:
        """Held, corrected steps; what is sent is past where they ended."""
        hooks = Hooks(gradient=uphill(self.rho, self.ascent) if self.ascent and self.rho else None)
        report = tilted(job, "correction", lambda gap: gap / self.lam, hooks)
        if not self.correct:
            return report._replace(memory=job.memory)
        past = {name: report.params[name] - self.lam * value for name, value in report.memory["correction"].items()}
        return report._replace(params={**report.params, **past})


def uphill(rho: float, share: float = 1.0) -> Callable[[Evaluate, Tree, Batch, int], tuple[float, Tree]]:
    """``(1 - share) g(w) + share g(w + rho g / |g|)`` in the place of the gradient; the norm is over all tensors."""

    def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
        loss, grads = evaluate(own, batch)
        norm = float(np.sqrt(sum(float(np.vdot(g, g)) for g in grads.values())))
        if norm == 0 or not np.isfinite(norm):
            return loss, grads
        above = {name: own[name] + rho / norm * grads[name] if name in grads else own[name] for name in own}
        _, steeper = evaluate(above, batch)
        return loss, {name: (1 - share) * grads[name] + share * steeper[name] for name in grads}

    return gradient
