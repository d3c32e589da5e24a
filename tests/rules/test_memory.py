"""Extra memory of every rule on vectors: less than two models, and tiles of a fixed size."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pluribus import rules
from pluribus.core.rule import PointRule
from pluribus.engines import local

N, SIZES = 50, (1 << 16, 1 << 17)
SLOW = {"residual_reweighting": 6}  # contributors, where work grows with their square
TILES = 32e6  # bytes: tiles that are copied take as much (`kernels.tile_size`)
DRAWN = ("gas",)  # works on parts of a drawn size, whose tiles are not full


def of_vectors():
    for name, cls in rules.registered().items():
        rule = cls(**dict(cls.example))
        if rule.any_vectors and not isinstance(rule, PointRule):
            yield name, rule


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(0)
    return rng.normal(size=SIZES[1]).astype(np.float32) + rng.normal(size=(N, SIZES[1])).astype(np.float32)


@pytest.mark.parametrize(("name", "rule"), list(of_vectors()), ids=lambda v: v if isinstance(v, str) else "")
def test_two_models_and_tiles(name, rule, x, monkeypatch):
    """By numpy's own allocations, on one thread (each has tiles of its own), under weights that differ."""
    monkeypatch.setattr(local, "threads_for", lambda values: 1)
    n = SLOW.get(name, N)
    weights = None if name == "weighted" else np.repeat([1.0, 2.0], (n + 1) // 2)[:n]

    def run(size):
        reference = x[0, :size] + 1 if rule.uses_reference else None
        rule(list(x[:n, :size]), weights, reference=reference)

    run(64)  # what is imported and compiled once
    peaks = []
    for size in SIZES:
        tracemalloc.start()
        run(size)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    models = [4 * size for size in SIZES]
    assert peaks[1] < 2 * models[1] + TILES
    # Tiles are full at both sizes, so that what grows is not they.
    assert name in DRAWN or peaks[1] - peaks[0] < 2 * (models[1] - models[0]) + 2e5
