"""FedTGP: global prototypes are trained apart from each other, and draw every client's features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array, Batch, Tree, softmax
from pluribus.federated.parts import head_names, parts_of
from pluribus.federated.seeding import generator
from pluribus.federated.server.base import Offer, Round, State
from pluribus.federated.server.heads.bodies import OwnBodies, means_message
from pluribus.federated.server.rule import Step, register, size_shares
from pluribus.federated.training import Evaluate, Hooks


@register
@dataclass(frozen=True)
class FedTGP(OwnBodies):
    """Q_c minimise ``mean -log softmax_c(-(|P - Q_c| + m [c = y]))`` over the P sent; local: CE + pull |h - Q_y|^2 / d.

    Clients keep models of their own and send class means P_ic of their features. The server starts Q at their weighted
    means, and trains ``Q = E + V relu(U E + u)`` (E a vector a class, U and V a small network, V zero at first) by
    ``steps`` full steps; m is the largest of the classes' distances to their nearest other mean, at most ``cap``. So
    prototypes part although clients' means lie close. steps = 0 is FedProto: the weighted means. A class that nobody
    present has keeps its prototype. The extractors may be of any kind that makes d features. Prototypes are all that
    has to travel; in this simulation whole updates do, and are counted.

    Compared with HtFLlib's FedTGP (servertgp.py, clienttgp.py), whose network has no shortcut, starts at random and is
    kept over the rounds, and whose clients decide by the nearest prototype; here they decide by their heads. On digits
    its lead over steps = 0 does not separate: it is ahead on some seeds and behind on others.

    Parameters
    ----------
    steps, lr
        Of the server's training in each round.
    cap
        Largest margin; 100 in the reference.
    pull
        Weight of the local term; 10 in the reference.
    """

    steps: int = 50
    lr: float = 0.1
    cap: float = 100.0
    pull: float = 10.0

    key = "fedtgp"
    formula = (
        "Q = argmin mean -log softmax_y(-(|P - Q_c| + m [c = y])), from Q_c = mean P_c; local: CE + a |h - Q_y|^2/d"
    )
    source = "Zhang et al., FedTGP: Trainable Global Prototypes with Adaptive-Margin Contrastive Learning, AAAI 2024"
    explanation = "The server trains class prototypes apart from each other, and clients draw their features to them."
    numbers = (129,)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("FedTGP", "steps", self.steps, 0)
        positive("FedTGP", "lr", self.lr)
        positive("FedTGP", "cap", self.cap, zero=True)
        positive("FedTGP", "pull", self.pull, zero=True)

    @property
    def client(self) -> FedTGPClient:
        """Training with the pull, then class means."""
        return FedTGPClient(self.pull)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``global``, (C, d), and ``known``, (C,): which classes have a prototype."""
        weight, _ = head_names(params, self.name)
        classes = len(params[weight])
        made = {"global": np.zeros(params[weight].shape), "known": np.zeros(classes, dtype=bool)}
        return {**super().remember(params, n_clients), **made}

    def offer(self, state: State, client: int) -> Offer:
        """The client's model and the global prototypes."""
        return Offer(self.model_of(state, client), {"global": state["global"], "known": state["known"]})

    def advance(self, state: State, round: Round) -> Step:
        """Train the prototypes, and keep the models."""
        means, classes, sizes = self.prototypes(state, round)
        start = weighted_means(means, classes, sizes, len(state["known"]))
        here = np.zeros(len(state["known"]), dtype=bool)
        here[classes] = True
        margin = min(adaptive_margin(start[here]), self.cap)
        found = trained(start[here], means, np.searchsorted(np.flatnonzero(here), classes), margin, self)
        prototypes = state["global"].copy()
        prototypes[here] = found
        memory = {"global": prototypes, "known": state["known"] | here, "personal": self.kept(state, round)}
        return Step(state["params"], size_shares(round), memory)


def weighted_means(means: Array, classes: Array, sizes: Array, count: int) -> Array:
    """Mean of each class's vectors, weighted by samples, (count, d); zeros for a class without any."""
    sums, total = np.zeros((count, means.shape[1])), np.zeros(count)
    np.add.at(sums, classes, sizes[:, None] * means)
    np.add.at(total, classes, sizes)
    return sums / np.where(total > 0, total, 1.0)[:, None]


def nearest(rows: Array) -> Array:
    """Distance of each row to its nearest other row; 0 for a row alone."""
    if len(rows) < 2:
        return np.zeros(len(rows))
    gaps = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    np.fill_diagonal(gaps, np.inf)
    least: Array = gaps.min(axis=1)
    return least


def adaptive_margin(rows: Array) -> float:
    """Largest of the classes' distances to their nearest other mean."""
    return float(nearest(rows).max())


def contrast(prototypes: Array, means: Array, classes: Array, margin: float) -> tuple[float, Array]:
    """``mean -log softmax_y(-(|P - Q_c| + margin [c = y]))``, and its slope in Q, (C, d): 0 at distance 0."""
    gaps = prototypes[None] - means[:, None]
    far = np.sqrt((gaps**2).sum(axis=2))
    own = np.zeros(far.shape)
    own[np.arange(len(classes)), classes] = 1.0
    shares = softmax(-(far + margin * own))
    loss = -np.log(np.maximum(shares[np.arange(len(classes)), classes], np.finfo(np.float64).tiny)).mean()
    rate = (own - shares) / len(classes)
    scale = np.divide(rate, far, out=np.zeros_like(far), where=far > 0)
    slope: Array = (scale[:, :, None] * gaps).sum(axis=0)
    return float(loss), slope


def trained(start: Array, means: Array, classes: Array, margin: float, rule: FedTGP) -> Array:
    """Prototypes after the server's steps from ``start``, (C, d): ``E + V relu(U E + u)``, all of it trained."""
    d = start.shape[1]
    rng = generator(0, "fedtgp.network")
    embedding, inner, shift = start.copy(), rng.standard_normal((d, d)) * np.sqrt(2 / d), np.zeros(d)
    outer = np.zeros((d, d))
    for _ in range(rule.steps):
        hidden = np.maximum(embedding @ inner.T + shift, 0)
        _, slope = contrast(embedding + hidden @ outer.T, means, classes, margin)
        back = (slope @ outer) * (hidden > 0)
        moves = slope + back @ inner, back.T @ embedding, back.sum(axis=0), slope.T @ hidden
        for value, move in zip((embedding, inner, shift, outer), moves, strict=True):
            np.subtract(value, rule.lr * move, out=value)
    prototypes: Array = embedding + np.maximum(embedding @ inner.T + shift, 0) @ outer.T
    return prototypes


@dataclass(frozen=True)
class FedTGPClient:
    """The client's half of `FedTGP`."""

    pull: float

    def train(self, job: Job) -> Report:
        """Local steps with features drawn to the prototypes of their classes; sends ``means`` and ``counts``."""
        parts = parts_of(job.model)
        prototypes, known = job.told["global"], job.told["known"]

        def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
            loss, grads = evaluate(own, batch)
            h = parts.features(own, batch.x)
            slope = (2 * self.pull / h.size) * known[batch.y][:, None] * (h - prototypes[batch.y])
            for name, value in parts.pull_features(own, batch.x, slope).params.items():
                grads[name] += value
            return loss, grads

        report = job.train(Hooks(gradient=gradient) if self.pull and known.any() else Hooks())
        return report._replace(message=means_message(job, report.params))
