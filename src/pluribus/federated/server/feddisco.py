"""FedDisco: clients count by their size and by how far their labels are from the target distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core import weights
from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.server.base import Array, Round, State
from pluribus.federated.server.rule import Server, Step, mean, one_of, register

DISTANCES = ("kl", "l2", "l1", "cosine")
TARGETS = ("uniform", "global")


def label_distances(label_counts: Any, distance: str = "kl", target: str = "uniform") -> Array:
    """How far each client's labels are from the target distribution, shape (k,), not negative.

    Parameters
    ----------
    label_counts
        Samples of each class of each client, shape (k, C), every row with something in it.
    distance
        ``"kl"``: sum_c h_c log(h_c / t_c), then divided by its sum over the clients (zero if all are zero), as in the
        authors' code. ``"l2"``, ``"l1"``: norms of h - t. ``"cosine"``: one less the cosine of h and t.
    target
        ``"uniform"``: 1/C each. ``"global"``: the clients' labels together.
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    if counts.ndim != 2 or not counts.size or not np.isfinite(counts).all() or (counts < 0).any():
        raise RuleError(
            f"label_counts must be k clients x C classes of finite numbers >= 0, not of shape {counts.shape}"
        )
    totals = counts.sum(axis=1, keepdims=True)
    if not (totals > 0).all():
        empty = ", ".join(map(str, np.flatnonzero(totals[:, 0] == 0)))
        raise RuleError(f"label_counts: row {empty} has no samples, so its distribution means nothing; leave it out")
    shares = counts / totals
    goal = np.full(counts.shape[1], 1 / counts.shape[1]) if target == "uniform" else counts.sum(axis=0) / counts.sum()
    if distance == "kl":
        ratio = np.divide(shares, goal, out=np.ones_like(shares), where=shares > 0)
        divergence = np.maximum((shares * np.log(ratio)).sum(axis=1), 0.0)
        total = divergence.sum()
        return np.asarray(divergence / total if total > 0 else divergence)
    if distance == "cosine":
        cosines = shares @ goal / (np.linalg.norm(shares, axis=1) * np.linalg.norm(goal))
        return np.maximum(1 - cosines, 0.0)
    return np.asarray(np.linalg.norm(shares - goal, ord=1 if distance == "l1" else 2, axis=1))


def disco_weights(
    sizes: Any,
    label_counts: Any,
    a: float = 0.5,
    b: float = 0.1,
    *,
    distance: str = "kl",
    target: str = "uniform",
) -> Array:
    """``p_k`` in proportion to ``max(0, n_k / n - a d_k + b)``, shape (k,), of sum one.

    n is the sum of the given clients' sizes and d is `label_distances`. Where nobody is left with a positive number
    the weights are the sizes' (the authors' code fails there). Compared with disco.py of MediaBrain-SJTU/FedDisco.
    """
    counts = np.asarray(label_counts)
    shares = weights.normalise(weights.check(sizes, len(counts)))
    if a == b == 0:  # FedAvg to the last bit
        return shares
    raised = np.maximum(0.0, shares - a * label_distances(counts, distance, target) + b)
    return weights.normalise(raised) if (raised > 0).any() else shares


@register
@dataclass(frozen=True)
class FedDisco(Server):
    """``x + sum_k p_k delta_k`` with p_k in proportion to ``max(0, n_k / n - a d_k + b)``; see `disco_weights`.

    Parameters
    ----------
    a
        How much the distance of a client's labels from the target counts against it; 0 with b = 0 is FedAvg.
    b
        What every client gets, so that small and skewed ones keep some weight.
    distance
        ``"kl"``, ``"l2"``, ``"l1"`` or ``"cosine"``.
    target
        ``"uniform"`` over the classes, or ``"global"``: the labels of the round's participants together.
    """

    a: float = 0.5
    b: float = 0.1
    distance: str = "kl"
    target: str = "uniform"

    key = "feddisco"
    formula = "x + sum_k p_k delta_k, p_k ~ max(0, n_k / n - a d_k + b)"
    source = "Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023"
    explanation = "Clients count by their number of samples, less the more their labels differ from an even mix."
    numbers = (1,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedDisco", "a", self.a, zero=True)
        positive("FedDisco", "b", self.b, zero=True)
        one_of(self, "distance", DISTANCES)
        one_of(self, "target", TARGETS)

    def advance(self, state: State, round: Round) -> Step:
        """Move by the mean with the discrepancy-aware weights."""
        if round.label_counts is None:
            raise RuleError("FedDisco weighs clients by their labels, and the round has no label_counts; give them")
        shares = disco_weights(
            round.sizes, round.label_counts, self.a, self.b, distance=self.distance, target=self.target
        )
        return Step(self.moved(state["params"], mean(round, shares)), shares, {})
