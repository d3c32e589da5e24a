"""FedImpro: every client's head also trains on features drawn from everybody's class-conditional moments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array, Batch, Tree, cross_entropy
from pluribus.federated.parts import class_means, head_names, parts_of
from pluribus.federated.seeding import generator
from pluribus.federated.server.base import Offer, Round, State
from pluribus.federated.server.fedavg import FedAvg
from pluribus.federated.server.rule import Step, register
from pluribus.federated.training import Evaluate, Hooks


@register
@dataclass(frozen=True)
class FedImpro(FedAvg):
    """FedAvg; heads also train on ``h ~ N(mu_y, var_y)``, the moments of class y's features pooled over the clients.

    Each participant sends mean and variance of the received model's features in each of its classes; the server pools
    them by counts, ``var = sum n_i (var_i + (mu_i - mu)^2) / sum n_i``, which is what the union of the samples has. In
    the next round each step takes, beside its batch, ``share`` times as many features of classes drawn alike among
    those known, and their mean cross-entropy moves the head alone. share = 0 is FedAvg to the bit. A class that nobody
    present has keeps its moments.

    Compared with the authors' code (wizard1203/FedImpro, GaussianSynthesisLabel.py), whose moments are running means
    of batches during training and whose variance may be one constant.

    Parameters
    ----------
    share
        Drawn features for each sample of a batch.
    weight
        Of their loss against the batch's.
    noise
        Standard deviation of normal noise that a client adds to the means it sends, for privacy.
    server_lr, weighting
        As for `FedAvg`.
    """

    share: float = 1.0
    weight: float = 1.0
    noise: float = 0.0

    key = "fedimpro"
    formula = "FedAvg; head's loss + weight E_y CE(head(h), y), h ~ N(mu_y, var_y) pooled over the clients"
    source = "Tang et al., FedImpro: Measuring and Improving Client Update in Federated Learning, ICLR 2024"
    explanation = "Heads train on own features and on features drawn from everybody's classes."
    numbers = (290,)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("share", "weight", "noise"):
            positive("FedImpro", name, getattr(self, name), zero=True)

    @property
    def client(self) -> FedImproClient:
        """Training with drawn features."""
        return FedImproClient(self.share, self.weight, self.noise)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``means`` and ``variances``, (C, d), and ``counts``, (C,), the samples behind them, zeros at first."""
        weight, _ = head_names(params, self.name)
        shape = params[weight].shape
        return {"means": np.zeros(shape), "variances": np.zeros(shape), "counts": np.zeros(shape[0])}

    def offer(self, state: State, client: int) -> Offer:
        """The model and the moments."""
        return Offer(state["params"], {name: state[name] for name in ("means", "variances", "counts")})

    def advance(self, state: State, round: Round) -> Step:
        """FedAvg, and new moments of the classes that the participants have."""
        step = super().advance(state, round)
        told = []
        for client, message in round.heard():
            sent = [np.asarray(message.get(name, 0.0), dtype=np.float64) for name in ("means", "variances", "counts")]
            if [value.shape for value in sent] != [state["means"].shape] * 2 + [state["counts"].shape]:
                raise RuleError(
                    f"fedimpro needs means and variances {state['means'].shape} and counts of client {client}; let the "
                    "clients use the rule's own method, `FedImpro().client`, on features of one size"
                )
            if (sent[1] < 0).any() or (sent[2] < 0).any():
                raise RuleError(f"fedimpro: client {client} told a negative variance or count; both are >= 0")
            told.append(sent)
        pooled = pool_moments(*(np.stack(values) for values in zip(*told, strict=True)))
        here = pooled[2] > 0
        memory = {
            name: np.where(here[:, None] if value.ndim == 2 else here, value, state[name])
            for name, value in zip(("means", "variances", "counts"), pooled, strict=True)
        }
        return step._replace(memory=memory)


def pool_moments(means: Array, variances: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Moments of the union, from those of k disjoint parts: means and variances (k, C, d), counts (k, C).

    The law of total variance: ``mu = sum n_i mu_i / n``, ``var = sum n_i (var_i + (mu_i - mu)^2) / n``. Variances are
    those of the samples as they are (divided by n, not n - 1). Zeros for a class without samples.
    """
    total = counts.sum(axis=0)
    shares = (counts / np.where(total > 0, total, 1.0))[:, :, None]
    pooled = (shares * means).sum(axis=0)
    return pooled, (shares * (variances + (means - pooled) ** 2)).sum(axis=0), total


def moments(h: Array, y: Array, classes: int) -> tuple[Array, Array, Array]:
    """Mean and variance of each class's features, (C, d), and its samples, (C,)."""
    means, counts = class_means(h, y, classes)
    return means, class_means((np.asarray(h, dtype=np.float64) - means[y]) ** 2, y, classes)[0], counts


@dataclass(frozen=True)
class FedImproClient:
    """The client's half of `FedImpro`."""

    share: float
    weight: float
    noise: float

    def train(self, job: Job) -> Report:
        """Local steps on samples and drawn features; sends the moments of the received model's features."""
        parts = parts_of(job.model)
        told = job.told
        known = np.flatnonzero(told["counts"] > 0)
        spread = np.sqrt(told["variances"])

        def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
            loss, grads = evaluate(own, batch)
            rng = generator(job.seed, "fedimpro.features", step)
            y = known[rng.integers(len(known), size=max(round(self.share * len(batch.y)), 1))]
            drawn = told["means"][y] + spread[y] * rng.standard_normal((len(y), spread.shape[1]))
            h = drawn.astype(own[parts.weight].dtype)
            _, slope = cross_entropy(parts.head(own, h), Batch(h, y))
            for name, value in parts.pull_head(own, h, slope).params.items():
                grads[name] += self.weight * value
            return loss, grads

        active = len(known) and self.share and self.weight
        report = job.train(Hooks(gradient=gradient) if active else Hooks())
        h = parts.features(dict(job.params), job.dataset.x)
        means, variances, counts = moments(h, job.dataset.y, len(job.params[parts.weight]))
        if self.noise:
            rng = generator(job.seed, "fedimpro.noise")
            means += self.noise * rng.standard_normal(means.shape) * (counts > 0)[:, None]
        return report._replace(message={"means": means, "variances": variances, "counts": counts})
