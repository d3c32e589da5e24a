"""FedSWA and FedMoSWA: rates that fall within a round, and a server that averages along the way to flat minima."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.server.base import Array, Offer, Round, State, Tree
from pluribus.federated.server.control.scaffold import corrected
from pluribus.federated.server.rule import Server, Step, mean, one_of, register, shares_by
from pluribus.federated.training import Hooks

PAPER = "Liu et al., Improving Generalization in Federated Learning with Highly Heterogeneous Data, ICML 2025"


@dataclass(frozen=True)
class _Averaging(Server):
    """The server's half that both share: ``x + alpha (mean_i y_i - x)``."""

    alpha: float = 1.5
    rho: float = 0.1
    weighting: str = "size"

    source = PAPER
    numbers = (33,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(type(self).__name__, "alpha", self.alpha)
        positive(type(self).__name__, "rho", self.rho, zero=True)
        if self.rho > 1:
            raise RuleError(f"{type(self).__name__}: rho must be at most 1, a share of the rate, not {self.rho!r}")
        one_of(self, "weighting", ("size", "uniform"))

    def averaged(self, state: State, round: Round) -> tuple[Tree, Array]:
        """The model after the round, and the weights."""
        counted = shares_by(round, self.weighting)
        return self.moved(state["params"], mean(round, counted), self.alpha), counted


@register
@dataclass(frozen=True)
class FedSWA(_Averaging):
    """``x + alpha (mean_i y_i - x)``, where the clients' rate falls from lr to ``rho lr`` within each round.

    Step k of K has the rate ``lr (1 - (1 - rho) k / K)``, k = 0, ..., K - 1, and every round starts with lr again. With
    alpha = rho = 1 it is FedAvg. On digits (10 clients, Dirichlet(0.1), 12 rounds, 3 seeds) the loss around the
    model is below FedAvg's, as in the paper; so is the loss at it.

    Compared with a summary of the paper's equations and with the authors' code (junkangLiu0/FedSWA, main_FedSWA.py),
    which fixes rho = 0.

    Parameters
    ----------
    alpha
        Step towards the mean; above 1 it goes past it. The paper's best is 1.5.
    rho
        What is left of the rate at a round's end, in [0, 1].
    weighting
        ``"size"`` or, as published, ``"uniform"``.
    """

    key = "fedswa"
    formula = "x + alpha (mean_i y_i - x); local: rate lr (1 - (1 - rho) k / K) at step k of K"
    explanation = "Local rates fall within each round, and the global model is a running average of what that gives."

    @property
    def client(self) -> FedSWAClient:
        """Training with a falling rate."""
        return FedSWAClient(self.rho)

    def advance(self, state: State, round: Round) -> Step:
        """The running average."""
        params, counted = self.averaged(state, round)
        return Step(params, counted, {})


@register
@dataclass(frozen=True)
class FedMoSWA(_Averaging):
    """FedSWA with local steps ``y - rate_k (g_i(y) - c_i + m)``, and ``m + gamma mean_i (c_i - m)``.

    After its steps ``c_i <- c_i - m + (x - y) / sum_k rate_k``: the mean gradient that the client saw. m is an
    exponential average of these over rounds, so new clients count more than in SCAFFOLD, where m is the mean over all.
    With all of them zero it is FedSWA. With gamma = 1 and equal clients ``m - c_i`` is zero; with gamma < 1 it is what
    the average lags behind, and acts as momentum. The clients keep one model each.

    Compared as for `FedSWA`.

    Parameters
    ----------
    alpha, rho, weighting
        As for `FedSWA`.
    gamma
        Share of the new in m, in (0, 1]; 0.2 in the paper.
    """

    gamma: float = 0.2

    key = "fedmoswa"
    formula = "x + alpha (mean_i y_i - x), m + gamma mean_i (c_i - m); local: y - rate_k (g_i(y) - c_i + m)"
    explanation = "FedSWA, where a running average of everybody's gradients also corrects each client's drift."

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedMoSWA", "gamma", self.gamma)
        if self.gamma > 1:
            raise RuleError(f"FedMoSWA: gamma must be at most 1, a share, not {self.gamma!r}")

    @property
    def client(self) -> FedMoSWAClient:
        """Corrected training with a falling rate."""
        return FedMoSWAClient(self.rho)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``momentum``: m, zero at first."""
        return {"momentum": {name: np.zeros_like(params[name]) for name in self.parameters(params)}}

    def offer(self, state: State, client: int) -> Offer:
        """The model and m."""
        return Offer(state["params"], {"momentum": state["momentum"]})

    def advance(self, state: State, round: Round) -> Step:
        """The running averages of the model and of the gradients."""
        params, counted = self.averaged(state, round)
        gaps = mean(self.sent(round, "gap"), counted)
        return Step(params, counted, {"momentum": self.moved(state["momentum"], gaps, self.gamma)})


@dataclass(frozen=True)
class FedSWAClient:
    """The client's half of `FedSWA`."""

    rho: float

    def train(self, job: Job) -> Report:
        """Local steps whose rate falls."""
        return job.train(Hooks(rate=falling(self.rho)))


@dataclass(frozen=True)
class FedMoSWAClient:
    """The client's half of `FedMoSWA`; keeps ``control``, its c_i."""

    rho: float

    def train(self, job: Job) -> Report:
        """Corrected local steps whose rate falls; sends ``gap``, c_i - m."""
        everybody = job.told["momentum"]
        rate = falling(self.rho)
        report, _, gap = corrected(job, everybody, rate)
        length = job.how.lr * sum(rate(step, report.steps) for step in range(report.steps))
        seen = {name: (job.params[name] - report.params[name]) / length - gap[name] for name in gap}
        return report._replace(
            message={"gap": {name: seen[name] - everybody[name] for name in seen}}, memory={"control": seen}
        )


def falling(rho: float) -> Callable[[int, int], float]:
    """``rate(step, steps)``: linearly from 1 at the first step towards ``rho`` after the last."""

    def rate(step: int, steps: int) -> float:
        return 1.0 - (1.0 - rho) * step / steps

    return rate
