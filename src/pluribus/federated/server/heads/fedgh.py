"""FedGH: clients keep unequal extractors, and share a head that the server trains on their class means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array, Batch, cross_entropy
from pluribus.federated.parts import head_names
from pluribus.federated.server.base import Round, State
from pluribus.federated.server.heads.bodies import OwnBodies, means_message
from pluribus.federated.server.rule import Step, register, size_shares


@register
@dataclass(frozen=True)
class FedGH(OwnBodies):
    """The head descends ``mean CE(W m + b, c)`` over the class means m_ic that the clients send; bodies stay theirs.

    Every client trains its body and a copy of the head, and sends for each of its classes the mean of its features:
    classes times d numbers. The server takes ``steps`` full steps on all of them, each mean counting once, and the new
    head takes the place of everybody's. Extractors may be of any kind as long as they make d features. In this
    simulation whole updates travel and are counted all the same.

    Compared with HtFLlib's FedGH (servergh.py, clientgh.py), which draws batches of means where this takes all.

    Parameters
    ----------
    steps, lr
        Of the server's training in each round.
    """

    steps: int = 20
    lr: float = 0.1

    key = "fedgh"
    formula = "W - lr grad mean CE(W m_ic, c), m_ic client i's mean feature of class c; bodies are the clients' own"
    source = "Yi et al., FedGH: Heterogeneous Federated Learning with Generalized Global Header, MM 2023"
    explanation = "The server trains one head on the class means of everybody's features, and each client its own body."
    numbers = (106,)
    shares_head: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("FedGH", "steps", self.steps, 0)
        positive("FedGH", "lr", self.lr)

    @property
    def client(self) -> FedGHClient:
        """Training, then class means."""
        return FedGHClient()

    def advance(self, state: State, round: Round) -> Step:
        """Train the head, and keep the bodies."""
        means, classes, _ = self.prototypes(state, round)
        params = dict(state["params"])
        weight, bias = head_names(params, self.name)
        trained = train_head(params[weight], params[bias] if bias else None, means, classes, (self.steps, self.lr))
        for name, value in zip((weight, bias), trained, strict=True):
            if name is not None and value is not None:
                params[name] = value.astype(params[name].dtype)
        return Step(params, size_shares(round), {"personal": self.kept(state, round)})


def train_head(
    weight: Array, bias: Array | None, h: Array, y: Array, plan: tuple[int, float]
) -> tuple[Array, Array | None]:
    """``plan = (steps, lr)`` steps of gradient descent on ``mean CE(W h + b, y)`` over all features, in float64."""
    steps, lr = plan
    w = np.array(weight, dtype=np.float64)
    b = None if bias is None else np.array(bias, dtype=np.float64)
    for _ in range(steps):
        _, slope = cross_entropy(h @ w.T + (0.0 if b is None else b), Batch(h, y))
        w -= lr * slope.T @ h
        if b is not None:
            b -= lr * slope.sum(axis=0)
    return w, b


@dataclass(frozen=True)
class FedGHClient:
    """The client's half of `FedGH`."""

    def train(self, job: Job) -> Report:
        """Local training; sends ``means`` and ``counts``."""
        report = job.train()
        return report._replace(message=means_message(job, report.params))
