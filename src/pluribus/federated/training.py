"""Local training: what one client does with its samples between two rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from pluribus.federated.data import Dataset
from pluribus.federated.errors import DataError, SettingError
from pluribus.federated.models import Array, Batch, LocallyTrained, Model, Tree
from pluribus.federated.seeding import generator


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: SGD with momentum from the server's parameters ``w0``.

    Each step takes a batch and does ``g = grad L(w) + proximal_mu (w - w0)``, ``v = momentum v + g``, ``w =
    w - lr v``; ``v`` starts at zero in every round. ``proximal_mu`` is the FedProx term ``mu / 2 |w -
    w0|^2`` (Li et al. 2020). Each epoch visits every sample once, in an order of its own; the last batch
    may be short. ``steps``, if given, replaces ``epochs``: so many batches, however many epochs that takes.
    ``max_grad_norm`` rescales a gradient (with its proximal part) whose norm over all tensors is larger.
    """

    epochs: int = 1
    batch_size: int = 32
    lr: float = 0.1
    momentum: float = 0.0
    proximal_mu: float = 0.0
    steps: int | None = None
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "steps"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, (int, np.integer)) or value < 1):
                raise SettingError(f"{name} is {value!r}; expected a whole number >= 1")
        _check(self.lr, "lr", self.lr > 0, "a number > 0")
        _check(self.momentum, "momentum", 0 <= self.momentum < 1, "a number in [0, 1)")
        _check(self.proximal_mu, "proximal_mu", self.proximal_mu >= 0, "a number >= 0")
        if self.max_grad_norm is not None:
            _check(self.max_grad_norm, "max_grad_norm", self.max_grad_norm > 0, "a number > 0, or none")

    def planned_steps(self, samples: int) -> int:
        """Steps of a round for a client with so many samples."""
        return self.steps if self.steps is not None else self.epochs * -(-samples // self.batch_size)


Evaluate = Callable[[Tree, Batch], tuple[float, Tree]]
"""``evaluate(params, batch) -> (loss, gradient)``; the gradient's arrays are the caller's."""


@dataclass(frozen=True)
class Hooks:
    """Where a client method changes the steps of `train`; None leaves a step as it is.

    Parameters
    ----------
    gradient
        ``gradient(evaluate, own, batch, step) -> (loss, grads)`` takes the place of ``evaluate(own, batch)``: to look
        at another point (SAM), to add a term, to change the batch. Buffers move by the step's first evaluation.
    adjust
        ``adjust(own, grads, step)`` changes the gradient in place, after the proximal part and before clipping: a
        control variate, a mask.
    rate
        ``rate(step, steps) -> factor`` of the learning rate, for a schedule within the round.
    after
        ``after(own, step)`` changes the parameters in place after a step: a projection.

    ``step`` counts from 0.
    """

    gradient: Callable[[Evaluate, Tree, Batch, int], tuple[float, Tree]] | None = None
    adjust: Callable[[Tree, Tree, int], None] | None = None
    rate: Callable[[int, int], float] | None = None
    after: Callable[[Tree, int], None] | None = None


UNCHANGED = Hooks()


class LocalResult(NamedTuple):
    """A client's new parameters, its mean loss per sample seen (proximal part left out), and its steps."""

    params: Tree
    loss: float
    steps: int


def train(
    model: Model, params: Tree, dataset: Dataset, how: LocalTraining, seed: int, *, hooks: Hooks = UNCHANGED
) -> LocalResult:
    """Train ``params`` on a client's samples; neither ``params`` nor the dataset is modified.

    ``seed`` fixes the order of the samples; the caller makes one for each client and round, so that clients
    can train in any order. Names for which the model gives no gradient are copied through, except that the
    buffers of a ``BufferedModel`` are carried from step to step. A run that diverges returns what it
    reached, NaN or Inf included: the server's policy decides about it.

    Raises ``DataError`` for a client without samples.
    """
    refuse_empty(dataset)
    if isinstance(model, LocallyTrained):
        return model.fit(params, dataset, how, seed, hooks=hooks)
    own = {name: np.array(value) for name, value in params.items()}
    evaluate = Evaluator(model, own)
    velocity: Tree = {}
    summed, seen, steps = 0.0, 0, 0
    planned = how.planned_steps(len(dataset))
    with np.errstate(all="ignore"):
        for batch in batches(dataset, how, seed):
            if hooks.gradient is None:
                loss, grads = evaluate(own, batch)
            else:
                loss, grads = hooks.gradient(evaluate, own, batch, steps)
            evaluate.move_buffers()
            lr = how.lr if hooks.rate is None else how.lr * hooks.rate(steps, planned)
            if how.proximal_mu:
                for name in grads:
                    grads[name] += how.proximal_mu * (own[name] - params[name])
            if hooks.adjust is not None:
                hooks.adjust(own, grads, steps)
            _step(own, grads, velocity, how, lr)
            if hooks.after is not None:
                hooks.after(own, steps)
            summed += loss * len(batch.y)
            seen += len(batch.y)
            steps += 1
    return LocalResult(own, summed / seen, steps)


def refuse_empty(dataset: Dataset) -> None:
    """Raise ``DataError`` for a client without samples."""
    if len(dataset) == 0:
        raise DataError("a client has no samples to train on; give the partition fewer clients")


class Evaluator:
    """A model's loss and gradient; keeps the buffers that the first evaluation of a step leaves."""

    def __init__(self, model: Model, own: Tree) -> None:
        self._model, self._own = model, own
        # By name, because to ask the protocol costs 10 us on Python 3.11.
        self._buffered = model if hasattr(model, "loss_grad_and_buffers") else None
        self._buffers: Tree | None = None

    def __call__(self, params: Tree, batch: Batch) -> tuple[float, Tree]:
        """Loss and gradient at any point."""
        if self._buffered is None:
            return self._model.loss_and_grad(params, batch)
        loss, grads, buffers = self._buffered.loss_grad_and_buffers(params, batch)
        if self._buffers is None:
            self._buffers = buffers
        return loss, grads

    def move_buffers(self) -> None:
        """Let the buffers of the step stand in the parameters."""
        if self._buffers is not None:
            self._own.update(self._buffers)
            self._buffers = None


def batches(dataset: Dataset, how: LocalTraining, seed: int) -> Iterator[Batch]:
    """The batches of a client's round, in the order that the seed fixes."""
    rng = generator(seed, "training")
    epochs = range(how.epochs) if how.steps is None else count()
    return islice((batch for _ in epochs for batch in _epoch(dataset, how.batch_size, rng)), how.steps)


def _epoch(dataset: Dataset, size: int, rng: np.random.Generator) -> Iterator[Batch]:
    # Samples are gathered once an epoch, and batches are views of that copy.
    order = rng.permutation(len(dataset))
    x, y = dataset.x[order], dataset.y[order]
    for start in range(0, len(order), size):
        yield Batch(x[start : start + size], y[start : start + size])


def _step(own: Tree, grads: Tree, velocity: Tree, how: LocalTraining, lr: float) -> None:
    """One step in place; ``own``, ``grads`` and ``velocity`` belong to this training run."""
    if how.max_grad_norm is not None:
        _clip(grads, how.max_grad_norm)
    for name, grad in grads.items():
        if how.momentum:
            if name in velocity:
                velocity[name] *= how.momentum
                velocity[name] += grad
            else:
                velocity[name] = grad.copy()
        own[name] -= np.multiply(velocity[name] if how.momentum else grad, lr, out=grad)


def _clip(grads: Tree, most: float) -> None:
    norm = float(np.sqrt(sum(_square(grad) for grad in grads.values())))
    if norm > most:
        for name in grads:
            grads[name] *= most / norm


def _square(value: Array) -> float:
    flat = value.ravel()
    return float(np.dot(flat, flat))


def _check(value: float, name: str, good: bool, expected: str) -> None:
    if not (good and np.isfinite(value)):
        raise SettingError(f"{name} is {value!r}; expected {expected}")
