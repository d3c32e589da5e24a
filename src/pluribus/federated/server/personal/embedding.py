"""What a model does, as one vector: its scores on random inputs that all clients share."""

from __future__ import annotations

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.data import Dataset
from pluribus.federated.models import Array, Model, Tree
from pluribus.federated.parts import unit_rows
from pluribus.federated.seeding import generator
from pluribus.federated.server.control.pullback import logits

KINDS = ("all", "mean")


def probes(dataset: Dataset, count: int, seed: int) -> Array:
    """Inputs of the samples' shape and kind drawn from N(0, 1), (count, ...): the same for every client."""
    shape = (count, *dataset.x.shape[1:])
    drawn = generator(seed, "federated.probes").standard_normal(shape)
    return drawn.astype(dataset.x.dtype if dataset.x.dtype.kind == "f" else np.float64)


def functional_embedding(model: Model, params: Tree, x: Array, kind: str = "all") -> Array:
    """Scores on the inputs, less each input's mean score, float64: (inputs * classes,) or, of ``"mean"``, (classes,).

    Equal functions have equal embeddings, however their hidden units are numbered; scores that differ by a constant are
    the same probabilities.
    """
    scores = np.asarray(logits(model, dict(params), x), dtype=np.float64)
    scores = scores - scores.mean(axis=1, keepdims=True)
    return np.asarray(scores.mean(axis=0) if kind == "mean" else scores.ravel())


def cosines(embeddings: list[Array]) -> Array:
    """Cosine of each two embeddings, (k, k), 1 on the diagonal; 0 with a zero one.

    Raises
    ------
    RuleError
        Embeddings of different lengths: the clients' models have different numbers of classes.
    """
    if len({value.shape for value in embeddings}) > 1:
        raise RuleError(f"embeddings of shapes {sorted({e.shape for e in embeddings})} cannot be compared")
    unit, _ = unit_rows(np.stack(embeddings))
    found = np.clip(np.einsum("id,jd->ij", unit, unit, optimize=False), -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)
