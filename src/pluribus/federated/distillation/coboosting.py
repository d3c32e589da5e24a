"""Co-Boosting: one-shot federated learning, in which hard samples and the ensemble's weights improve each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pluribus.core import weights as core_weights
from pluribus.core.errors import RuleError
from pluribus.core.rule import positive, whole_number
from pluribus.federated.distillation.generator import AdamMemory, Generator, check_range
from pluribus.federated.models import Array, Batch, Model, Tree, cross_entropy, softmax
from pluribus.federated.seeding import derived, generator
from pluribus.federated.server.control.pullback import logits, pull


def ensemble_scores(scores: Array, weights: Array) -> Array:
    """``F(x) = sum_k w_k f_k(x)``: scores (k, n, C) and weights (k,) to (n, C)."""
    return np.tensordot(np.asarray(weights, dtype=np.float64), np.asarray(scores, dtype=np.float64), axes=1)


def signed_step(weights: Array, scores: Array, y: Array, rate: float) -> Array:
    """``w <- clip(w - rate sign(d CE(F(x), y) / d w), 0, 1)``, divided by its sum.

    The ensemble's weights move by the sign alone, so all by as much, and stay on the simplex; where all would be zero
    they stay as they are.

    Parameters
    ----------
    weights
        (k,), of sum one.
    scores
        Each client's scores of the samples, (k, n, C).
    y
        Classes, (n,).
    rate
        ``mu decay**t``, not negative.
    """
    positive("signed_step", "rate", rate, zero=True)
    weights = core_weights.normalise(
        core_weights.check(weights, len(scores), [f"client {k}" for k in range(len(scores))])
    )
    _, slope = cross_entropy(ensemble_scores(scores, weights), Batch(np.zeros((len(y), 0)), np.asarray(y)))
    gradient = np.einsum("knc,nc->k", np.asarray(scores, dtype=np.float64), slope)
    moved = np.clip(weights - rate * np.sign(gradient), 0.0, 1.0)
    return np.asarray(moved / moved.sum()) if moved.any() else weights


@dataclass(frozen=True)
class CoBoosting:
    """Clients' finished models to an ensemble with weights, and to one model distilled from it; no data, one round.

    ``epochs`` times: (1) a fresh generator makes ``count`` samples for random classes, trained for ``generator_steps``
    to be taken for their class by the ensemble, the more a sample is hard for it the more, ``(1 - p_y)^hardness CE``,
    and to be those on which the distilled model differs, ``- adversarial KL``; (2) they join the pool, and the weights
    take `signed_step` on it, batch by batch, with rate ``mu decay^epoch``; (3) each batch of the pool is moved by
    ``reach sign(d / dx sum(r softmax(F(x) / 4)))``, r random, to be harder still, and the server's model takes a step
    of distillation from the ensemble, ``KL(F || f)`` at temperature ``temperature``.

    mu = 0 leaves the given weights, by default uniform. Takes softmax, mlp:H and TorchModel. The pool holds
    ``epochs count`` samples, which lie in [low, high] as the clients' samples should.

    Compared with the authors' code (rong-dai/Co-Boosting, coboost.py and cb_kd_train): the same losses, the same sign
    step and the same perturbation; theirs clips weights to [0, 1] without renormalising, starts adjusting in the second
    epoch, and its generator makes images.
    """

    epochs: int = 20
    count: int = 64
    generator_steps: int = 20
    generator_lr: float = 0.01
    noise: int = 16
    hidden: int = 64
    hardness: float = 1.0
    adversarial: float = 1.0
    mu: float = 0.01
    decay: float = 0.99
    reach: float = 8 / 255
    temperature: float = 4.0
    student_lr: float = 0.2
    low: float = 0.0
    high: float = 1.0

    numbers = (151,)
    source = "Dai et al., Enhancing One-Shot Federated Learning Through Data and Ensemble Co-Boosting, ICLR 2024"
    explanation = "Hard made samples find better ensemble weights, and a better ensemble finds harder samples."

    def __post_init__(self) -> None:
        for name in ("epochs", "count", "generator_steps", "noise", "hidden"):
            whole_number("CoBoosting", name, getattr(self, name), 1)
        for name in ("hardness", "adversarial", "mu", "reach"):
            positive("CoBoosting", name, getattr(self, name), zero=True)
        for name in ("generator_lr", "decay", "temperature", "student_lr"):
            positive("CoBoosting", name, getattr(self, name))
        if self.mu > 1 or self.decay > 1:
            raise RuleError("CoBoosting: mu and decay must be at most 1")
        check_range("CoBoosting", self.low, self.high)

    def __call__(
        self,
        model: Model,
        clients: Sequence[Tree],
        start: Tree,
        seed: int,
        *,
        classes: int,
        shape: tuple[int, ...],
        weights: Array | None = None,
    ) -> Boosted:
        """Run it.

        Parameters
        ----------
        model, clients
            What the parameters are of, and the k clients' models.
        start
            Where the distilled model starts.
        seed
            What all draws start from.
        classes, shape
            Number of classes, and shape of one sample.
        weights
            To start from, (k,); None: uniform.
        """
        if not clients:
            raise RuleError("CoBoosting needs at least one client's model")
        k = len(clients)
        given = np.ones(k) if weights is None else weights
        w = core_weights.normalise(core_weights.check(given, k, [f"client {i}" for i in range(k)]))
        student = {name: np.array(value) for name, value in start.items()}
        pool: list[tuple[Array, Array, Array | None]] = []  # samples, classes, and the clients' scores where needed
        history = [w]
        for epoch in range(self.epochs):
            teacher = _Teacher(model, clients, w)
            made = Generator(self.noise, self.hidden, classes, int(np.prod(shape)))
            x, y = self._samples(teacher, student, made, derived(seed, "coboosting", epoch))
            x = x.reshape(-1, *shape)
            pool.append((x, y, scores_of(model, clients, x) if self.mu else None))
            for _, y, scores in pool:
                w = w if scores is None else signed_step(w, scores, y, self.mu * self.decay**epoch)
            teacher = _Teacher(model, clients, w)
            for number, (x, *_) in enumerate(pool):
                rng = generator(seed, "coboosting.batch", epoch, number)
                student = self._distil(teacher, student, self._harder(teacher, x, rng))
            history.append(w)
        return Boosted(w, student, np.array(history), np.concatenate([x for x, *_ in pool]))

    def _samples(self, teacher: _Teacher, student: Tree, made: Generator, seed: int) -> tuple[Array, Array]:
        """The generator's best samples, (count, size), and their classes."""
        rng = generator(seed, "coboosting.samples")
        z, y = made.draw(rng, np.full(made.classes, 1 / made.classes), self.count)
        params = made.init(rng)
        memory = AdamMemory.fresh(params)
        best, least = np.zeros((self.count, made.size)), np.inf
        for _ in range(self.generator_steps):
            share = 1 / (1 + np.exp(-made.make(params, z, y)))
            x = self.low + (self.high - self.low) * share
            loss, slope = self._losses(teacher, student, x, y)
            if loss < least:
                best, least = x, loss
            slope = slope * (self.high - self.low) * share * (1 - share)
            params, memory = memory.step(params, made.pull(params, z, y, slope), self.generator_lr)
        return best, y

    def _losses(self, teacher: _Teacher, student: Tree, x: Array, y: Array) -> tuple[float, Array]:
        """The generator's loss on samples, and its slope in them, (n, size); the ensemble's part in KL is held."""
        n, rows = len(y), np.arange(len(y))
        sure = softmax(teacher.scores(x))
        hard = (1 - sure[rows, y]) ** self.hardness / n
        loss = -float(hard @ np.log(np.maximum(sure[rows, y], 1e-300)))
        slope = sure.copy()
        slope[rows, y] -= 1
        total = teacher.pull(x, slope * hard[:, None])
        pupil = softmax(np.asarray(logits(teacher.model, student, x), dtype=np.float64))
        apart = sure * (np.log(np.maximum(sure, 1e-300)) - np.log(np.maximum(pupil, 1e-300)))
        loss -= self.adversarial * float(apart.sum()) / n
        if self.adversarial:
            total = total - self.adversarial * pull(teacher.model, student, x, (pupil - sure) / n).samples
        return loss, total

    def _harder(self, teacher: _Teacher, x: Array, rng: np.random.Generator) -> Array:
        """Samples moved by ``reach`` so that the ensemble's output changes most, seen from a random direction."""
        found = softmax(teacher.scores(x) / 4)
        direction = rng.uniform(-1, 1, size=found.shape)
        slope = found * (direction - (found * direction).sum(axis=1, keepdims=True)) / 4
        return np.asarray(x + self.reach * np.sign(teacher.pull(x, slope)))

    def _distil(self, teacher: _Teacher, student: Tree, x: Array) -> Tree:
        """One gradient step on ``T^2 KL(softmax(F / T) || softmax(f / T))``."""
        heat = self.temperature
        sure = softmax(teacher.scores(x) / heat)
        pupil = softmax(np.asarray(logits(teacher.model, student, x), dtype=np.float64) / heat)
        grads = pull(teacher.model, student, x, heat * (pupil - sure) / len(x)).params
        return {
            name: np.asarray(value - self.student_lr * grads[name], dtype=value.dtype) if name in grads else value
            for name, value in student.items()
        }


@dataclass(frozen=True, eq=False)
class _Teacher:
    """The ensemble ``F(x) = sum_k w_k f_k(x)``."""

    model: Model
    clients: Sequence[Tree]
    weights: Array

    def scores(self, x: Array) -> Array:
        """F(x), (n, C)."""
        return ensemble_scores(scores_of(self.model, self.clients, x), self.weights)

    def pull(self, x: Array, slope: Array) -> Array:
        """The gradient of ``sum(slope * F(x))`` in x."""
        parts = (
            np.asarray(pull(self.model, client, x, weight * slope).samples, dtype=np.float64)
            for client, weight in zip(self.clients, self.weights, strict=True)
        )
        return np.asarray(sum(parts))


@dataclass(frozen=True, eq=False)
class Boosted:
    """What `CoBoosting` made: weights (k,), the distilled model, weights after each epoch (epochs + 1, k), the pool."""

    weights: Array
    model: Tree
    history: Array
    pool: Array


def scores_of(model: Model, clients: Sequence[Tree], x: Array) -> Array:
    """Each client's scores, (k, n, C), in float64."""
    return np.stack([np.asarray(logits(model, client, x), dtype=np.float64) for client in clients])
