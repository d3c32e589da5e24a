"""Models as pure functions of a tree of parameters, and two of them in plain numpy.

A tree is a ``dict[str, ndarray]``. Weights are stored ``(out, in)`` under the names that ``torch.nn.Linear``
gives them, so a tree can be loaded into a torch module and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pluribus.federated.errors import DataError, SettingError
from pluribus.federated.seeding import generator

if TYPE_CHECKING:
    from pluribus.federated.data import Dataset
    from pluribus.federated.training import Hooks, LocalResult, LocalTraining

Array = NDArray[Any]
Tree = dict[str, Array]

DTYPES = ("float32", "float64")
ACTIVATIONS = ("relu", "tanh")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples ``x`` of shape ``(n, ...)``, labels ``y`` of shape ``(n,)`` in ``0..n_classes-1``, and weights.

    ``weight`` of shape ``(n,)``, not negative, makes the loss ``sum_i weight_i loss_i / sum_i weight_i``;
    without it every sample counts the same.
    """

    x: Array
    y: Array
    weight: Array | None = None


class Model(Protocol):
    """What local training needs to know of a model. Every method is pure: arguments are never modified."""

    def init(self, seed: int) -> Tree:
        """Fresh parameters; the same seed gives the same bytes."""
        ...

    def loss_and_grad(self, params: Tree, batch: Batch) -> tuple[float, Tree]:
        """Mean loss of a batch, and its gradient for each trained name, in arrays the caller may keep."""
        ...

    def predict(self, params: Tree, x: Array) -> NDArray[np.int64]:
        """The most probable class of each sample, shape ``(n,)``."""
        ...

    def probabilities(self, params: Tree, x: Array) -> Array:
        """Class probabilities, shape ``(n, n_classes)``, rows sum to one."""
        ...


@runtime_checkable
class BufferedModel(Protocol):
    """A model whose tree also holds buffers that a training step moves without a gradient (running means)."""

    def loss_grad_and_buffers(self, params: Tree, batch: Batch) -> tuple[float, Tree, Tree]:
        """As ``loss_and_grad``, and the buffers as they stand after the step."""
        ...


@runtime_checkable
class LocallyTrained(Protocol):
    """A model that trains with a loop of its own: another optimiser, mixed precision, a compiled epoch.

    `training.train` hands over to it. What the training and its hooks say holds all the same, or the model says in an
    error what it cannot do.
    """

    def fit(self, params: Tree, dataset: Dataset, how: LocalTraining, seed: int, *, hooks: Hooks) -> LocalResult:
        """As ``training.train(model, params, dataset, how, seed, hooks=hooks)``. Nothing given is modified."""
        ...


class Scoring:
    """Classes and probabilities of a model that scores classes."""

    def logits(self, params: Tree, x: Array) -> Array:
        """Scores before the softmax, shape ``(n, n_classes)``."""
        raise NotImplementedError

    def predict(self, params: Tree, x: Array) -> NDArray[np.int64]:
        """The most probable class of each sample, shape ``(n,)``; the lowest of equals."""
        classes: NDArray[np.int64] = np.argmax(self.logits(params, x), axis=1)
        return classes

    def probabilities(self, params: Tree, x: Array) -> Array:
        """Softmax of the scores, shape ``(n, n_classes)``; rows sum to one."""
        return softmax(self.logits(params, x))


