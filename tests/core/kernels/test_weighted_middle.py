"""Order statistics by weight: float32 values take another way than float64, to the same result."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus.core import kernels
from pluribus.core.kernels import weighted

KERNELS = [k for k in (kernels.plain, kernels._compiled()) if k is not None]
LEVELS = [(0.5, 0.5), (0.0, 0.0), (1.0, 1.0), (0.3, 0.3), (0.2, 0.8), (0.0, 1.0), (0.0, 0.25), (0.49, 0.51)]


def tiles(rng, n):
    yield "random", rng.normal(size=(n, 700))
    yield "ties", np.round(rng.normal(size=(n, 700)))
    yield "zeros of both signs", rng.choice([0.0, -0.0, 1.0], size=(n, 700))
    yield "huge and tiny", rng.normal(size=(n, 700)) * 10.0 ** rng.integers(-44, 38, size=(n, 700))
    yield "neighbours", np.float32(1) + rng.integers(0, 3, size=(n, 700)) * np.finfo(np.float32).eps


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.NAME)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
def test_float32_is_as_float64(rng, kernel, n):
    for name, wide in tiles(rng, n):
        tile = wide.astype(np.float32)
        for copies in (np.ones(n), rng.integers(1, 5, n)):
            weights = copies / copies.sum()
            for low, high in LEVELS:
                found, expected = np.empty(700, np.float32), np.empty(700)
                assert kernel.weighted_middle(list(tile), weights, low, high, found)
                assert kernel.weighted_middle(list(tile.astype(np.float64)), weights, low, high, expected)
                scale = float(np.abs(tile).max())
                np.testing.assert_allclose(found, expected, rtol=3e-7, atol=1e-14 * scale + 2e-45, err_msg=name)
                assert not np.signbit(found[found == 0]).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_that_of_copies(rng, dtype):
    tile, copies = rng.normal(size=(6, 300)).astype(dtype), np.array([1, 3, 2, 1, 4, 1])
    out = np.empty(300)
    assert kernels.plain.weighted_middle(list(tile), copies / 12, 0.5, 0.5, out)
    np.testing.assert_allclose(out, np.median(np.repeat(tile.astype(float), copies, axis=0), axis=0), rtol=1e-15)
    assert kernels.plain.weighted_middle(list(tile), copies / 12, 0.25, 0.75, out)
    middle = np.sort(np.repeat(tile.astype(float), copies, axis=0), axis=0)[3:9].mean(axis=0)
    np.testing.assert_allclose(out, middle, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 3])
def test_not_finite_is_told(dtype, bad, row):
    tile = np.zeros((4, 9000), dtype)
    tile[row, 8999] = bad
    out = np.empty(9000, dtype)
    assert not kernels.plain.weighted_middle(list(tile), np.full(4, 0.25), 0.5, 0.5, out)


def test_pieces_change_nothing(rng, monkeypatch):
    tile, weights = rng.normal(size=(5, 10_001)).astype(np.float32), rng.dirichlet(np.ones(5))
    whole, pieces = np.empty(10_001, np.float32), np.empty(10_001, np.float32)
    assert kernels.plain.weighted_middle(list(tile), weights, 0.2, 0.7, whole)
    monkeypatch.setattr(weighted, "_CACHE", 1)
    assert kernels.plain.weighted_middle(list(tile), weights, 0.2, 0.7, pieces)
    assert pieces.tobytes() == whole.tobytes()


def test_read_only_and_strided_views(rng):
    tile = rng.normal(size=(5, 400)).astype(np.float32)
    tile.flags.writeable = False
    one, other = np.empty(200, np.float32), np.empty(200, np.float32)
    assert kernels.plain.weighted_middle([row[::2] for row in tile], np.full(5, 0.2), 0.5, 0.5, one)
    assert kernels.plain.weighted_middle(list(tile[:, ::2].copy()), np.full(5, 0.2), 0.5, 0.5, other)
    assert one.tobytes() == other.tobytes()
