"""The part of a Gram matrix that is more than rounding. Rules that invert it share this."""

from __future__ import annotations

import numpy as np

from pluribus.core.dtypes import Array

NOISE = 1e-13  # of the largest eigenvalue: what float64 sums leave of dependent vectors


def spectrum(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues above the noise, falling, shape (r,), and their eigenvectors, shape (n, r); r is the rank."""
    values, vectors = np.linalg.eigh(matrix)
    kept = values > NOISE * max(float(values[-1]), 0.0)
    return values[kept][::-1], vectors[:, kept][:, ::-1]


def pseudo_solve(matrix: Array, right: Array) -> Array:
    """Least-squares solution of least norm, for a positive semi-definite matrix."""
    values, vectors = spectrum(matrix)
    seen = vectors.T @ right
    seen[np.abs(seen) <= NOISE * np.linalg.norm(right)] = 0.0  # a right side that cancels leaves rounding
    return np.asarray(vectors @ (seen / values))
