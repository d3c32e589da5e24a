"""The cone of directions along which no objective gets worse, and projections on it. Shared by several rules."""

from __future__ import annotations

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.relations import Gram
from pluribus.core.solvers import nonnegative_qp


def lengths_and_cosines(gram: Gram) -> tuple[Array, Array]:
    """Norms of the contributions, shape (n,), and their cosines, shape (n, n), without extra rows.

    A zero vector has cosine zero with everything, itself included.
    """
    return np.sqrt(gram.squared_norms[: gram.n]), gram.cosines[: gram.n, : gram.n]


def into_cone(gram: Gram, starts: Array) -> Array:
    """Coefficients of the projections of ``starts @ X`` on the cone of all d with ``<x_i, d> >= 0`` for every i.

    Solved in the lengths' unit, on cosines, so a gradient that is a million times smaller than the others keeps its
    say and the result scales as the contributions do.

    Parameters
    ----------
    gram
        Relation of the n contributions.
    starts
        Coefficients of what is projected, shape (n,) or (k, n).

    Returns
    -------
    Array
        Coefficients, of the shape of ``starts`` and nowhere below them.
    """
    lengths, cosines = lengths_and_cosines(gram)
    added = nonnegative_qp(cosines, (starts * lengths) @ cosines)
    safe = np.where(lengths > 0, lengths, 1.0)
    return np.asarray(starts + np.where(lengths > 0, added / safe, 0.0))
