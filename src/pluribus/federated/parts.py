"""A model as two parts: a body that makes features of samples, and a linear head that makes scores of features.

``scores = h W' + b`` with ``h = features(params, x)``. Methods about heads, prototypes and features need the two apart,
and the chain rule through each. `Softmax` has no body (features are the samples), the features of an `MLP` are its
hidden layer's output, and those of a `TorchModel` what its last ``nn.Linear`` sees. A model of another kind may bring a
method ``parts()`` of its own that gives a `Parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.models import MLP, Array, Model, Softmax, Tree


class Pulled(NamedTuple):
    """What a slope in scores or features is in the parameters (a tree) and in what they were made of (its shape)."""

    params: Tree
    samples: Array


@runtime_checkable
class Parts(Protocol):
    """Features and head of a model. Everything is pure; n samples, d features, C classes."""

    @property
    def weight(self) -> str:
        """Name of the head's matrix, (C, d)."""

    @property
    def bias(self) -> str | None:
        """Name of the head's bias, (C,), or None if it has none."""

    def features(self, params: Tree, x: Array) -> Array:
        """What the head sees of some samples, (n, d)."""

    def head(self, params: Tree, h: Array) -> Array:
        """Scores of features, (n, C)."""

    def pull_features(self, params: Tree, x: Array, slope: Array) -> Pulled:
        """The gradient of ``sum(slope * features(params, x))``, slope (n, d), in the body's tensors and in samples."""

    def pull_head(self, params: Tree, h: Array, slope: Array) -> Pulled:
        """The gradient of ``sum(slope * head(params, h))``, slope (n, C), in the head's tensors and in h."""


@dataclass(frozen=True)
class _Linear:
    """The head that all kinds have."""

    model: Any
    weight: str = "output.weight"
    bias: str | None = "output.bias"

    def head(self, params: Tree, h: Array) -> Array:
        scores: Array = h @ params[self.weight].T
        return scores if self.bias is None else scores + params[self.bias]

    def pull_head(self, params: Tree, h: Array, slope: Array) -> Pulled:
        weight = params[self.weight]
        slope = np.asarray(slope, dtype=weight.dtype)
        found = {self.weight: slope.T @ h}
        if self.bias is not None:
            found[self.bias] = np.add.reduce(slope, axis=0)
        return Pulled(found, slope @ weight)


@dataclass(frozen=True)
class _OfSoftmax(_Linear):
    def features(self, params: Tree, x: Array) -> Array:
        del params
        return np.asarray(x, dtype=self.model.dtype)

    def pull_features(self, params: Tree, x: Array, slope: Array) -> Pulled:
        del params, x
        return Pulled({}, np.asarray(slope, dtype=self.model.dtype))


@dataclass(frozen=True)
class _OfMLP(_Linear):
    def features(self, params: Tree, x: Array) -> Array:
        hidden = np.asarray(x, dtype=self.model.dtype) @ params["hidden.weight"].T + params["hidden.bias"]
        return np.maximum(hidden, 0) if self.model.activation == "relu" else np.tanh(hidden)

    def pull_features(self, params: Tree, x: Array, slope: Array) -> Pulled:
        hidden = self.features(params, x)
        back = np.asarray(slope, dtype=self.model.dtype)
        back = back * ((hidden > 0) if self.model.activation == "relu" else (1 - hidden * hidden))
        x = np.asarray(x, dtype=self.model.dtype)
        found = {"hidden.weight": back.T @ x, "hidden.bias": np.add.reduce(back, axis=0)}
        return Pulled(found, back @ params["hidden.weight"])


@dataclass(frozen=True)
class _OfTorch(_Linear):
    """Evaluation mode throughout: buffers stay, and dropout is off."""

    def features(self, params: Tree, x: Array) -> Array:
        import torch

        with torch.no_grad():
            found: Array = self._seen(tensors(params), self.model.samples(x).cpu()).numpy()
        return np.array(found)

    def pull_features(self, params: Tree, x: Array, slope: Array) -> Pulled:
        return pull_torch(self.model, params, x, slope, self._seen, without=(self.weight, self.bias))

    def _seen(self, state: dict[str, Any], samples: Any) -> Any:
        """What the last linear layer is given."""
        seen: list[Any] = []
        last = self.model.module.get_submodule(self.weight.rpartition(".")[0])
        hook = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            called(self.model.module, state, samples)
        finally:
            hook.remove()
        return seen[-1]


