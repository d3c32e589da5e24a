"""Sums over updates, in float64 and over real tensors only; counters and masks are nobody's to attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pluribus.federated.models import Array, Tree, real

Trees = Sequence[Tree]
Wide = dict[str, NDArray[np.float64]]


def mapped(tree: Tree, change: Callable[[Array], Array]) -> Tree:
    """``change`` of each real tensor in the tensor's own dtype, copies of the others."""
    return {name: change(value).astype(value.dtype) if real(value) else value.copy() for name, value in tree.items()}


def mean(trees: Trees) -> Wide:
    """Mean of each real tensor, one tree at a time."""
    return {
        name: sum((np.asarray(tree[name], dtype=np.float64) for tree in trees), start=np.zeros(value.shape))
        / len(trees)
        for name, value in trees[0].items()
        if real(value)
    }


def deviation(trees: Trees, middle: Wide) -> Wide:
    """Standard deviation of each coordinate about the mean, with ``ddof = 1``; 0 for one tree."""
    squares = {name: np.zeros_like(value) for name, value in middle.items()}
    for tree in trees:
        for name, value in middle.items():
            squares[name] += np.square(tree[name] - value)
    return {name: np.sqrt(value / max(len(trees) - 1, 1)) for name, value in squares.items()}


def plus(tree: Wide, scale: float, other: Wide) -> Wide:
    """``tree + scale other``."""
    return {name: value + scale * other[name] for name, value in tree.items()}


def dot(one: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    """Inner product over the tensors of ``one``."""
    return float(
        sum(
            np.vdot(value.astype(np.float64, copy=False), other[name].astype(np.float64)) for name, value in one.items()
        )
    )


def norm(tree: Mapping[str, Array]) -> float:
    """Euclidean norm."""
    return float(np.sqrt(dot(tree, tree)))


def sent_by_all(made: Wide, own: Trees) -> list[Tree]:
    """The same real tensors from each attacker, in its own dtypes; its own integer tensors."""
    return [
        {name: made[name].astype(value.dtype) if name in made else value.copy() for name, value in tree.items()}
        for tree in own
    ]
