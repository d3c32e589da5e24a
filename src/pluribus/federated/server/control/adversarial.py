"""Federated adversarial training: clients train on samples that were moved to where the model errs most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array, Batch, Model
from pluribus.federated.server.base import Tree
from pluribus.federated.server.control.pullback import input_gradient
from pluribus.federated.server.fedavg import FedAvg
from pluribus.federated.server.rule import one_of, register
from pluribus.federated.training import Evaluate, Hooks

NORMS = ("linf", "l2")


@register
@dataclass(frozen=True)
class AdversarialTraining(FedAvg):
    """FedAvg on ``max_(|e| <= radius) loss(w; x + e, y)``: the inner maximum by projected gradient ascent at each step.

    The ascent starts at the sample and takes ``ascents`` steps of ``2.5 radius / ascents``, along the sign of the
    gradient (``"linf"``) or the gradient itself (``"l2"``), each projected to the ball; samples may leave the data's
    range. radius = 0 is FedAvg, bit for bit. A step costs ``ascents + 1`` gradients. It takes models whose gradient in
    the samples is known here: softmax, mlp:H, and torch modules.

    From the paper's abstract and general knowledge; the ascent is that of Madry et al. 2018.

    Parameters
    ----------
    radius
        Of the ball, in the units of the (standardised) features.
    ascents
        Steps of the inner ascent.
    norm
        ``"linf"`` or ``"l2"``, for each sample.
    server_lr, weighting
        As for `FedAvg`.
    """

    radius: float = 0.1
    ascents: int = 3
    norm: str = "linf"

    key = "adversarial"
    formula = "x + lr * sum_i n_i delta_i / sum_i n_i; local: y - lr_l grad max_(|e| <= r) loss(y; x + e)"
    source = "Li, Song and Yang, Federated Adversarial Learning: A Framework with Convergence Analysis, ICML 2023"
    explanation = "Clients train on samples perturbed against the model, so that small perturbations do not fool it."
    numbers = (77,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("AdversarialTraining", "radius", self.radius, zero=True)
        whole_number("AdversarialTraining", "ascents", self.ascents, 1)
        one_of(self, "norm", NORMS)

    @property
    def client(self) -> AdversarialClient:
        """Training on moved samples."""
        return AdversarialClient(self.radius, self.ascents, self.norm)


@dataclass(frozen=True)
class AdversarialClient:
    """The client's half of `AdversarialTraining`."""

    radius: float
    ascents: int
    norm: str

    def train(self, job: Job) -> Report:
        """Local steps on moved samples."""

        def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
            moved = adversarial_samples(job.model, own, batch, self.radius, ascents=self.ascents, norm=self.norm)
            return evaluate(own, Batch(moved, batch.y, batch.weight))

        return job.train(Hooks(gradient=gradient)) if self.radius else job.train()


def adversarial_samples(
    model: Model, params: Tree, batch: Batch, radius: float, *, ascents: int = 10, norm: str = "linf"
) -> Array:
    """The batch's samples, each moved by at most ``radius`` so that its loss is large; of the samples' shape.

    Parameters
    ----------
    model, params, batch
        Whose loss is raised, and for which samples and labels.
    radius, ascents, norm
        As for `AdversarialTraining`.

    Raises
    ------
    RuleError
        The model's gradient in its samples is not known here.
    """
    x = np.array(batch.x)
    away = np.zeros_like(x)
    axes = tuple(range(1, x.ndim))
    step = 2.5 * radius / ascents
    for _ in range(ascents if radius else 0):
        slope = input_gradient(model, params, Batch(x + away, batch.y)).astype(x.dtype)
        if norm == "linf":
            away = np.clip(away + step * np.sign(slope), -radius, radius)
        else:
            size = np.sqrt((slope * slope).sum(axis=axes, keepdims=True))
            away += step * np.divide(slope, size, out=np.zeros_like(slope), where=size > 0)
            far = np.sqrt((away * away).sum(axis=axes, keepdims=True))
            away *= np.minimum(1.0, np.divide(radius, far, out=np.ones_like(far), where=far > 0))
    moved: Array = x + away.astype(x.dtype)
    return moved
