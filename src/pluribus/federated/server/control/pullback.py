"""From a slope in a model's scores back to its parameters, its samples, and the inputs of its layers.

A `Model` gives the gradient of its own loss alone. Methods with another loss (a distillation term, an ascent in the
samples) need the chain rule from the scores on; this is it, for the models that are known here: `Softmax`, `MLP`, and
`TorchModel` by autograd.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.models import MLP, Array, Batch, Model, Softmax, Tree, cross_entropy


class Pulled(NamedTuple):
    """What a slope in the scores is in the parameters (a tree) and in the samples (their shape)."""

    params: Tree
    samples: Array


def logits(model: Model, params: Tree, x: Array) -> Array:
    """Scores before the softmax, (n, classes). For a model without scores, the logarithm of its probabilities.

    Both have the same softmax, and the same slopes in it.
    """
    if isinstance(model, (Softmax, MLP)) or hasattr(model, "logits"):
        found: Array = model.logits(params, x)
        return found
    return np.log(np.maximum(model.probabilities(params, x), np.finfo(np.float32).tiny))


def pull(model: Model, params: Tree, x: Array, slope: Array) -> Pulled:
    """The gradient of ``sum(slope * scores(params, x))`` in parameters and samples; ``slope`` is (n, classes).

    A decay term ``l2`` of the model is no part of it. At a relu's corner the slope is taken as 0, as in the model.

    Raises
    ------
    RuleError
        The model is of a kind that is not known here.
    """
    if isinstance(model, Softmax):
        slope = np.asarray(slope, dtype=model.dtype)
        x = np.asarray(x, dtype=model.dtype)
        return Pulled(_linear("output", slope, x), slope @ params["output.weight"])
    if isinstance(model, MLP):
        slope = np.asarray(slope, dtype=model.dtype)
        x = np.asarray(x, dtype=model.dtype)
        hidden = features(model, params, x)
        below = pull_features(model, params, x, slope @ params["output.weight"])
        return Pulled(_linear("output", slope, hidden) | below.params, below.samples)
    if hasattr(model, "pull"):  # a model that knows better
        pulled: Pulled = model.pull(params, x, slope)
        return pulled
    if hasattr(model, "module") and hasattr(model, "samples"):
        return _pull_torch(model, params, x, slope)
    raise _unknown(model, "a slope in the scores can be taken back through")


def input_gradient(model: Model, params: Tree, batch: Batch) -> Array:
    """Gradient of the batch's mean loss in its samples, of the samples' shape."""
    _, slope = cross_entropy(np.array(logits(model, params, batch.x)), batch)
    return pull(model, params, batch.x, slope).samples


def features(model: Model, params: Tree, x: Array) -> Array:
    """What the last layer of an `MLP` sees, (n, hidden).

    Raises ``RuleError`` for a model without a hidden layer that is known here.
    """
    if not isinstance(model, MLP):
        raise _unknown(model, "the hidden layer can be read from", "mlp:H")
    hidden = np.asarray(x, dtype=model.dtype) @ params["hidden.weight"].T + params["hidden.bias"]
    return np.maximum(hidden, 0) if model.activation == "relu" else np.tanh(hidden)


def pull_features(model: Model, params: Tree, x: Array, slope: Array) -> Pulled:
    """The gradient of ``sum(slope * features(params, x))``: the hidden layer's tensors, and the samples."""
    hidden = features(model, params, x)
    relu = isinstance(model, MLP) and model.activation == "relu"
    back = slope * ((hidden > 0) if relu else (1 - hidden * hidden))
    return Pulled(_linear("hidden", back, np.asarray(x, dtype=back.dtype)), back @ params["hidden.weight"])


def layer_inputs(model: Model, params: Tree, x: Array) -> dict[str, Array]:
    """What each layer sees of some samples, by the name of its weight matrix (out, in): arrays (n, in)."""
    if isinstance(model, Softmax):
        return {"output.weight": np.asarray(x, dtype=model.dtype)}
    if isinstance(model, MLP):
        return {"hidden.weight": np.asarray(x, dtype=model.dtype), "output.weight": features(model, params, x)}
    raise _unknown(model, "the inputs of the layers can be read from")


def _linear(name: str, slope: Array, x: Array) -> Tree:
    return {f"{name}.weight": slope.T @ x, f"{name}.bias": np.add.reduce(slope, axis=0)}


def _pull_torch(model: Any, params: Tree, x: Array, slope: Array) -> Pulled:
    """Autograd in evaluation mode, so that buffers stay and dropout is off."""
    import torch

    state = {name: torch.from_numpy(np.array(value)) for name, value in params.items()}
    trained = [name for name, value in model.module.named_parameters() if value.requires_grad and name in state]
    for name in trained:
        state[name].requires_grad_(True)
    samples = model.samples(x).cpu().requires_grad_(True)
    training = model.module.training
    model.module.eval()
    try:
        scores = torch.func.functional_call(model.module, state, (samples,))
    finally:
        model.module.train(training)
    wanted = [*(state[name] for name in trained), samples]
    found = torch.autograd.grad(
        scores, wanted, torch.from_numpy(np.array(slope)).to(scores), allow_unused=True, materialize_grads=True
    )
    arrays = [value.numpy() for value in found]
    return Pulled(dict(zip(trained, arrays[:-1], strict=True)), arrays[-1])


def _unknown(model: Model, what: str, take: str = "softmax, mlp:H or a TorchModel") -> RuleError:
    return RuleError(f"{type(model).__name__} is no model that {what} here; take {take}")