@dataclass(frozen=True)
class Softmax(Scoring):
    """Multinomial logistic regression: ``p(y | x) = softmax(W x + b)``, loss ``-log p(y | x)``.

    The tree holds ``output.weight`` ``(n_classes, n_features)`` and ``output.bias`` ``(n_classes,)``. ``l2``
    adds ``l2 / 2 * |W|^2`` (the bias is left free). The problem is convex, so ``init`` gives zeros whatever
    the seed.
    """

    n_features: int
    n_classes: int
    l2: float = 0.0
    dtype: str = "float64"

    def __post_init__(self) -> None:
        _check_sizes({"n_features": self.n_features, "n_classes": self.n_classes}, self.l2, self.dtype)

    def init(self, seed: int) -> Tree:
        """Zeros."""
        del seed
        return {
            "output.weight": np.zeros((self.n_classes, self.n_features), dtype=self.dtype),
            "output.bias": np.zeros(self.n_classes, dtype=self.dtype),
        }

    def loss_and_grad(self, params: Tree, batch: Batch) -> tuple[float, Tree]:
        """Mean loss and its gradient; in the scores z it is ``(softmax(z) - onehot(y)) / n``."""
        x, weight = features(batch.x, self.n_features, self.dtype), params["output.weight"]
        with np.errstate(all="ignore"):  # a model that diverged has a loss of NaN, which is the answer
            logits = x @ weight.T
            logits += params["output.bias"]
            loss, slope = cross_entropy(logits, batch)
            grads = {"output.weight": slope.T @ x, "output.bias": np.add.reduce(slope, axis=0)}
            return _decayed(loss, grads, params, self.l2), grads

    def logits(self, params: Tree, x: Array) -> Array:
        """Scores before the softmax, shape ``(n, n_classes)``."""
        with np.errstate(all="ignore"):
            scores: Array = features(x, self.n_features, self.dtype) @ params["output.weight"].T
            return scores + params["output.bias"]


@dataclass(frozen=True)
class MLP(Scoring):
    """A network of one hidden layer: ``softmax(V act(U x + a) + b)``, ``act`` is relu or tanh.

    The tree holds ``hidden.weight`` ``(hidden, n_features)``, ``hidden.bias``, ``output.weight``
    ``(n_classes, hidden)`` and ``output.bias``. ``init`` draws weights from N(0, g / fan_in), g = 2 before a
    relu (He et al. 2015) and 1 elsewhere, and sets biases to zero. ``l2`` adds ``l2 / 2 (|U|^2 + |V|^2)``.
    """

    n_features: int
    hidden: int
    n_classes: int
    activation: str = "relu"
    l2: float = 0.0
    dtype: str = "float64"

    def __post_init__(self) -> None:
        sizes = {"n_features": self.n_features, "hidden": self.hidden, "n_classes": self.n_classes}
        _check_sizes(sizes, self.l2, self.dtype)
        if self.activation not in ACTIVATIONS:
            raise SettingError(f"activation is {self.activation!r}; expected one of {', '.join(ACTIVATIONS)}")

    def init(self, seed: int) -> Tree:
        """Random weights, zero biases."""
        rng = generator(seed, "model.mlp")
        gain = 2.0 if self.activation == "relu" else 1.0
        first = rng.standard_normal((self.hidden, self.n_features)) * np.sqrt(gain / self.n_features)
        second = rng.standard_normal((self.n_classes, self.hidden)) * np.sqrt(1.0 / self.hidden)
        return {
            "hidden.weight": first.astype(self.dtype),
            "hidden.bias": np.zeros(self.hidden, dtype=self.dtype),
            "output.weight": second.astype(self.dtype),
            "output.bias": np.zeros(self.n_classes, dtype=self.dtype),
        }

    def loss_and_grad(self, params: Tree, batch: Batch) -> tuple[float, Tree]:
        """Mean loss and its gradient by back-propagation; at a relu's corner the slope is taken as 0."""
        x, outer = features(batch.x, self.n_features, self.dtype), params["output.weight"]
        with np.errstate(all="ignore"):  # a model that diverged has a loss of NaN, which is the answer
            hidden = self._hidden(params, x)
            logits = hidden @ outer.T
            logits += params["output.bias"]
            loss, slope = cross_entropy(logits, batch)
            back = slope @ outer
            back *= hidden > 0 if self.activation == "relu" else 1 - hidden * hidden
            grads = {
                "hidden.weight": back.T @ x,
                "hidden.bias": np.add.reduce(back, axis=0),
                "output.weight": slope.T @ hidden,
                "output.bias": np.add.reduce(slope, axis=0),
            }
            return _decayed(loss, grads, params, self.l2), grads

    def logits(self, params: Tree, x: Array) -> Array:
        """Scores before the softmax, shape ``(n, n_classes)``."""
        with np.errstate(all="ignore"):
            hidden = self._hidden(params, features(x, self.n_features, self.dtype))
            scores: Array = hidden @ params["output.weight"].T
            return scores + params["output.bias"]

    def _hidden(self, params: Tree, x: Array) -> Array:
        hidden: Array = x @ params["hidden.weight"].T
        hidden += params["hidden.bias"]
        if self.activation == "relu":
            return np.maximum(hidden, 0, out=hidden)
        return np.tanh(hidden, out=hidden)


