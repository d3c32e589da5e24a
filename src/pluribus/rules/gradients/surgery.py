"""Gradients bent one by one until they agree with each other as much as they should. PCGrad and GradVac share it."""

from __future__ import annotations

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import UndefinedError

_GONE = 1e-7  # of what it was made of: a bent contribution this short is rounding
_FAR = 1e100  # a coefficient as large says that targets were out of reach
_FLAT = 1e-4  # least squared sine of a target: a cosine of one is out of reach


def orders(n: int, seed: int) -> Array:
    """For each of n contributions an order in which it meets the others, shape (n, n), drawn from the seed."""
    return np.random.default_rng(seed).permuted(np.tile(np.arange(n), (n, 1)), axis=1)


def bend(gram: Array, targets: Array, meetings: Array, beta: float = 0.0) -> tuple[Array, Array]:
    """Let every contribution meet all others, and lean towards those with which its cosine is below a target.

    The i-th starts as x_i; meeting j, with cosine p below the target t, it gets the multiple of x_j that makes the
    cosine t: ``|y| (t sqrt(1 - p^2) - p sqrt(1 - t^2)) / (|x_j| sqrt(1 - t^2))``. With targets of zero that is PCGrad's
    projection on the plane orthogonal to x_j.

    Parameters
    ----------
    gram
        Inner products, shape (n, n).
    targets
        Wanted cosines, row i for those that i meets, shape (n, n).
    meetings
        Row i: the order in which i meets the others; shape (n, n). It does not meet itself.
    beta
        How fast the targets follow the cosines that were met.

    Returns
    -------
    tuple
        Coefficients of the bent contributions, one a row, shape (n, n), and the targets after it,
        ``(1 - beta) t + beta p``.

    Raises
    ------
    UndefinedError
        Targets near one make each lean far towards all others, which grows beyond float64 when these are many.
    """
    n = len(gram)
    lengths = np.sqrt(np.maximum(np.diag(gram), 0.0))
    rows = np.arange(n)
    made, products, targets = np.eye(n), gram.copy(), targets.copy()
    for j in meetings.T:
        own = np.sqrt(np.maximum(np.einsum("ij,ij->i", made, products), 0.0))
        own = np.where(own > _GONE * (np.abs(made) @ lengths), own, 0.0)
        wanted, inner, others = targets[rows, j], products[rows, j], j != rows
        both = own * lengths[j]
        met = np.clip(np.divide(inner, both, out=np.zeros(n), where=both > 0), -1.0, 1.0)
        flat = np.sqrt(np.maximum(1 - wanted**2, _FLAT))
        # The multiple of x_j, times |x_j|^2; with a target of zero the own length, maybe a small difference, cancels.
        add = both * wanted * np.sqrt(1 - met**2) / flat - inner
        add = np.divide(add, lengths[j] ** 2, out=np.zeros(n), where=others & (met < wanted) & (lengths[j] > 0))
        made[rows, j] += add
        products += add[:, None] * gram[j]
        targets[rows, j] = np.where(others, (1 - beta) * wanted + beta * met, wanted)
        if np.abs(made).max() > _FAR:
            raise UndefinedError(
                f"cosines of {wanted.max():.3g} cannot be reached between {n} contributions; lower them"
            )
    return made, targets
