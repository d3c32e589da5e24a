"""From a slope in a model's scores back to its parameters, its samples, and the inputs of its layers.

A `Model` gives the gradient of its own loss alone. Methods with another loss (a distillation term, an ascent in the
samples) need the chain rule from the scores on; this is it, for the models that are known here: `Softmax`, `MLP`, and
`TorchModel` by autograd. A model's two parts, and the chain rule through each, are in `parts`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.models import MLP, Array, Batch, Model, Softmax, Tree, cross_entropy
from pluribus.federated.parts import Parts, Pulled, called, is_torch, parts_of, pull_torch


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
    if isinstance(model, (Softmax, MLP)):
        parts = parts_of(model)
        head = parts.pull_head(params, parts.features(params, x), slope)
        body = parts.pull_features(params, x, head.samples)
        return Pulled(head.params | body.params, body.samples)
    if hasattr(model, "pull"):  # a model that knows better
        pulled: Pulled = model.pull(params, x, slope)
        return pulled
    if is_torch(model):
        return pull_torch(model, params, x, slope, partial(called, model.module))
    raise _unknown(model, "a slope in the scores can be taken back through")


def input_gradient(model: Model, params: Tree, batch: Batch) -> Array:
    """Gradient of the batch's mean loss in its samples, of the samples' shape."""
    _, slope = cross_entropy(np.array(logits(model, params, batch.x)), batch)
    return pull(model, params, batch.x, slope).samples


def features(model: Model, params: Tree, x: Array) -> Array:
    """What the last layer of an `MLP` sees, (n, hidden).

    Raises ``RuleError`` for a model without a hidden layer that is known here.
    """
    return _with_hidden(model).features(params, x)


def pull_features(model: Model, params: Tree, x: Array, slope: Array) -> Pulled:
    """The gradient of ``sum(slope * features(params, x))``: the hidden layer's tensors, and the samples."""
    return _with_hidden(model).pull_features(params, x, slope)


def layer_inputs(model: Model, params: Tree, x: Array) -> dict[str, Array]:
    """What each layer sees of some samples, by the name of its weight matrix (out, in): arrays (n, in)."""
    if isinstance(model, Softmax):
        return {"output.weight": np.asarray(x, dtype=model.dtype)}
    if isinstance(model, MLP):
        return {"hidden.weight": np.asarray(x, dtype=model.dtype), "output.weight": features(model, params, x)}
    raise _unknown(model, "the inputs of the layers can be read from")


def _with_hidden(model: Model) -> Parts:
    if not isinstance(model, MLP):
        raise _unknown(model, "the hidden layer can be read from", "mlp:H")
    return parts_of(model)


def _unknown(model: Model, what: str, take: str = "softmax, mlp:H or a TorchModel") -> RuleError:
    return RuleError(f"{type(model).__name__} is no model that {what} here; take {take}")
