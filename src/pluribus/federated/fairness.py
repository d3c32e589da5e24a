"""Whether a federation is fair: to its clients, and to groups of people across and within clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.entropies import information, minimise, of_axes
from pluribus.federated.models import Array

LEAST_CAP = 1e-8
"""Caps below count as this much, in bits: a table whose information is exactly zero has no inside to search."""


@dataclass(frozen=True)
class ClientFairness:
    """How evenly accuracy is spread over the clients.

    Attributes
    ----------
    mean, variance, deviation
        Over the clients (all of them: divided by their number).
    worst, best
        Of any client.
    worst_tenth, best_tenth
        Mean of the tenth of the clients with the lowest, highest accuracy, at least one.
    jain
        ``(sum a)^2 / (n sum a^2)``, in [1/n, 1]; 1 is even, and so is nobody having any.
    """

    mean: float
    variance: float
    deviation: float
    worst: float
    best: float
    worst_tenth: float
    best_tenth: float
    jain: float


def client_fairness(accuracy: Any) -> ClientFairness:
    """See `ClientFairness`; from each client's accuracy, (N,), NaN where it is not known.

    Raises ``RuleError`` if none is known.
    """
    values = np.asarray(accuracy, dtype=np.float64).reshape(-1)
    known = np.sort(values[np.isfinite(values)])
    if not len(known):
        raise RuleError("no client's accuracy is known, so there is no fairness to measure")
    tenth = math.ceil(len(known) / 10)
    squares = float((known**2).sum())
    return ClientFairness(
        mean=float(known.mean()),
        variance=float(known.var()),
        deviation=float(known.std()),
        worst=float(known[0]),
        best=float(known[-1]),
        worst_tenth=float(known[:tenth].mean()),
        best_tenth=float(known[-tenth:].mean()),
        jain=float(known.sum() ** 2 / (len(known) * squares)) if squares > 0 else 1.0,
    )


@dataclass(frozen=True)
class Disparity:
    """What a model's outputs Y tell about a sensitive group Z, split by what the client S tells too; all in bits.

    Attributes
    ----------
    unique
        What Y tells that S does not: it is unfair over all clients and at each.
    redundant
        What both tell: unfair over all clients because clients differ in groups.
    masked
        What Y tells at a known client alone: unfair at clients, and averages out over them.
    """

    unique: float
    redundant: float
    masked: float

    numbers: ClassVar[tuple[int, ...]] = (14,)
    source: ClassVar[str] = "Hamman and Dutta, Demystifying Local and Global Fairness Trade-offs in FL, ICLR 2024"

    @property
    def over_all(self) -> float:
        """Global disparity, ``I(Z; Y) = unique + redundant``."""
        return self.unique + self.redundant

    @property
    def at_clients(self) -> float:
        """Local disparity, ``I(Z; Y | S) = unique + masked``."""
        return self.unique + self.masked


def group_table(groups: Any, outputs: Any, clients: Any) -> Array:
    """How often each group, output and client occur together, (Z, Y, S), from three arrays of whole numbers, (n,)."""
    columns = [np.asarray(column) for column in (groups, outputs, clients)]
    if len({column.shape for column in columns}) > 1 or columns[0].ndim != 1 or not len(columns[0]):
        raise RuleError("groups, outputs and clients must be arrays of one length, with something in them")
    codes = [np.unique(column, return_inverse=True) for column in columns]
    table = np.zeros([len(names) for names, _ in codes])
    np.add.at(table, tuple(places.reshape(-1) for _, places in codes), 1.0)
    return table


def disparity(table: Any) -> Disparity:
    """The partial information decomposition of a table of group, output and client, (Z, Y, S): see `Disparity`.

    ``unique = min_Q I_Q(Z; Y | S)`` over all tables Q with the same ``p(z, y)`` and ``p(z, s)`` (Bertschinger et al.
    2014), a convex programme, within 1e-9 bits; ``redundant = I(Z; Y) - unique``, ``masked = I(Z; Y | S) - unique``.
    The definitions are the paper's, from its abstract and the literature on that decomposition; the numbers were
    compared with scipy's SLSQP and with the canonical cases. Tables of some hundred cells take a second.
    """
    joint = _probabilities(table, 3, "group, output and client")
    over_all, at_clients = information(joint, [0], [1]), information(joint, [0], [1], [2])
    z = joint.sum(axis=(1, 2))
    by_output, by_client = joint.sum(axis=2), joint.sum(axis=1)
    start = by_output[:, :, None] * by_client[:, None, :] / np.where(z > 0, z, 1.0)[:, None, None]
    keep = np.flatnonzero(start.ravel() > 0)
    objective = of_axes(joint.shape, [0], [1], [2], keep)
    index = np.indices(joint.shape).reshape(3, -1)[:, keep]
    fixed = [index[0] * joint.shape[1] + index[1], index[0] * joint.shape[2] + index[2]]
    least = objective.value(minimise(objective, start.ravel()[keep], fixed))
    unique = min(max(least, 0.0), over_all, at_clients)
    return Disparity(unique, over_all - unique, at_clients - unique)


def best_accuracy(table: Any, over_all: float, at_clients: float) -> tuple[float, Array]:
    """The best accuracy that any model can have with disparities up to two caps in bits, and how it decides (AGLFOP).

    Maximises ``P(Yhat = Y)`` over all tables with the given ``p(z, s, y)``, subject to ``I(Z; Yhat) <= over_all`` and
    ``I(Z; Yhat | S) <= at_clients``: a convex programme, within 1e-7. It bounds every way of training. Caps below
    1e-8 count as 1e-8.

    Parameters
    ----------
    table
        Group, client and true label, (Z, S, Y), counts or probabilities.
    over_all, at_clients
        Caps, at least 0, infinite for none.

    Returns
    -------
    float, array
        The accuracy, and ``p(yhat | z, s, y)``, (Z, S, Y, Y), NaN where a combination does not occur.
    """
    joint = _probabilities(table, 3, "group, client and label")
    if not (over_all >= 0 and at_clients >= 0):
        raise RuleError(f"caps are numbers of bits, at least 0, not {over_all!r} and {at_clients!r}")
    labels = joint.shape[2]
    shape = (*joint.shape, labels)
    keep = np.flatnonzero(np.repeat(joint.ravel() > 0, labels))
    start = np.repeat(joint.ravel() / labels, labels)[keep]
    index = np.indices(shape).reshape(4, -1)[:, keep]
    fixed = [np.ravel_multi_index((index[0], index[1], index[2]), joint.shape)]
    # The most that is ever told is log2 of the number of groups: a cap beyond it is none.
    limits = [(over_all, of_axes(shape, [0], [3], (), keep)), (at_clients, of_axes(shape, [0], [3], [1], keep))]
    most = float(np.log2(joint.shape[0])) + 1e-6
    caps = [(info, max(float(cap), LEAST_CAP)) for cap, info in limits if cap < most]
    right = (index[2] == index[3]).astype(np.float64)
    cells = minimise(-right, start, fixed, caps, within=1e-7)
    whole = np.full(int(np.prod(shape)), np.nan)
    whole[keep] = cells
    decided = whole.reshape(shape) / np.where(joint > 0, joint, np.nan)[..., None]
    return float(right @ cells), decided


def frontier(table: Any, over_all: Any, at_clients: Any) -> Array:
    """`best_accuracy` for every two of some caps, (number of global caps, number of local caps)."""
    return np.array([[best_accuracy(table, g, c)[0] for c in np.ravel(at_clients)] for g in np.ravel(over_all)])


def _probabilities(table: Any, axes: int, what: str) -> Array:
    counts = np.asarray(table, dtype=np.float64)
    if counts.ndim != axes or not np.isfinite(counts).all() or (counts < 0).any() or not counts.sum() > 0:
        raise RuleError(
            f"expected a table of {what}, {axes} axes of finite numbers >= 0, not all zero; got {counts.shape}"
        )
    return np.asarray(counts / counts.sum())
