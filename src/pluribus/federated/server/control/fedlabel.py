"""FedLabel: clients with few labels let the local or the global model, whichever is surer, label the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array, Batch, softmax
from pluribus.federated.seeding import generator
from pluribus.federated.server.base import Tree
from pluribus.federated.server.control.pullback import logits, pull
from pluribus.federated.server.fedavg import FedAvg
from pluribus.federated.server.rule import one_of, register
from pluribus.federated.training import Evaluate, Hooks

JUDGES = ("surer", "local", "global")


@register
@dataclass(frozen=True)
class FedLabel(FedAvg):
    """FedAvg; local loss: CE(labelled) + mean of [sure] (CE(pseudo-label) + kl [agree] KL(local || global)).

    ``labelled`` of each client's samples keep their labels, chosen by ``seed`` and the client alone; the rule never
    looks at the other labels. Each step takes a batch of labelled samples and as many as ``batch_size`` unlabelled
    ones. An unlabelled sample gets the class of whichever of the local model (under training) and the global model (as
    received) is surer, if that one is surer than the threshold; where both name the same class, their distributions are
    drawn together. The number of steps is that of training on all samples. threshold = 1 is FedAvg on the labelled
    samples, and with local = global the KL term is zero. Takes softmax, mlp:H and torch modules.

    From the paper's abstract and general knowledge. On digits (mlp:16, 10 clients, Dirichlet(0.3), 10 % labels, 40
    rounds of 2 epochs, 3 seeds) the order labelled-only .841, global .842, local .845, surer .850 is within the spread:
    it does not separate.

    Parameters
    ----------
    labelled
        Share of each client's samples with labels, in (0, 1]; at least one sample.
    threshold
        How sure a model must be, in [0, 1].
    kl
        Weight of the KL term.
    judge
        ``"surer"``, or one model alone, to compare with: ``"local"``, ``"global"``.
    seed
        Chooses who has labels.
    server_lr, weighting
        As for `FedAvg`; sizes count all samples.
    """

    labelled: float = 0.1
    threshold: float = 0.9
    kl: float = 0.1
    judge: str = "surer"
    seed: int = 0

    key = "fedlabel"
    formula = "FedAvg; local: CE(labelled) + mean [max p > t] (CE(argmax p) + kl [agree] KL(local || global))"
    source = "Cho, Joshi and Dimitriadis, Local or Global: Selective Knowledge Assimilation, ICCV 2023"
    explanation = "Samples without labels are labelled by the local or the global model, whichever is surer of them."
    numbers = (273,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedLabel", "labelled", self.labelled)
        positive("FedLabel", "threshold", self.threshold, zero=True)
        for name in ("labelled", "threshold"):
            if getattr(self, name) > 1:
                raise RuleError(f"FedLabel: {name} must be at most 1, not {getattr(self, name)!r}")
        positive("FedLabel", "kl", self.kl, zero=True)
        one_of(self, "judge", JUDGES)
        whole_number("FedLabel", "seed", self.seed, 0)

    @property
    def client(self) -> FedLabelClient:
        """Training on few labels."""
        return FedLabelClient(self.labelled, self.threshold, self.kl, self.judge, self.seed)


@dataclass(frozen=True)
class FedLabelClient:
    """The client's half of `FedLabel`."""

    labelled: float
    threshold: float
    kl: float
    judge: str
    seed: int

    def train(self, job: Job) -> Report:
        """Local steps on labelled samples and on those that a model is sure of."""
        known = self.known(len(job.dataset), job.client)
        unlabelled = job.dataset.x[~known]
        how = replace(job.how, steps=job.how.planned_steps(len(job.dataset)))
        small = replace(job, dataset=job.dataset.take(np.flatnonzero(known)), how=how)
        if not len(unlabelled) or self.threshold >= 1:
            return small.train()

        def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
            loss, grads = evaluate(own, batch)
            rng = generator(job.seed, "fedlabel.batch", step)
            x = unlabelled[rng.permutation(len(unlabelled))[: how.batch_size]]
            local = softmax(logits(job.model, own, x))
            everybody = softmax(logits(job.model, dict(job.params), x))
            slope = self.slope(local, everybody)
            if slope.any():
                for name, extra in pull(job.model, own, x, slope).params.items():
                    grads[name] += extra
            return loss, grads

        return small.train(Hooks(gradient=gradient))

    def known(self, samples: int, client: int) -> Array:
        """Which of a client's samples have labels, (samples,)."""
        count = max(1, round(self.labelled * samples))
        known = np.zeros(samples, dtype=bool)
        known[generator(self.seed, "fedlabel.labels", client).permutation(samples)[:count]] = True
        return known

    def slope(self, local: Array, everybody: Array) -> Array:
        """Slope of the unlabelled samples' loss in the local scores, from both models' probabilities, (n, classes)."""
        n = len(local)
        use_local = {"local": np.ones(n, dtype=bool), "global": np.zeros(n, dtype=bool)}.get(
            self.judge, local.max(axis=1) >= everybody.max(axis=1)
        )
        judged = np.where(use_local[:, None], local, everybody)
        label, sure = judged.argmax(axis=1), judged.max(axis=1) > self.threshold
        slope = np.where(sure[:, None], local, 0.0)
        slope[np.flatnonzero(sure), label[sure]] -= 1
        both = sure & (local.argmax(axis=1) == everybody.argmax(axis=1))
        if self.kl and both.any():
            tiny = np.finfo(local.dtype).tiny
            ratio = np.log(np.maximum(local, tiny)) - np.log(np.maximum(everybody, tiny))
            distance = (local * ratio).sum(axis=1, keepdims=True)
            slope += self.kl * both[:, None] * local * (ratio - distance)
        return slope / n
