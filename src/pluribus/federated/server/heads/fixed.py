"""What rules with a fixed head share: the body's gradient through a head that does not move."""

from __future__ import annotations

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.models import Array, Batch, Tree, cross_entropy
from pluribus.federated.parts import Parts, head_names, unit_rows
from pluribus.federated.server.rule import Server


def body_names(rule: Server, params: Tree) -> list[str]:
    """Names of the trained tensors below the head.

    Raises ``RuleError`` for a model that is a head alone.
    """
    head = head_names(params, rule.name)
    body = [name for name in rule.parameters(params) if name not in head]
    if not body:
        raise RuleError(f"{rule.name} needs a model with features of its own, and this one is a head; take mlp:H")
    return body


def head_of(params: Tree, weight: str, bias: str | None) -> Tree:
    """The head's tensors of a tree."""
    return {name: params[name] for name in (weight, bias) if name is not None}


def through_head(
    parts: Parts, own: Tree, batch: Batch, weight: Array, *, on_sphere: bool = False
) -> tuple[float, Tree, Array]:
    """Mean cross-entropy of scores ``h weight'``, its gradient in the body, and the features h.

    ``on_sphere`` takes ``h / |h|`` for h in the scores. The head's own tensors get zeros: they stay as they are.
    """
    h = parts.features(own, batch.x)
    unit, sizes = unit_rows(h) if on_sphere else (h, np.ones(1))
    loss, slope = cross_entropy(unit @ weight.T, batch)
    slope = slope @ weight
    if on_sphere:
        slope -= (slope * unit).sum(axis=1, keepdims=True) * unit
        slope = np.divide(slope, sizes, out=np.zeros_like(slope), where=sizes > 0)
    grads = parts.pull_features(own, batch.x, slope).params
    for name in (parts.weight, parts.bias):
        if name is not None:
            grads[name] = np.zeros_like(own[name])
    return loss, grads, h


def head_step(parts: Parts, head: Tree, h: Array, batch: Batch, rate: float) -> None:
    """One step of SGD on the mean cross-entropy of a head over features, in place."""
    _, slope = cross_entropy(parts.head(head, h), batch)
    for name, value in parts.pull_head(head, h, slope).params.items():
        head[name] -= (rate * value).astype(head[name].dtype)
