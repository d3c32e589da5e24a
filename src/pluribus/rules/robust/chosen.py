"""What rules that choose among contributors share."""

from __future__ import annotations

import numpy as np

from pluribus.core.dtypes import Array


def mean_of(chosen: Array, weights: Array, rows: int) -> Array:
    """Coefficients of the weighted mean of the chosen, shape (rows,), zero for all others.

    Parameters
    ----------
    chosen
        Positions, or a mask of shape (n,).
    weights
        Positive weights, shape (n,).
    rows
        Number of rows: contributors and extra rows.
    """
    result = np.zeros(rows)
    among = np.zeros(len(weights))
    among[chosen] = weights[chosen]
    result[: len(weights)] = among / among.sum()
    return result
