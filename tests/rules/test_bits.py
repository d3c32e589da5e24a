"""Every rule on vectors gives the same bits with any number of threads and any size of tiles."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import engines, laws
from pluribus.core import kernels
from pluribus.core.rule import PointRule

RULES = {name: r for name, r in laws.example_rules().items() if r.any_vectors and not isinstance(r, PointRule)}
BLOCKS = 70_000  # coordinates: more than two blocks, so that threads have something to share


@pytest.fixture(scope="module")
def x():
    return list(np.random.default_rng(0).normal(size=(8, BLOCKS)).astype(np.float32))


@pytest.mark.parametrize("name", sorted(RULES))
def test_threads_and_tiles_do_not_matter(name, x, monkeypatch):
    rule = RULES[name]
    reference = x[0] + 1 if rule.uses_reference else None

    def bits(threads):
        found = rule(x, reference=reference, engine=engines.Threads(threads))
        return found.value.tobytes(), np.asarray(found.weights).tobytes()

    expected = bits(1)
    assert bits(2) == expected
    assert bits(7) == expected
    for size in (1000, 4097, 1 << 20):
        monkeypatch.setattr(kernels, "tile_size", lambda n, itemsize, size=size: size)
        assert bits(2) == expected, f"tiles of {size}"
