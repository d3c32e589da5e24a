"""A small generator ``G(z, y)``, its gradient, and Adam: what methods that distil without data share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.parameters import is_real
from pluribus.federated.models import Array, Tree


@dataclass(frozen=True)
class Generator:
    """``G(z, y) = V relu(U [z, onehot(y)] + a) + b``: noise and a class to something of ``size`` numbers.

    Pure functions of a tree of parameters, in float64.

    Parameters
    ----------
    noise, hidden
        Numbers of noise, and units of the hidden layer.
    classes, size
        C, and the length of what is made: a feature or a sample.
    """

    noise: int
    hidden: int
    classes: int
    size: int

    def init(self, rng: np.random.Generator) -> Tree:
        """Fresh parameters: weights from N(0, 2 / fan_in) and N(0, 1 / fan_in), biases of zero."""
        width = self.noise + self.classes
        return {
            "hidden.weight": rng.standard_normal((self.hidden, width)) * np.sqrt(2 / width),
            "hidden.bias": np.zeros(self.hidden),
            "output.weight": rng.standard_normal((self.size, self.hidden)) * np.sqrt(1 / self.hidden),
            "output.bias": np.zeros(self.size),
        }

    def draw(self, rng: np.random.Generator, prior: Array, count: int) -> tuple[Array, Array]:
        """Noise of N(0, 1), (count, noise), and classes of a distribution, (count,)."""
        return rng.standard_normal((count, self.noise)), rng.choice(len(prior), size=count, p=prior)

    def make(self, params: Tree, z: Array, y: Array) -> Array:
        """What comes out, (n, size)."""
        return self._hidden(params, z, y) @ params["output.weight"].T + params["output.bias"]

    def pull(self, params: Tree, z: Array, y: Array, slope: Array) -> Tree:
        """The gradient of ``sum(slope * make(params, z, y))`` in the parameters."""
        hidden = self._hidden(params, z, y)
        back = (slope @ params["output.weight"]) * (hidden > 0)
        return {
            "hidden.weight": back.T @ self._inputs(z, y),
            "hidden.bias": back.sum(axis=0),
            "output.weight": slope.T @ hidden,
            "output.bias": slope.sum(axis=0),
        }

    def _inputs(self, z: Array, y: Array) -> Array:
        return np.concatenate([z, np.eye(self.classes)[y]], axis=1)

    def _hidden(self, params: Tree, z: Array, y: Array) -> Array:
        return np.maximum(self._inputs(z, y) @ params["hidden.weight"].T + params["hidden.bias"], 0)


def diversity(z: Array, made: Array) -> tuple[float, Array]:
    """``exp(-mean_ij msd(z_i, z_j) mad(g_i, g_j))`` and its slope in ``made``, (n, size).

    msd is the mean square, mad the mean absolute difference: small where unlike noise makes unlike things. Compared
    with DiversityLoss of zhuangdizhu/FedGen, which FedFTG's code has too. Memory: n x n x size.
    """
    n, size = made.shape
    apart = ((z[:, None] - z[None]) ** 2).mean(axis=2)
    gaps = made[:, None] - made[None]
    value = float(np.exp(-(apart * np.abs(gaps).mean(axis=2)).mean()))
    slope = -value * 2 / (n * n * size) * np.einsum("ij,ijk->ik", apart, np.sign(gaps))
    return value, slope


@dataclass(frozen=True)
class AdamMemory:
    """Moments of Adam and the number of steps; trees as the parameters."""

    first: Tree
    second: Tree
    count: int

    @classmethod
    def fresh(cls, params: Tree) -> AdamMemory:
        """Before the first step."""
        first, second = ({name: np.zeros_like(value) for name, value in params.items()} for _ in range(2))
        return cls(first, second, 0)

    def step(
        self, params: Tree, grads: Tree, lr: float, beta1: float = 0.9, beta2: float = 0.999
    ) -> tuple[Tree, AdamMemory]:
        """The next parameters and moments (Kingma and Ba 2015, eps = 1e-8)."""
        count = self.count + 1
        first = {name: beta1 * self.first[name] + (1 - beta1) * grad for name, grad in grads.items()}
        second = {name: beta2 * self.second[name] + (1 - beta2) * grad**2 for name, grad in grads.items()}
        moved = {
            name: params[name]
            - lr * (first[name] / (1 - beta1**count)) / (np.sqrt(second[name] / (1 - beta2**count)) + 1e-8)
            for name in grads
        }
        return moved, AdamMemory(first, second, count)


def class_shares(label_counts: Array) -> Array:
    """``n_k^y / sum_j n_j^y``, (k, C): columns of sum one; uniform for a class that nobody has."""
    counts = np.asarray(label_counts, dtype=np.float64)
    totals = counts.sum(axis=0)
    return np.where(totals > 0, counts / np.maximum(totals, 1e-300), 1 / len(counts))


def class_prior(label_counts: Array) -> Array:
    """``sum_k n_k^y / sum n``, (C,): what classes are drawn from.

    Raises ``RuleError`` for counts that are negative, not finite, or all zero: there is nothing to draw.
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    totals = counts.sum(axis=0)
    if not (np.isfinite(totals).all() and counts.min(initial=0) >= 0 and totals.sum() > 0):
        raise RuleError(
            "classes are drawn as often as the clients have them, and their label counts are all zero, or negative, "
            "NaN or Inf; let clients tell how many samples of each class they have"
        )
    return np.asarray(totals / totals.sum())


def check_range(who: str, low: Any, high: Any) -> None:
    """Raise `RuleError` unless made samples can lie in [low, high]: two finite numbers, the first below."""
    if not (is_real(low) and is_real(high) and -np.inf < low < high < np.inf):
        raise RuleError(f"{who}: samples lie between low and high, two numbers, not {low!r} and {high!r}")
