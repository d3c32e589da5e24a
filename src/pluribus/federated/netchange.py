"""Function-preserving changes of a network's width and depth, and their ways back: NetChange.

A network is a sequence of `Layer`, ``h <- W h + b`` with a relu between two layers. *Wider*: neurons are copied, and
the weights that leave a neuron are divided by its number of copies. *Deeper*: an identity layer is put in, which a
relu before it leaves alone. *Narrower* and *shallower* undo both. Widths and copies are arithmetic (neuron j of the
wide layer is a copy of j mod w), so that server and clients need not tell each other who is whose copy.

Chen, Goodfellow and Shlens, Net2Net, ICLR 2016; Wang et al., FedADP, 2025 (from the abstract, the catalogue and
Net2Net: the paper's own table of its four operators was not at hand).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.models import Array


class Layer(NamedTuple):
    """``weight`` (out, in) and ``bias`` (out,)."""

    weight: Array
    bias: Array


def widen(layers: Sequence[Layer], widths: Sequence[int]) -> list[Layer]:
    """The network with these widths of its hidden layers, none smaller than they are; its outputs stay.

    Raises ``RuleError`` for a width too few, or one that is smaller.
    """
    made = list(layers)
    for place, (wide, now) in enumerate(zip(widths, _checked(layers, widths), strict=True)):
        if wide < now:
            raise RuleError(f"hidden layer {place} has {now} neurons; widen makes no {wide} of them, narrow does")
        source = np.arange(wide) % now
        below, above = made[place], made[place + 1]
        copies = np.bincount(source, minlength=now)
        made[place] = Layer(below.weight[source], below.bias[source])
        made[place + 1] = Layer((above.weight / copies)[:, source].astype(above.weight.dtype), above.bias)
    return made


def narrow(layers: Sequence[Layer], widths: Sequence[int]) -> list[Layer]:
    """The network with these smaller widths: a neuron's copies become one, with their mean input and summed output.

    Exact where they are copies, so ``narrow(widen(net, big), small)`` is the net. Neurons that have grown apart are
    replaced by their mean. Raises ``RuleError`` as `widen` does.
    """
    made = list(layers)
    for place, (small, now) in enumerate(zip(widths, _checked(layers, widths), strict=True)):
        if not 1 <= small <= now:
            raise RuleError(f"hidden layer {place} has {now} neurons; narrow makes no {small} of them")
        source = np.arange(now) % small
        copies = np.bincount(source, minlength=small)
        below, above = made[place], made[place + 1]
        gather = (source[None] == np.arange(small)[:, None]).astype(np.float64)
        weight, bias = gather @ below.weight / copies[:, None], gather @ below.bias / copies
        made[place] = Layer(weight.astype(below.weight.dtype), bias.astype(below.bias.dtype))
        made[place + 1] = Layer((above.weight @ gather.T).astype(above.weight.dtype), above.bias)
    return made


def deepen(layers: Sequence[Layer], hidden: int) -> list[Layer]:
    """The network with so many hidden layers, not fewer than it has; the new ones, before the last, are identities.

    Raises ``RuleError`` for a network without a hidden layer, whose first layer a relu would change.
    """
    have = len(layers) - 1
    if have < 1 or hidden < have:
        raise RuleError(f"a network of {have} hidden layers is not deepened to {hidden}; it takes one, and grows")
    last = layers[-2]
    size = len(last.bias)
    identity = Layer(np.eye(size, dtype=last.weight.dtype), np.zeros(size, dtype=last.bias.dtype))
    return [*layers[:-1], *[identity] * (hidden - have), layers[-1]]


def shallower(layers: Sequence[Layer], hidden: int) -> list[Layer]:
    """The network without the hidden layers beyond the first so many; undoes `deepen`.

    Raises ``RuleError`` where what is left does not fit together.
    """
    if not 1 <= hidden <= len(layers) - 1:
        raise RuleError(f"a network of {len(layers) - 1} hidden layers is not cut to {hidden}; take 1 or more, no more")
    made = [*layers[:hidden], layers[-1]]
    if made[-1].weight.shape[1] != len(made[-2].bias):
        raise RuleError(
            f"cut to {hidden} hidden layers, the last layer takes {made[-1].weight.shape[1]} numbers and is given "
            f"{len(made[-2].bias)}; narrow the layers to one width first"
        )
    return made


def outputs(layers: Sequence[Layer], x: Array) -> Array:
    """What the network makes of samples (n, in): (n, out)."""
    h = x
    for layer in layers[:-1]:
        h = np.maximum(h @ layer.weight.T + layer.bias, 0)
    scores: Array = h @ layers[-1].weight.T + layers[-1].bias
    return scores


def _checked(layers: Sequence[Layer], widths: Sequence[int]) -> list[int]:
    now = [len(layer.bias) for layer in layers[:-1]]
    if len(now) != len(widths):
        raise RuleError(f"a network of {len(now)} hidden layers needs as many widths, not {len(widths)}")
    return now
