"""The last update of every client, kept by the server: N models of memory, which is the price of the rules here."""

from __future__ import annotations

import numpy as np

from pluribus.federated.server.base import Array, Round, Tree


def forgotten(params: Tree, names: list[str], n_clients: int) -> Tree:
    """Zeros for each client: a tensor of shape (N, ...) for each trained one, in its own width."""
    return {name: np.zeros((n_clients, *params[name].shape), dtype=params[name].dtype) for name in names}


def remembered(memory: Tree, round: Round) -> Tree:
    """The memory with the participants' rows replaced by their updates."""
    after: Tree = {}
    for name, rows in memory.items():
        after[name] = rows.copy()
        for client, update in zip(round.clients, round.updates, strict=True):
            after[name][client] = update[name]
    return after


def weighted(rows: Array, coefficients: Array) -> Array:
    """``sum_i c_i rows_i`` over the leading axis, float64, in one fixed order whatever the number of threads."""
    return np.asarray(np.einsum("i,i...->...", np.asarray(coefficients, dtype=np.float64), rows, optimize=False))
