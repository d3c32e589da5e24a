"""Sets of gradients: in conflict, dependent, of very different lengths, with zeros."""

from __future__ import annotations

import numpy as np
import pytest


def _sets():
    rng = np.random.default_rng(7)
    plain = rng.normal(size=(5, 8))
    small = rng.normal(size=(5, 8))
    small[0] = -small[1] + 0.3 * small[0]
    small[1] *= 1e-3
    tiny = small.copy()
    tiny[3] *= 1e-6
    return {
        "conflict": plain,
        "agreement": np.abs(plain),
        "a thousand times smaller": small,
        "a million times smaller": tiny,
        "more than dimensions": rng.normal(size=(7, 3)),
        "copies": plain[[0, 1, 2, 0, 0, 1]],
        "opposite": np.vstack([plain[:2], -plain[:1]]),
        "nearly opposite": np.vstack([plain[:2], -plain[:1] + 1e-4 * plain[3]]),
        "with a zero": np.vstack([plain[:4], np.zeros(8)]),
        "all zero": np.zeros((3, 4)),
        "one": plain[:1],
        "one number": np.array([[1.0], [-2.0], [0.5]]),
        "many": rng.normal(size=(40, 100)),
    }


SETS = _sets()


@pytest.fixture(params=list(SETS))
def gradients(request):
    """One of the sets, shape (n, d)."""
    return SETS[request.param]


@pytest.fixture
def frozen():
    """The set on which torchjd 0.18.0 (torch 2.13.0, float64) was run; its results are in the tests."""
    return np.array([[2.0, -1.0, 0.5, 3.0], [-1.0, 2.0, 1.0, -2.0], [0.5, 1.5, -2.0, 1.0]])
