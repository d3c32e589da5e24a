"""Cosines of contributions with a combination of them."""

from __future__ import annotations

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.relations import Gram


def cosines_to(relation: Gram, coefficients: Array) -> Array:
    """cos(x_i, w'X) for every row i, shape (m,), for coefficients w over the rows; 0 where either is a zero vector."""
    inner = relation.gram @ coefficients
    squares = relation.squared_norms * max(float(coefficients @ inner), 0.0)
    return np.asarray(np.clip(np.divide(inner, np.sqrt(squares), out=np.zeros_like(inner), where=squares > 0), -1, 1))
