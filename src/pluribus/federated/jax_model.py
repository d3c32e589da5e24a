"""A pure JAX function as a model over a tree of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from pluribus.core.errors import listing, require
from pluribus.federated.errors import DataError, SettingError
from pluribus.federated.models import Array, Batch, Scoring, Tree, shares
from pluribus.federated.seeding import derived

Pytree = Any


@dataclass(frozen=True, eq=False)
class JaxModel(Scoring):
    """``apply(params, x)``: a pytree of parameters and samples ``(n, ...)`` to scores ``(n, n_classes)``.

    The tree holds the pytree's leaves under the path to each, joined by dots (``layers.0.w``). Leaves of floats are
    trained, others (counters) pass through. Samples are cast to the first float leaf's dtype. Everything is compiled
    once for each shape (``jax.jit``).

    Parameters
    ----------
    apply
        A pure function, such as flax's ``module.apply``.
    start
        The pytree to start from, or a function of a ``jax.random.key`` that makes one, such as ``lambda key:
        module.init(key, x)``.
    loss
        ``loss(scores, labels) -> (n,)``, one loss a sample; the cross-entropy unless given.
    pad
        Whether batches are filled up to a power of two with samples of weight zero, so that clients of different sizes
        share what is compiled. Say False where ``apply`` looks at several samples at once.

    Raises ``MissingExtraError`` where JAX is not installed.
    """

    apply: Callable[[Pytree, Any], Any]
    start: Pytree
    loss: Callable[[Any, Any], Any] | None = None
    pad: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        jax, names = require("jax", "jax"), self._names
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise SettingError(f"two leaves of the parameters are called {listing(double)}; use names without dots")
        for name, dtype in zip(names, self._dtypes, strict=True):
            if dtype.kind not in "fiub":
                raise SettingError(f"{name!r} is {dtype}, which numpy trees cannot train; use float32")
            if dtype == np.float64 and not jax.config.jax_enable_x64:
                raise SettingError(
                    f"{name!r} is float64; say jax.config.update('jax_enable_x64', True) first, or use float32"
                )
        if not any(dtype.kind == "f" for dtype in self._dtypes):
            raise SettingError("no leaf of the parameters is of floats, so there is nothing to train")

    def __getstate__(self) -> dict[str, Any]:
        """What is compiled stays here."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def init(self, seed: int) -> Tree:
        """``start`` of a key made from the seed, or the given leaves whatever the seed."""
        jax = require("jax", "jax")
        made = self.start
        if callable(made):
            made = made(jax.random.key(derived(seed, "model.jax") % 2**31))
        return {name: np.array(leaf) for name, leaf in zip(self._names, jax.tree.leaves(made), strict=True)}

    def loss_and_grad(self, params: Tree, batch: Batch) -> tuple[float, Tree]:
        """Mean loss of a batch, and its gradient for each leaf of floats."""
        n, labels = len(batch.x), np.asarray(batch.y, dtype=np.int64)
        if labels.shape != (n,) or n == 0:
            raise DataError(f"a batch needs one label a sample, and a sample; got {n} samples, labels {labels.shape}")
        weight = np.full(n, 1 / n) if batch.weight is None else shares(batch.weight, n)
        x, more = self._filled(batch.x)
        y, weight = np.pad(labels, (0, more), mode="edge"), np.pad(weight, (0, more))
        moving, still = self._parted(params)
        (loss, classes), grads = self._slopes(moving, still, x, y, weight.astype(self._real))
        if labels.min() < 0 or labels.max() >= int(classes):
            raise DataError(f"labels go from {labels.min()} to {labels.max()}; the model knows 0 to {int(classes) - 1}")
        return float(loss), {name: np.array(grads[name], dtype=params[name].dtype) for name in moving}

    def logits(self, params: Tree, x: Array) -> Array:
        """The function's scores, shape ``(n, n_classes)``."""
        n = len(x)
        x, _ = self._filled(x)
        return np.array(self._scores(*self._parted(params), x))[:n]

    @cached_property
    def _shape(self) -> Pytree:
        """The pytree with shapes and dtypes for leaves."""
        jax = require("jax", "jax")
        if callable(self.start):
            return jax.eval_shape(self.start, jax.random.key(0))
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), self.start)

    @cached_property
    def _names(self) -> list[str]:
        util = require("jax", "jax").tree_util
        paths, _ = util.tree_flatten_with_path(self._shape)
        return [util.keystr(path, simple=True, separator=".") or "params" for path, _ in paths]

    @cached_property
    def _dtypes(self) -> list[np.dtype[Any]]:
        return [np.dtype(leaf.dtype) for leaf in require("jax", "jax").tree.leaves(self._shape)]

    @cached_property
    def _real(self) -> np.dtype[Any]:
        return next(dtype for dtype in self._dtypes if dtype.kind == "f")

    @cached_property
    def _scores(self) -> Callable[..., Any]:
        jax = require("jax", "jax")
        structure, names, apply = jax.tree.structure(self._shape), self._names, self.apply

        def scores(moving: Tree, still: Tree, x: Any) -> Any:
            leaves = moving | still
            return apply(jax.tree.unflatten(structure, [leaves[name] for name in names]), x)

        return jax.jit(scores)

    @cached_property
    def _slopes(self) -> Callable[..., Any]:
        jax = require("jax", "jax")
        scores, loss = self._scores, self.loss or _cross_entropy

        def mean_loss(moving: Tree, still: Tree, x: Any, y: Any, weight: Any) -> Any:
            found = scores(moving, still, x)
            return weight @ loss(found, y), found.shape[1]

        return jax.jit(jax.value_and_grad(mean_loss, has_aux=True))

    def _parted(self, params: Tree) -> tuple[Tree, Tree]:
        """Leaves that are trained, and the others; raises for a tree of another model."""
        if params.keys() != set(self._names):
            raise SettingError(
                f"the tree holds {listing(sorted(params))}; the model's parameters are {listing(sorted(self._names))}"
            )
        moving = {name: value for name, value in params.items() if value.dtype.kind == "f"}
        return moving, {name: value for name, value in params.items() if name not in moving}

    def _filled(self, x: Array) -> tuple[Array, int]:
        """Samples in the model's dtype, and how many copies of the last were added."""
        x = np.asarray(x)
        x = x.astype(self._real) if x.dtype.kind == "f" else x
        more = (1 << (len(x) - 1).bit_length()) - len(x) if self.pad and len(x) else 0
        return (np.concatenate([x, np.repeat(x[-1:], more, axis=0)]) if more else x), more


def _cross_entropy(scores: Any, labels: Any) -> Any:
    jax = require("jax", "jax")
    return -jax.numpy.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1)[:, 0]
