"""Attacks that go as far as distances allow: no further from the honest than these are from each other."""

from __future__ import annotations

import numpy as np

from pluribus.federated.attacks.trees import Trees, Wide, deviation, dot, mean, norm, plus, sent_by_all
from pluribus.federated.models import Tree

DIRECTIONS = ("std", "unit", "sign")


def min_max(honest: Trees, own: Trees, direction: str = "std") -> list[Tree]:
    """All attackers send ``m = mean + g p`` with the largest g for which nobody is far from it.

    ``max_i |m - x_i| <= max_ij |x_i - x_j|`` over the honest updates x. The direction p is ``-std`` (each
    coordinate's deviation, ddof = 1), ``unit`` (``-mean / |mean|``) or ``sign`` (``-sign(mean)``). Each distance is a
    quadratic in g, so g is found exactly. Without honest clients the attackers' own updates stand for them.

    Shejwalkar and Houmansadr 2021. Compared with vrt1shjwlkr/NDSS21-Model-Poisoning our_attack_dist: the same bound,
    which is searched by halving there.
    """
    sample = honest if len(honest) else own
    middle, path = _path(sample, direction)
    return sent_by_all(plus(middle, _largest_within(sample, middle, path), path), own)


def min_sum(honest: Trees, own: Trees, direction: str = "std") -> list[Tree]:
    """All attackers send ``m = mean + g p`` with the largest g for which it is near all together.

    ``sum_i |m - x_i|^2 <= min_i sum_j |x_i - x_j|^2``, which is ``g = min_i |x_i - mean| / |p|``. Directions as in
    `min_max`.

    Shejwalkar and Houmansadr 2021. The bound is the one of the authors' code (our_attack_score); other
    implementations take the maximum on the right.
    """
    sample = honest if len(honest) else own
    middle, path = _path(sample, direction)
    length = norm(path)
    nearest = min(norm(_from(middle, tree)) for tree in sample)
    return sent_by_all(plus(middle, nearest / length if length > 0 else 0.0, path), own)


def _path(sample: Trees, direction: str) -> tuple[Wide, Wide]:
    """The mean, and the direction away from it."""
    middle = mean(sample)
    if direction == "std":
        return middle, {name: -value for name, value in deviation(sample, middle).items()}
    if direction == "sign":
        return middle, {name: -np.sign(value) for name, value in middle.items()}
    length = norm(middle)
    return middle, {name: -value / length if length > 0 else value for name, value in middle.items()}


def _from(middle: Wide, tree: Tree) -> Wide:
    return {name: tree[name] - value for name, value in middle.items()}


def _largest_within(sample: Trees, middle: Wide, path: Wide) -> float:
    """The largest g with ``|c_i - g p|^2 <= D`` for all i, where c are the updates less the mean, D their width."""
    square = dot(path, path)
    if square == 0:
        return 0.0
    gram = np.zeros((len(sample), len(sample)))
    for name, value in middle.items():
        rows = np.stack([(tree[name] - value).ravel() for tree in sample])
        gram += rows @ rows.T
    along = np.array([dot(path, _from(middle, tree)) for tree in sample])
    own = np.diag(gram)
    width = (own[:, None] + own[None, :] - 2 * gram).max()
    return float(((along + np.sqrt(along**2 + square * np.maximum(width - own, 0.0))) / square).min())
