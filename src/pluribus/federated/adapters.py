"""FedIns: a pool of scale-and-shift adapters with keys; each sample takes a mixture of those that match it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive, whole_number
from pluribus.federated.models import Array, Batch, Model, Scoring, Tree, cross_entropy, softmax
from pluribus.federated.parts import Parts, parts_of, unit_rows
from pluribus.federated.seeding import generator

KEYS, SCALE, SHIFT = "adapters.keys", "adapters.scale", "adapters.shift"


class Mixture(NamedTuple):
    """Of n samples in M adapters: shares and cosines (n, M), features (n, d) and keys (M, d) of length one.

    ``lengths``, (M, 1), are those that the keys had.
    """

    shares: Array
    cosines: Array
    features: Array
    keys: Array
    lengths: Array


@dataclass(frozen=True)
class InstanceAdapters(Scoring):
    """A model whose features h become ``(sum_m a_m gamma_m) * h + sum_m a_m beta_m`` before the head.

    ``a`` is the softmax of ``cos(h, key_m) / temperature`` over the ``top`` best-matching of ``pool`` adapters. The
    body is frozen: keys, gammas, betas and the head are trained. The tree is the model's, with ``adapters.keys``,
    ``.scale`` and ``.shift``, (pool, d), so that any server rule averages pools across clients, adapter by adapter,
    which is the published aggregation. Adapters start at gamma = 1 and beta = 0, where the model is the frozen one;
    keys are drawn. With pool = 1 it is one averaged adapter.

    Feng et al., Towards Instance-adaptive Inference for Federated Learning, ICCV 2023; from the abstract, its figure's
    caption and the catalogue. The authors train keys by a term of their own; here they follow the loss.

    Parameters
    ----------
    model
        With features and a linear head; see `parts`. Its ``init`` should give a trained body.
    pool, top
        Adapters, and how many of them a sample mixes.
    temperature
        Of the softmax.
    """

    model: Model
    pool: int = 4
    top: int = 2
    temperature: float = 0.1

    numbers: ClassVar[tuple[int, ...]] = (54,)

    def __post_init__(self) -> None:
        whole_number("InstanceAdapters", "pool", self.pool, 1)
        whole_number("InstanceAdapters", "top", self.top, 1)
        positive("InstanceAdapters", "temperature", self.temperature)
        if self.top > self.pool:
            raise RuleError(f"InstanceAdapters: top is {self.top}, and the pool has {self.pool} adapters; take fewer")

    def parts(self) -> Parts:
        """Those of the model: features before the adapters."""
        return parts_of(self.model)

    def init(self, seed: int) -> Tree:
        """The model's start, with neutral adapters."""
        params = self.model.init(seed)
        size = params[self.parts().weight].shape[1]
        dtype = params[self.parts().weight].dtype
        keys = generator(seed, "adapters.keys").standard_normal((self.pool, size)) / np.sqrt(size)
        ones, zeros = np.ones((self.pool, size), dtype=dtype), np.zeros((self.pool, size), dtype=dtype)
        return {**params, KEYS: keys.astype(dtype), SCALE: ones, SHIFT: zeros}

    def mixture(self, params: Tree, h: Array) -> Mixture:
        """Which adapters the samples with features h, (n, d), take, and how much."""
        unit, (keys, lengths) = unit_rows(h)[0], unit_rows(params[KEYS])
        cosines = unit @ keys.T
        scores = cosines / self.temperature
        if self.top < self.pool:
            # Of equal matches the first ones count.
            place = np.argsort(-scores, axis=1, kind="stable")[:, self.top :]
            np.put_along_axis(scores, place, -np.inf, axis=1)
        return Mixture(softmax(scores), cosines, unit, keys, lengths)

    def adapted(self, params: Tree, h: Array) -> Array:
        """Features after the adapters, (n, d)."""
        return _adapted(params, h, self.mixture(params, h).shares)

    def logits(self, params: Tree, x: Array) -> Array:
        """Scores before the softmax, (n, C)."""
        parts = self.parts()
        return parts.head(params, self.adapted(params, parts.features(params, x)))

    def loss_and_grad(self, params: Tree, batch: Batch) -> tuple[float, Tree]:
        """Mean cross-entropy and its gradient in adapters, keys and head; the choice of the best is held fixed."""
        parts = self.parts()
        h = parts.features(params, batch.x)
        mixture = self.mixture(params, h)
        shares = mixture.shares
        after = _adapted(params, h, shares)
        loss, slope = cross_entropy(parts.head(params, after), batch)
        grads: dict[str, Any]
        grads, back = parts.pull_head(params, after, slope)
        scaled = back * h
        in_shares = scaled @ params[SCALE].T + back @ params[SHIFT].T
        in_cosines = shares * (in_shares - (shares * in_shares).sum(axis=1, keepdims=True)) / self.temperature
        along = (in_cosines * mixture.cosines).sum(axis=0)[:, None] * mixture.keys
        in_keys = (in_cosines.T @ mixture.features - along) / np.where(mixture.lengths > 0, mixture.lengths, 1.0)
        dtype = params[KEYS].dtype
        made = {KEYS: in_keys, SCALE: shares.T @ scaled, SHIFT: shares.T @ back}
        return loss, {**grads, **{name: value.astype(dtype) for name, value in made.items()}}


def _adapted(params: Tree, h: Array, shares: Array) -> Array:
    after: Array = (shares @ params[SCALE]) * h + shares @ params[SHIFT]
    return after
