"""Order statistics of very many: sorted, with the bits of the networks, in little memory."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from pluribus import rules
from pluribus.core.kernels import many, plain

FLOATS = [np.float32, np.float64]
ROWS = [1, 2, 3, 7, 10, 33]


@pytest.fixture
def setting(kernels, tile, kind):
    """A backend, and a hard tile."""
    return lambda n, dtype: (kernels, tile(kind, n, 300, dtype))


@pytest.fixture
def sorted_always(monkeypatch):
    """Two computations: by networks, and by sorting."""

    def both(function, *given):
        monkeypatch.setattr(many, "MOST_WIRES", 10**9)
        by_network = function(*given)
        monkeypatch.setattr(many, "MOST_WIRES", 0)
        by_sorting = function(*given)
        return by_network, by_sorting

    return both


@pytest.mark.parametrize(("n", "dtype"), [*product(ROWS, FLOATS)])
def test_sorting_gives_what_networks_give(setting, n, dtype, sorted_always):
    kernels, views = setting(n, dtype)

    def middle(low, high, kind_of):
        out = np.full(300, np.nan, kind_of)
        with np.errstate(over="ignore"):
            assert kernels.middle(views, low, high, out)
        return out

    for low, high in {((n - 1) // 2, n // 2 + 1), (n // 5, n // 5 + 1), (0, 1), (n - 1, n)}:
        for kind_of in FLOATS:
            a, b = sorted_always(middle, low, high, kind_of)
            assert a.tobytes() == b.tobytes(), (low, high)
    for low, high in {(0, n), (n // 5, n - n // 5)}:
        a, b = sorted_always(middle, low, high, np.float64)
        scale = np.sort(np.abs(np.array(views, np.float64)), axis=0)[-1]
        assert (np.abs(a - b) <= n * 2.0**-52 * scale + 5e-324).all()

    def ranks():
        outs = [np.empty(300, dtype) for _ in range(3)]
        assert kernels.ranks(views, [n - 1, 0, n // 2], outs)
        return np.array(outs)

    a, b = sorted_always(ranks)
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("n", "dtype"), [*product(ROWS, FLOATS)])
def test_weighted_ones_too(setting, n, dtype, sorted_always):
    (kernels, views), rng = setting(n, dtype), np.random.default_rng(n)

    def middle(weights, low, high):
        out = np.empty(300, dtype)
        assert kernels.weighted_middle(views, weights, low, high, out)
        return out

    for weights in (rng.dirichlet(np.ones(n)), np.full(n, 1 / n), np.arange(1, n + 1) / (n * (n + 1) / 2)):
        for low, high in [(0.5, 0.5), (0.2, 0.8), (0.0, 0.1), (0.25, 0.25), (1.0, 1.0), (0.0, 1.0)]:
            a, b = sorted_always(middle, weights, low, high)
            assert a.tobytes() == b.tobytes(), (low, high)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [many.MOST_WIRES, many.MOST_WIRES + 1, 3000])
def test_across_the_threshold(kernels, n, dtype):
    views = list(np.random.default_rng(n).integers(-50, 50, (n, 40)).astype(dtype) / 8)
    ordered = np.sort(np.array(views), axis=0)
    out = np.empty(40, dtype)
    assert kernels.middle(views, (n - 1) // 2, n // 2 + 1, out)
    assert np.array_equal(out, np.median(ordered, axis=0))
    assert kernels.middle(views, n // 4, n - n // 4, out)
    for k in range(40):
        exact = sum(map(Fraction, ordered[n // 4 : n - n // 4, k].tolist())) / (n - 2 * (n // 4))
        assert out[k] == dtype(float(exact))
    low = np.empty(40, dtype)
    assert kernels.ranks(views, [n // 3, 0], [out, low])
    assert np.array_equal(out, ordered[n // 3])
    assert np.array_equal(low, ordered[0])
    weights = np.random.default_rng(1).integers(1, 4, n)
    copies = np.sort(np.repeat(np.array(views), weights, axis=0), axis=0)
    assert kernels.weighted_middle(views, weights / weights.sum(), 0.5, 0.5, out)
    assert np.array_equal(out, np.median(copies, axis=0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_bad_values_and_overflow(kernels, dtype, rng, monkeypatch):
    monkeypatch.setattr(many, "MOST_WIRES", 4)
    monkeypatch.setattr(many, "_ROOM", 1000)  # many pieces
    for bad in (np.nan, np.inf, -np.inf):
        for place in (0, 777):
            views, out = list(rng.normal(size=(5, 778)).astype(dtype)), np.empty(778, dtype)
            views[3][place] = bad
            assert not kernels.middle(views, 2, 3, out)
            assert not kernels.middle(views, 1, 4, out)
            assert not kernels.ranks(views, [0], [out])
            assert not kernels.weighted_middle(views, np.arange(1, 6) / 15, 0.5, 0.5, out)
    out = np.empty(3)
    assert kernels.middle([np.full(3, 1.7e308)] * 4 + [np.array([-1e308, 0, 1e308])], 0, 5, out)
    np.testing.assert_allclose(out, [1.16e308, 1.36e308, 1.56e308])


@pytest.mark.parametrize("dtype", FLOATS)
def test_tensors(tile, dtype, monkeypatch):
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    from pluribus.core.kernels import tensors

    monkeypatch.setattr(many, "MOST_WIRES", 4)
    monkeypatch.setattr(many, "_ROOM", 4000)
    for kind in ("normal", "ties", "huge", "zeros"):
        views = tile(kind, 9, 500, dtype)
        given = [torch.from_numpy(np.array(view)) for view in views]
        for on_cpu in (True, False):
            monkeypatch.setattr(tensors, "_on_cpu", lambda tensor, on_cpu=on_cpu: on_cpu)
            for low, high in ((4, 5), (3, 5), (2, 7)):
                expected, found = np.empty(500, dtype), torch.empty(500, dtype=given[0].dtype)
                assert plain.middle(views, low, high, expected)
                assert tensors.middle(given, low, high, found)
                assert np.array_equal(found.numpy(), expected)
            assert plain.ranks(views, [8], [expected])
            assert tensors.ranks(given, [8], [found])
            assert np.array_equal(found.numpy(), expected)
    given[0][3] = float("nan")
    assert not tensors.middle(given, 4, 5, found)


def test_memory_of_very_many(rng, monkeypatch):
    monkeypatch.setenv("PLURIBUS_KERNELS", "plain")  # numba's own memory is not asked for
    n, size = 16_000, 150
    x = rng.normal(size=(n, size)).astype(np.float32)
    expected = np.median(x, axis=0)
    for rule, weights in [
        (rules.Median(), None),
        (rules.TrimmedMean(f=n // 4), None),
        (rules.Median(), np.arange(n) % 3),
    ]:
        views = list(x)
        tracemalloc.start()
        found = rule(views, weights).value
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 150 << 20, (rule, peak >> 20)  # the network alone took more
        if weights is None and rule == rules.Median():
            np.testing.assert_array_equal(found, expected)
