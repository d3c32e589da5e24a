"""Cosines of contributions with a combination of them."""

from __future__ import annotations

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.relations import Gram


def cosines_to(relation: Gram, coefficients: Array) -> Array:
    """cos(x_i, w'X) for every row i, shape (m,), for coefficients w over the rows; 0 where either is a zero vector."""
    inner = relation.gram @ coefficients
    lengths, length = np.sqrt(relation.squared_norms), np.sqrt(max(float(coefficients @ inner), 0.0))
    there = (lengths > 0) & (length > 0)  # one after the other: a product of two squares has half the range of numbers
    cosines = np.divide(inner, np.where(there, lengths, 1.0)) / (length if length > 0 else 1.0)
    return np.asarray(np.clip(np.where(there, cosines, 0.0), -1.0, 1.0))