def real(value: Array) -> bool:
    """Whether a tensor holds real numbers, and not counters or flags."""
    return value.dtype.kind == "f"


def softmax(logits: Array) -> Array:
    """``exp(z) / sum exp(z)`` along the last axis; the maximum is subtracted first, so nothing overflows."""
    with np.errstate(all="ignore"):
        powers: Array = np.exp(logits - np.maximum.reduce(logits, axis=-1, keepdims=True))
        powers /= np.add.reduce(powers, axis=-1, keepdims=True)
        return powers


def cross_entropy(logits: Array, batch: Batch) -> tuple[float, Array]:
    """Mean of ``log sum exp(z) - z_y`` and its slope in ``z``, shape ``(n, n_classes)``; overwrites the logits."""
    n, classes = logits.shape
    # As unsigned numbers negative labels are huge, so that one reduction checks both ends.
    labels = np.asarray(batch.y, dtype=np.int64)
    if labels.shape != (n,) or n == 0:
        raise DataError(f"a batch needs one label a sample, and a sample; got {n} samples, labels {labels.shape}")
    if np.maximum.reduce(labels.view(np.uint64)) >= classes:
        raise DataError(f"labels go from {labels.min()} to {labels.max()}; the model knows 0 to {classes - 1}")
    logits -= np.maximum.reduce(logits, axis=1, keepdims=True)
    chosen = labels + _row_starts(n, classes)
    of_label = logits.take(chosen)
    slope = np.exp(logits, out=logits)
    total = np.add.reduce(slope, axis=1, keepdims=True)
    losses = np.log(total[:, 0])
    losses -= of_label
    slope /= total
    slope.ravel()[chosen] -= 1
    if batch.weight is None:
        slope *= 1 / n
        return float(np.add.reduce(losses)) / n, slope
    share = shares(batch.weight, n).astype(slope.dtype)
    slope *= share[:, None]
    return float(losses @ share), slope


@lru_cache(maxsize=64)
def _row_starts(n: int, classes: int) -> NDArray[np.int64]:
    starts = np.arange(0, n * classes, classes)
    starts.flags.writeable = False
    return starts


def shares(weight: Array, n: int) -> Array:
    """A batch's weights as shares of their sum, shape ``(n,)``; raises ``DataError`` for what are no weights."""
    weight = np.asarray(weight, dtype=np.float64)
    total = weight.sum() if weight.shape == (n,) else np.nan
    if not (np.isfinite(total) and total > 0 and weight.min() >= 0):
        raise DataError(f"a batch's weight is {n} numbers >= 0, not all zero; got shape {weight.shape}")
    return weight / total


def _decayed(loss: float, grads: Tree, params: Tree, l2: float) -> float:
    """Add ``l2 / 2 |W|^2`` of the weight matrices to the loss, and ``l2 W`` to their gradients."""
    if l2 == 0:
        return loss
    for name in grads:
        if grads[name].ndim == 2:
            grads[name] += l2 * params[name]
            loss += 0.5 * l2 * float(np.vdot(params[name], params[name]))
    return loss


def features(x: Array, n_features: int, dtype: str) -> Array:
    """Samples of shape ``(n, n_features)`` in a dtype; raises ``DataError`` for others."""
    x = np.asarray(x, dtype=dtype)
    if x.ndim != 2 or x.shape[1] != n_features:
        raise DataError(f"samples have shape {x.shape}; this model takes (n, {n_features})")
    return x


def _check_sizes(sizes: dict[str, int], l2: float, dtype: str) -> None:
    for name, size in sizes.items():
        least = 2 if name == "n_classes" else 1
        if size < least:
            raise SettingError(f"{name} is {size}; expected at least {least}")
    if not (np.isfinite(l2) and l2 >= 0):
        raise SettingError(f"l2 is {l2}; expected a number >= 0")
    if dtype not in DTYPES:
        raise SettingError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
