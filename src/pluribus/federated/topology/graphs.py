"""Who talks to whom: graphs, the matrices by which neighbours average, and how far neighbours are apart.

A graph is a symmetric boolean matrix (n, n) without loops. A mixing matrix W, (n, n), is symmetric with rows of sum
one; a gossip step replaces the n models by ``W x``, which leaves their plain mean as it is and shrinks what differs by
``1 - spectral_gap(W)`` at least.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pluribus.core.errors import RuleError
from pluribus.core.rule import whole_number
from pluribus.federated.models import Array, Tree
from pluribus.federated.seeding import generator
from pluribus.rules import Mean

Graph = NDArray[np.bool_]

TRIES = 200  # draws of a random regular graph; nearly every one succeeds unless the degree is 1 or nearly n


def complete(n: int) -> Graph:
    """Everybody with everybody."""
    whole_number("complete", "n", n, 1)
    return ~np.eye(n, dtype=np.bool_)


def ring(n: int, reach: int = 1) -> Graph:
    """Each with the ``reach`` nearest on both sides of a circle."""
    whole_number("ring", "n", n, 1)
    whole_number("ring", "reach", reach, 1)
    steps = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    near = np.minimum(steps, n - steps)
    return np.asarray((near > 0) & (near <= reach))


def torus(rows: int, columns: int) -> Graph:
    """Each with its four neighbours on a grid whose opposite edges are joined; node ``r columns + c`` is at (r, c)."""
    whole_number("torus", "rows", rows, 1)
    whole_number("torus", "columns", columns, 1)
    along = np.kron(np.eye(rows, dtype=np.int64), ring(columns))
    across = np.kron(ring(rows), np.eye(columns, dtype=np.int64))
    return np.asarray((along + across) > 0)


def star(n: int) -> Graph:
    """Node 0 with all others: a server among its clients."""
    whole_number("star", "n", n, 1)
    graph = np.zeros((n, n), dtype=np.bool_)
    graph[0, 1:] = graph[1:, 0] = True
    return graph


def random_regular(n: int, degree: int, seed: int) -> Graph:
    """Each with ``degree`` others, a connected graph drawn by pairing stubs (Steger and Wormald 1999).

    Raises ``RuleError`` where no such graph is: ``degree >= n`` or ``n degree`` odd.
    """
    whole_number("random_regular", "n", n, 2)
    whole_number("random_regular", "degree", degree, 1)
    if degree >= n or n * degree % 2:
        raise RuleError(f"no graph has {n} nodes of degree {degree}; the degree is below n, and n degree even")
    if degree == n - 1:
        return complete(n)
    for number in range(TRIES):
        graph = _paired(n, degree, seed, number)
        if graph is not None and connected(graph):
            return graph
    raise RuleError(
        f"no connected graph of {n} nodes of degree {degree} came up in {TRIES} draws; take another degree or seed"
    )


def _paired(n: int, degree: int, seed: int, number: int) -> Graph | None:
    """Stubs in pairs at random, each with one that makes no loop and no double edge; None if the last ones cannot."""
    rng = generator(seed, "topology.regular", number)
    graph = np.zeros((n, n), dtype=np.bool_)
    stubs = rng.permutation(np.repeat(np.arange(n), degree)).tolist()
    while stubs:
        first, second = stubs[-2], stubs[-1]
        if first != second and not graph[first, second]:
            graph[first, second] = graph[second, first] = True
            del stubs[-2:]
            continue
        fits = [k for k, node in enumerate(stubs[:-1]) if node != second and not graph[node, second]]
        if not fits:
            return None
        k = fits[int(rng.integers(len(fits)))]
        stubs[k], stubs[-2] = stubs[-2], stubs[k]
    return graph


def connected(graph: Graph) -> bool:
    """Whether each node reaches each other one."""
    reached = np.zeros(len(graph), dtype=np.bool_)
    reached[0] = True
    while True:
        more = reached | graph[reached].any(axis=0)
        if (more == reached).all():
            return bool(more.all())
        reached = more


def metropolis(graph: Graph) -> Array:
    """``W_ij = 1 / (1 + max(d_i, d_j))`` between neighbours, the rest of each row on its diagonal.

    Metropolis-Hastings weights (Xiao and Boyd 2004): symmetric, rows of sum one, none negative, for any graph.
    """
    graph = _checked(graph)
    degrees = graph.sum(axis=1)
    mixing = np.where(graph, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    np.fill_diagonal(mixing, 1 - mixing.sum(axis=1))
    return mixing


def spectral_gap(mixing: Array) -> float:
    """``1 - |second largest eigenvalue|``: 1 for the plain mean, 0 for a graph in two parts."""
    values = np.sort(np.abs(np.linalg.eigvalsh(check_mixing(mixing, len(mixing)))))
    return float(1 - values[-2]) if len(values) > 1 else 1.0


def check_mixing(mixing: Array, n: int) -> Array:
    """The matrix in float64, or `RuleError`: it must be (n, n), symmetric, not negative, with rows of sum one."""
    mixing = np.asarray(mixing, dtype=np.float64)
    if mixing.shape != (n, n):
        raise RuleError(f"a mixing matrix of {n} clients has shape ({n}, {n}), not {mixing.shape}")
    if not (np.isfinite(mixing).all() and mixing.min() >= 0 and np.abs(mixing.sum(axis=1) - 1).max() < 1e-9):
        raise RuleError("a mixing matrix has no negative weight, and rows of sum one; take metropolis(graph)")
    if np.abs(mixing - mixing.T).max() > 1e-9:
        raise RuleError("a mixing matrix is symmetric, or the clients' mean would drift; take metropolis(graph)")
    return mixing


def mix(models: Sequence[Tree], mixing: Array) -> list[Tree]:
    """``x_i <- sum_j W_ij x_j`` for each row of an (m, n) matrix: m models from n. Sums in float64, rounded once."""
    mixing = np.asarray(mixing, dtype=np.float64)
    if mixing.ndim != 2 or mixing.shape[1] != len(models):
        raise RuleError(f"{len(models)} models need rows of {len(models)} weights, not a matrix of {mixing.shape}")
    values: Sequence[Tree] = Mean()({f"client {i}": model for i, model in enumerate(models)}, mixing).value
    return list(values)


def consensus_distance(models: Sequence[Tree]) -> float:
    """``mean_i |x_i - mean x|^2`` over all float tensors."""
    total = 0.0
    for name, first in models[0].items():
        if first.dtype.kind == "f":
            middle = np.zeros(first.shape)
            for model in models:
                middle += model[name]
            middle /= len(models)
            total += sum(float(((model[name] - middle) ** 2).sum()) for model in models)
    return total / len(models)


def _checked(graph: Graph) -> Graph:
    graph = np.asarray(graph)
    if graph.ndim != 2 or graph.shape[0] != graph.shape[1] or graph.dtype != np.bool_:
        raise RuleError(f"a graph is a square boolean matrix, not {graph.dtype} of shape {graph.shape}")
    if graph.diagonal().any() or (graph != graph.T).any():
        raise RuleError("a graph has no loops, and its edges go both ways")
    return graph
