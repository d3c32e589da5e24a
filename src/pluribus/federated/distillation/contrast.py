"""CreamFL: clients' representations of shared samples, weighted by how well they match the other modality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pluribus.core.errors import ContributionError, RuleError
from pluribus.core.rule import positive
from pluribus.federated.models import Array

ROWS = 4096  # samples whose similarities to all are held at once


class Ensemble(NamedTuple):
    """Aggregated representations, (n, d), and what each client counted for at each sample, (k, n)."""

    value: Array
    weights: Array


def contrast_scores(local: Array, other: Array, temperature: float = 1.0) -> Array:
    """``s_i = log(exp(z_i . g_i / T) / sum_j exp(z_i . g_j / T))``, (n,): whether z_i finds its own partner among all.

    Parameters
    ----------
    local
        A client's representations of the n shared samples, (n, d).
    other
        The global representations of the *other* modality of the same samples, (n, d).
    temperature
        T > 0; 1 in the authors' code.
    """
    positive("contrast_scores", "temperature", temperature)
    local, other = _pair(local, other, "the client")
    scores = np.empty(len(local))
    for start in range(0, len(local), ROWS):
        rows = slice(start, start + ROWS)
        similar = local[rows] @ other.T / temperature
        own = similar[np.arange(len(similar)), np.arange(start, start + len(similar))]
        top = similar.max(axis=1)
        scores[rows] = own - top - np.log(np.exp(similar - top[:, None]).sum(axis=1))
    return scores


def contrast_weights(clients: Sequence[Array], other: Array, temperature: float = 1.0) -> Array:
    """Softmax over clients of their `contrast_scores` at each sample, (k, n): columns of sum one."""
    if not len(clients):
        raise ContributionError("no client sent representations")
    for k, local in enumerate(clients):
        _pair(local, other, f"client {k}")
    scores = np.stack([contrast_scores(local, other, temperature) for local in clients])
    powers = np.exp(scores - scores.max(axis=0))
    return np.asarray(powers / powers.sum(axis=0))


@dataclass(frozen=True)
class CreamFL:
    """The clients' representations of one modality as one: ``sum_k a_ki z_ki``, a the `contrast_weights`.

    It is what the server's model of that modality is then distilled to. Clients may have any architecture: only their
    representations of the shared samples travel. Equal scores give the plain mean. The clients' own contrasts (inter-
    and intra-modal terms of their losses) are not built.

    Compared with ``aggregation`` in MMFL.distill of the authors' code (FLAIR-THU/CreamFL, ``agg_method con_w``): the
    same scores, softmax and sums. Memory: 4096 x n similarities. On digits in two halves (3 clients with some noise and
    one of random vectors) the ensemble finds more of its partners than the plain mean.

    Parameters
    ----------
    temperature
        T > 0; 1 in the authors' code.
    """

    temperature: float = 1.0

    numbers = (371,)
    source = "Yu et al., Multimodal Federated Learning via Contrastive Representation Ensemble, ICLR 2023"
    explanation = "A client counts at each shared sample by how well it finds that sample's other modality."

    def __post_init__(self) -> None:
        positive("CreamFL", "temperature", self.temperature)

    def __call__(self, clients: Sequence[Array], other: Array) -> Ensemble:
        """The ensemble of k clients' (n, d) representations, by the global ones of the other modality, (n, d)."""
        weights = contrast_weights(clients, other, self.temperature)
        pairs = zip(weights, clients, strict=True)
        return Ensemble(np.asarray(sum(w[:, None] * np.asarray(z, dtype=np.float64) for w, z in pairs)), weights)


def recall_at_one(queries: Array, keys: Array) -> float:
    """Share of the queries whose own key has the largest inner product of all keys, (n, d) each: retrieval."""
    queries, keys = _pair(queries, keys, "the queries")
    found = [(queries[s : s + ROWS] @ keys.T).argmax(axis=1) for s in range(0, len(queries), ROWS)]
    return float((np.concatenate(found) == np.arange(len(queries))).mean())


def _pair(local: Array, other: Array, name: str) -> tuple[Array, Array]:
    local, other = np.asarray(local, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if local.ndim != 2 or local.shape != other.shape or not len(local):
        raise ContributionError(
            f"{name}: representations of shape {local.shape}, and the other modality's are {other.shape}; "
            "expected (samples, features) of the same shared samples in the same order"
        )
    if not np.isfinite(local).all() or not np.isfinite(other).all():
        raise RuleError(f"{name}: NaN or Inf in its representations or in the global ones; leave that client out")
    return local, other