def called(module: Any, state: dict[str, Any], samples: Any) -> Any:
    """What a torch module makes of samples with these tensors, in evaluation mode."""
    import torch

    training = module.training
    module.eval()
    try:
        return torch.func.functional_call(module, state, (samples,))
    finally:
        module.train(training)


def tensors(params: Tree) -> dict[str, Any]:
    """Copies of a tree's arrays as torch's tensors."""
    import torch

    return {name: torch.from_numpy(np.array(value)) for name, value in params.items()}


def pull_torch(
    model: Any,
    params: Tree,
    x: Array,
    slope: Array,
    made: Callable[[dict[str, Any], Any], Any],
    *,
    without: Sequence[str | None] = (),
) -> Pulled:
    """The gradient of ``sum(slope * made(tensors, samples))`` in a `TorchModel`'s trained tensors and in the samples.

    By autograd, for all trained tensors but those named in ``without``.
    """
    import torch

    state = tensors(params)
    names = [
        name
        for name, value in model.module.named_parameters()
        if value.requires_grad and name in state and name not in without
    ]
    for name in names:
        state[name].requires_grad_(True)
    samples = model.samples(x).cpu().requires_grad_(True)
    value = made(state, samples)
    found = torch.autograd.grad(
        value,
        [*(state[name] for name in names), samples],
        torch.from_numpy(np.array(slope)).to(value),
        allow_unused=True,
        materialize_grads=True,
    )
    arrays = [value.numpy() for value in found]
    return Pulled(dict(zip(names, arrays[:-1], strict=True)), arrays[-1])


def is_torch(model: Any) -> TypeGuard[Any]:
    """Whether a model is a `TorchModel` or like one; torch is not imported to tell."""
    return hasattr(model, "module") and hasattr(model, "samples")


def parts_of(model: Model) -> Parts:
    """The two parts of a model.

    Raises
    ------
    RuleError
        The model is of a kind whose parts are not known here, or has no linear layer.
    """
    if isinstance(model, Softmax):
        return _OfSoftmax(model)
    if isinstance(model, MLP):
        return _OfMLP(model)
    if hasattr(model, "parts"):
        own: Parts = model.parts()
        return own
    if is_torch(model):
        import torch

        layers = [(name, layer) for name, layer in model.module.named_modules() if isinstance(layer, torch.nn.Linear)]
        if layers:
            name, layer = layers[-1]
            before = f"{name}." if name else ""
            return _OfTorch(model, f"{before}weight", None if layer.bias is None else f"{before}bias")
    raise RuleError(
        f"{type(model).__name__} is no model whose features and linear head are known here; take softmax, mlp:H, a "
        "TorchModel that ends in nn.Linear, or give the model a method parts()"
    )


def head_names(params: Tree, rule: str) -> tuple[str, str | None]:
    """Names of the head's matrix and bias in a tree, for a server that has no model: its last matrix, and its bias.

    ``output.weight`` if there is one. Raises ``RuleError`` for a tree without a matrix.
    """
    matrices = [name for name, value in params.items() if value.ndim == 2 and value.dtype.kind == "f"]
    if not matrices:
        raise RuleError(
            f"{rule} needs a linear head, a matrix (classes, features), and the model has {', '.join(params)}; take "
            "softmax, mlp:H, or a TorchModel that ends in nn.Linear"
        )
    weight = "output.weight" if "output.weight" in matrices else matrices[-1]
    bias = weight.removesuffix("weight") + "bias"
    fits = weight.endswith("weight") and bias in params and params[bias].shape == params[weight].shape[:1]
    return weight, bias if fits else None


def unit_rows(rows: Array) -> tuple[Array, Array]:
    """Rows divided by their Euclidean lengths, (n, d), rows of zeros as they are; and the lengths, (n, 1)."""
    sizes = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return np.divide(rows, sizes, out=np.zeros_like(rows), where=sizes > 0), sizes


def class_means(h: Array, y: Array, classes: int) -> tuple[Array, Array]:
    """Mean features of each class, (C, d), zeros for a class without samples, and its samples, (C,); in float64."""
    counts = np.bincount(y, minlength=classes).astype(np.float64)
    sums = np.zeros((classes, h.shape[1]))
    np.add.at(sums, y, np.asarray(h, dtype=np.float64))
    return sums / np.maximum(counts, 1.0)[:, None], counts
