"""A tree of aggregators: partial weighted sums that merge, in any shape and order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.fold import Fold
from pluribus.core.result import Aggregate
from pluribus.core.rule import whole_number
from pluribus.federated.seeding import generator
from pluribus.rules import Mean

Node = Any
"""A client's number, or a sequence of nodes: an aggregator with what it takes in, in the order of arrival."""


def flat(n: int) -> Node:
    """One aggregator for all."""
    return tuple(range(n))


def balanced(n: int, fan_in: int) -> Node:
    """Leaves in their order, ``fan_in`` to an aggregator, and these again until one is left."""
    whole_number("balanced", "n", n, 1)
    whole_number("balanced", "fan_in", fan_in, 2)
    nodes: list[Node] = list(range(n))
    while len(nodes) > fan_in:
        nodes = [tuple(nodes[start : start + fan_in]) for start in range(0, len(nodes), fan_in)]
    return tuple(nodes)


def scattered(n: int, seed: int) -> Node:
    """A random tree with a random order of arrival: any two parts meet next."""
    rng = generator(seed, "topology.tree")
    nodes: list[Node] = rng.permutation(n).tolist()
    while len(nodes) > 1:
        size = int(rng.integers(2, min(4, len(nodes)) + 1))
        chosen = set(rng.permutation(len(nodes))[:size].tolist())
        joined = tuple(nodes[k] for k in sorted(chosen))
        nodes = [node for k, node in enumerate(nodes) if k not in chosen] + [joined]
    return nodes[0] if isinstance(nodes[0], tuple) else tuple(nodes)


def leaves(tree: Node) -> Iterator[int]:
    """The clients below a node."""
    if isinstance(tree, (int, np.integer)):
        yield int(tree)
    else:
        for child in tree:
            yield from leaves(child)


def tree_fold(tree: Node, fetch: Callable[[int], Any], weights: Sequence[float] | np.ndarray[Any, Any]) -> Fold:
    """What the aggregator at the root of a tree holds: ``(sum w_i x_i, sum w_i)`` of the clients below it.

    An aggregator adds its clients' models, and merges what the aggregators below it hold, one after the other; it has
    one model of float64 sums whatever the number of its clients (`pluribus.core.fold.Fold`). ``fetch(i)`` gives client
    i's model when it is due, and is not asked for it twice. Sums are associative up to the rounding of float64.

    LIFL (Qi et al., MLSys 2024): what its leaf, middle and top functions compute. Its serverless placement is a
    matter of deployment and not built. From the abstract.
    """
    fold = Mean().fold()
    for child in [tree] if isinstance(tree, (int, np.integer)) else tree:
        if isinstance(child, (int, np.integer)):
            fold.add(fetch(int(child)), float(weights[int(child)]), f"client {int(child)}")
        else:
            fold.merge(tree_fold(child, fetch, weights))
    return fold


def tree_mean(
    tree: Node,
    models: Sequence[Mapping[str, Any]] | Callable[[int], Any],
    weights: Sequence[float] | np.ndarray[Any, Any],
    executor: Executor | None = None,
) -> Aggregate:
    """The weighted mean of clients' models through a tree of aggregators: what a flat FedAvg gives.

    Parameters
    ----------
    tree
        Nested sequences of client numbers, each client once: `flat`, `balanced`, `scattered`, or your own.
    models
        The clients' models, or ``fetch(i)`` that gives client i's when it is due: then no more than one is held by
        each aggregator at work, beside its sums.
    weights
        One for each client, not negative; clients that are not in the tree do not count.
    executor
        Where the root's children work, at the same time; they are merged in their order, however many work.
        A pool of processes must be able to pickle ``models``.

    Returns
    -------
    Aggregate
        Its weights are in the order of `leaves`.
    """
    seen = list(leaves(tree))
    if not seen or len(set(seen)) < len(seen):
        raise RuleError(f"a tree has each client once, and at least one; its leaves are {seen[:10]}")
    if min(seen) < 0 or max(seen) >= len(weights):
        raise RuleError(f"the tree has client {max(seen)}, and there are weights of {len(weights)} clients")
    fetch = models if callable(models) else models.__getitem__
    if executor is None or isinstance(tree, (int, np.integer)):
        return tree_fold(tree, fetch, weights).finish()
    fold = Mean().fold()
    for part in executor.map(tree_fold, tree, [fetch] * len(tree), [weights] * len(tree)):
        fold.merge(part)
    return fold.finish()
