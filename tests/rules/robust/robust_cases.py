"""What the tests of robust rules share: one small table of contributions, and attacks on a cloud."""

from __future__ import annotations

import numpy as np

# Six contributions of eight numbers; references in the field were run on it. The last is an outlier.
SMALL = np.array(
    [
        [0.50, 0.80, 0.23, -0.39, 0.05, -0.49, 0.56, 1.84],
        [0.01, -0.12, 0.99, 0.86, 0.61, -0.43, 0.47, 1.20],
        [-0.84, 0.04, -1.40, -0.79, -1.34, 0.26, -0.77, 0.77],
        [0.66, 0.31, -2.02, -0.04, 0.45, 0.61, -1.03, 0.02],
        [-0.48, -0.31, 1.56, -0.31, 0.47, 1.38, -0.08, 0.39],
        [-1.92, 6.00, 2.29, -3.60, 0.22, 1.73, -0.57, 2.05],
    ]
)


def cloud(seed, honest=9, attackers=2, d=20, shift=5.0):
    """Attackers first, then honest contributions around one; and positive weights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(attackers + honest, d)) + 1.0
    x[:attackers] += shift
    return x, rng.uniform(0.5, 2.0, size=len(x))


def attacks(rng, x, f):
    """Ways in which the first f of x are replaced, from quiet to absurd, together and apart."""
    d = x.shape[1]
    honest = x[f:]
    spread = np.ptp(honest, axis=0)
    for size in (0.5, 3.0, 30.0, 1e4, 1e8):
        one = rng.normal(size=d)
        yield honest.mean(axis=0) + size * one  # all in one place
        yield honest.mean(axis=0) + size * rng.normal(size=(f, d))  # each in its own
        yield honest.mean(axis=0) + size * np.outer(rng.choice([-1, 1], size=f), one)  # on two sides
        yield honest.mean(axis=0) - size * spread  # inside of a corner of the honest range, or beyond it
        yield honest[: min(f, len(honest))][rng.integers(0, min(f, len(honest)), size=f)]  # copies of honest ones
