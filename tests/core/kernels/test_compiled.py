"""The compiled kernels give the bits of the plain ones."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba", reason="numba is not installed: pip install 'pluribus[fast]'")

from pluribus.core.kernels import compiled, jit, plain

FLOATS = [np.float32, np.float64]


def bits(array):
    return array.view(np.uint32 if array.itemsize == 4 else np.uint64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("out_dtype", FLOATS)
def test_middle_and_ranks(tile, kind, dtype, out_dtype):
    for n in [*range(1, 14), 16, 17, 31, 50, 64, 200]:
        size = [1, 7, 511, 1024, 1025, 3000][n % 6] if n < 60 else 300
        views = tile(kind, n, size, dtype)
        for low, high in {((n - 1) // 2, n // 2 + 1), (n // 5, n - n // 5), (0, n), (n // 3, n // 3 + 1)}:
            a, b = np.full(size, np.nan, out_dtype), np.empty(size, out_dtype)
            assert plain.middle(views, low, high, a)
            assert compiled.middle(views, low, high, b)
            assert np.array_equal(bits(a), bits(b)), (n, low, high)
        many_a, many_b = ([np.empty(size, out_dtype) for _ in range(3)] for _ in range(2))
        assert plain.ranks(views, [0, n - 1, n // 2], many_a)
        assert compiled.ranks(views, [0, n - 1, n // 2], many_b)
        assert all(np.array_equal(bits(a), bits(b)) for a, b in zip(many_a, many_b, strict=True)), n


@pytest.mark.parametrize("dtype", FLOATS)
def test_weighted_sum(tile, kind, dtype):
    rng = np.random.default_rng(0)
    for n in [*range(1, 14), 50, 64, 200]:
        size = [1, 7, 511, 2048, 2049, 3000][n % 6]
        views = tile(kind, n, size, dtype)
        some = np.where(rng.random(n) < 0.5, 0.0, rng.random(n))
        for weights in (rng.standard_normal(n), some, np.full(n, 1 / n), np.full(n, -0.3)):
            a, b = np.full(size, np.nan), np.empty(size)
            assert plain.weighted_sum(views, weights, a)
            assert compiled.weighted_sum(views, weights, b)
            unknown = np.isnan(a)  # infinities of both signs, from finite values: a NaN's bits are the processor's
            assert np.array_equal(unknown, np.isnan(b))
            assert np.array_equal(bits(a)[~unknown], bits(b)[~unknown]), n
            c, d = np.empty(size, np.float32), np.empty(size, np.float32)
            with np.errstate(over="ignore"):
                assert plain.weighted_sum(views, weights, c)
                assert compiled.weighted_sum(views, weights, d)
            assert np.array_equal(bits(c)[~unknown], bits(d)[~unknown]), n


def test_no_fused_multiply_add():
    # (1 + e)(1 + e^2) - 1 keeps its last bit only if the product is not rounded, that is when it is fused.
    x = np.full(64, 1 + 2.0**-20, np.float32)
    out = np.empty(64)
    assert compiled.weighted_sum([np.ones(64, np.float32), x], [-1.0, 1 + 2.0**-40], out)
    assert np.array_equal(out, np.full(64, 2.0**-20 + 2.0**-40))


def test_one_compilation_serves_every_number_of_contributors():
    out = np.empty(10, np.float32)
    compiled.middle([np.zeros(10, np.float32)] * 2, 0, 2, out)
    before = len(compiled._middle.signatures)
    for n in range(3, 30):
        compiled.middle([np.zeros(10, np.float32)] * n, 1, n - 1, out)
    assert len(compiled._middle.signatures) == before


def test_without_a_folder_for_the_cache(monkeypatch):
    njit = jit.numba.njit

    def nowhere(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(jit.numba, "njit", nowhere)
    assert jit.jit(lambda x: x + 1)(2) == 3


def test_an_unaligned_view():
    raw = np.zeros(8 * 20 + 1, np.uint8)[1:]
    view = raw.view(np.float64)
    view[:] = np.arange(20)
    assert not view.flags.aligned
    out = np.empty(20)
    assert compiled.weighted_sum([view, view], [1, 2], out)
    assert np.array_equal(out, 3.0 * np.arange(20))
