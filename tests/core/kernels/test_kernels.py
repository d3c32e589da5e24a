"""What each backend computes, against sorting, fractions and float64 sums."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from pluribus.core.errors import ContributionError, WeightError

FLOATS = [np.float32, np.float64]


def middles(n):
    return sorted({((n - 1) // 2, n // 2 + 1), (n // 5, n - n // 5), (0, n), (0, 1), (n - 1, n)})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 10])
def test_middle_is_the_mean_of_its_ranks(kernels, tile, kind, n, dtype):
    views = tile(kind, n, 40, dtype)
    before = [view.copy() for view in views]
    ordered = np.sort(np.array(views), axis=0)
    for (low, high), wide in product(middles(n), (False, True)):
        out = np.full(40, np.nan, np.float64 if wide else dtype)
        assert kernels.middle(views, low, high, out)
        held = ordered[low:high]
        assert (held[0] <= out).all()
        assert (out <= held[-1]).all()
        assert not np.signbit(out[out == 0]).any()
        if high - low == 1:
            assert np.array_equal(out, held[0])
        for k in range(40):
            exact = sum(map(Fraction, held[:, k].tolist())) / (high - low)
            allowed = high * float(np.spacing(out.dtype.type(np.abs(held[:, k]).max() / 2)))
            assert abs(Fraction(float(out[k])) - exact) <= allowed
    assert all(map(np.array_equal, views, before))


def test_mean_of_equal_numbers_is_that_number(kernels):
    for dtype, n in product(FLOATS, [2, 3, 5, 6, 7, 49]):
        info = np.finfo(dtype)
        values = np.array([0.1, 1 / 3, info.max, -info.max, info.smallest_subnormal, info.tiny, 1e-30], dtype)
        out = np.empty(7, dtype)
        assert kernels.middle([values] * n, 0, n, out)
        assert np.array_equal(out, values)


def test_sums_of_huge_values_do_not_overflow(kernels):
    out = np.empty(1)
    huge = [np.array([value]) for value in (1e308, 1.5e308, 1.7e308, -1e308)]
    assert kernels.middle(huge[:2], 0, 2, out)
    assert out[0] == 1.25e308
    assert kernels.middle(huge, 1, 4, out)
    assert out[0] == pytest.approx(1.4e308, rel=1e-15)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 5, 10, 33])
def test_ranks(kernels, tile, kind, n, dtype):
    views = tile(kind, n, 70, dtype)
    ordered = np.sort(np.array(views), axis=0)
    wanted = [n - 1, 0, n // 2, n // 2]  # in any order, twice too
    outs = [np.empty(70, dtype) for _ in wanted]
    assert kernels.ranks(views, wanted, outs)
    assert np.array_equal(outs, ordered[wanted])
    assert not any(np.signbit(out[out == 0]).any() for out in outs)


def test_weighted_sum_rounds_once_into_float32(kernels, rng):
    views, weights = [rng.standard_normal(5000).astype(np.float32) for _ in range(7)], rng.random(7)
    wide, narrow = np.empty(5000), np.empty(5000, np.float32)
    assert kernels.weighted_sum(views, weights, wide)
    assert kernels.weighted_sum(views, weights, narrow)
    np.testing.assert_array_equal(narrow, wide.astype(np.float32))
    strided = np.empty(10000, np.float32)[::2]
    assert kernels.weighted_sum(views, weights, strided)
    np.testing.assert_array_equal(strided, narrow)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 10])
def test_weighted_sum_of_float32_adds_in_order_in_float64(kernels, rng, n):
    views = list(rng.standard_normal((n, 3000)).astype(np.float32))
    weights = rng.standard_normal(n)
    expected = np.zeros(3000)
    for weight, view in zip(weights, views, strict=True):
        expected = expected + weight * view.astype(np.float64)
    out = np.empty(3000)
    assert kernels.weighted_sum(views, weights, out)
    assert np.array_equal(out, expected)
    equal = np.full(n, 1 / n)
    assert kernels.weighted_sum(views, equal, out)
    np.testing.assert_allclose(out, np.mean(views, axis=0, dtype=np.float64), rtol=1e-13, atol=1e-15)


def test_a_view_of_weight_zero_is_not_read(kernels):
    views = [np.array([1.0, 2.0]), np.array([np.nan, np.inf]), np.array([3.0, 5.0])]
    out = np.empty(2)
    assert kernels.weighted_sum(views, [2, 0, -1], out)
    assert out.tolist() == [-1.0, -1.0]
    assert kernels.weighted_sum(views, [0, 0, 0], out)
    assert out.tolist() == [0.0, 0.0]


def test_an_overflow_of_finite_values_is_not_a_bad_input(kernels):
    out = np.empty(3)
    views = [np.full(3, 1e308)] * 3
    assert kernels.weighted_sum(views, [1, 1, 1], out)
    assert np.isinf(out).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_every_bad_value_is_found(kernels, rng, bad, dtype):
    n, size = 6, 2100
    for i, k in product(range(n), [0, 1023, size - 1]):
        views = list(rng.standard_normal((n, size)).astype(dtype))
        views[i][k] = bad
        out = np.empty(size)
        assert not kernels.middle(views, 2, 4, out)
        assert not kernels.middle(views, 1, 5, out)
        assert not kernels.ranks(views, [3], [out])
        assert not kernels.weighted_sum(views, np.ones(n), out)
        assert not kernels.weighted_sum(views, rng.standard_normal(n), out)
        assert [kernels.finite(view) for view in views] == [j != i for j in range(n)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_inner_products(kernels, rng, dtype):
    n, size = 7, 20_000  # more than two pieces
    views = list((100 + rng.standard_normal((n, size))).astype(dtype))
    wide = np.array(views, np.longdouble)
    gram = kernels.gram(views)
    assert gram.dtype == np.float64
    assert np.array_equal(gram, gram.T)
    np.testing.assert_allclose(gram, (wide @ wide.T).astype(float), rtol=1e-14)
    np.testing.assert_allclose(kernels.cross(views[:2], views[2:]), gram[:2, 2:], rtol=1e-14)
    np.testing.assert_allclose(kernels.norms(views), np.diag(gram), rtol=1e-14)
    strided = np.array(views).repeat(2, axis=1)[:, ::2]
    assert np.array_equal(kernels.gram(list(strided)), gram)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_a_bad_row_stays_in_its_row_and_column(kernels, rng, bad):
    views = list(rng.standard_normal((9, 10_001)))
    good = kernels.gram(views)
    views[4][7] = bad
    gram, norms, cross = kernels.gram(views), kernels.norms(views), kernels.cross(views, views)
    others = [i for i in range(9) if i != 4]
    assert np.array_equal(gram[np.ix_(others, others)], good[np.ix_(others, others)])
    assert not np.isfinite(gram[4, 4])
    assert np.isfinite(norms).tolist() == [i != 4 for i in range(9)]
    assert np.isfinite(cross[np.ix_(others, others)]).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_bits_do_not_depend_on_the_tile(kernels, tile, kind, dtype):
    n, size = 9, 70_001
    views = tile(kind, n, size, dtype)
    weights = np.random.default_rng(3).dirichlet(np.ones(n))

    def whole_and_parts(kernel):
        whole, parts = np.empty(size), np.empty(size)
        kernel(views, whole)
        for start, stop in [(0, 1), (1, 40_000), (40_000, size)]:
            kernel([view[start:stop] for view in views], parts[start:stop])
        assert np.array_equal(whole.view(np.uint64), parts.view(np.uint64))

    whole_and_parts(lambda tiles, out: kernels.middle(tiles, 4, 5, out))
    whole_and_parts(lambda tiles, out: kernels.middle(tiles, 2, 7, out))
    whole_and_parts(lambda tiles, out: kernels.ranks(tiles, [8], [out]))
    if not (kind == "huge" and dtype == np.float64):  # its sums are infinities of either sign, or none
        whole_and_parts(lambda tiles, out: kernels.weighted_sum(tiles, weights, out))


def test_threads_do_not_share_scratch(kernels, rng):
    jobs = [list(rng.standard_normal((int(n), 20_000))) for n in rng.integers(2, 12, 24)]

    def run(views):
        n = len(views)
        middle, total = np.empty(20_000), np.empty(20_000)
        assert kernels.middle(views, (n - 1) // 2, n // 2 + 1, middle)
        assert kernels.weighted_sum(views, np.arange(n), total)
        return middle, total, kernels.gram(views)

    alone = [run(views) for views in jobs]
    with ThreadPoolExecutor(4) as pool:
        for mine, theirs in zip(alone, pool.map(run, jobs), strict=True):
            assert all(map(np.array_equal, mine, theirs))


def test_an_empty_tile(kernels):
    views = [np.empty(0, np.float32)] * 3
    out = np.empty(0)
    assert kernels.middle(views, 1, 2, out)
    assert kernels.ranks(views, [1], [out])
    assert kernels.weighted_sum(views, [1, 2, 3], out)
    assert np.array_equal(kernels.gram(views), np.zeros((3, 3)))
    assert np.array_equal(kernels.cross(views, views[:1]), np.zeros((3, 1)))
    assert np.array_equal(kernels.norms(views), np.zeros(3))


def test_a_strided_output(kernels, rng):
    views = list(rng.standard_normal((5, 300)))
    wide, straight = np.zeros(600), np.empty(300)
    for call in [
        lambda out: kernels.middle(views, 1, 4, out),
        lambda out: kernels.ranks(views, [1], [out]),
        lambda out: kernels.weighted_sum(views, [1, 2, 3, 4, 5], out),
    ]:
        assert call(wide[::2])
        assert call(straight)
        assert np.array_equal(wide[::2], straight)
        assert not wide[1::2].any()


def test_bad_arguments_say_what_was_expected(kernels):
    one, out = np.zeros(3), np.empty(3)
    with pytest.raises(ContributionError, match="at least one contributor"):
        kernels.middle([], 0, 1, out)
    with pytest.raises(ContributionError, match=r"contributor 1 gives float64 of shape \(2,\)"):
        kernels.middle([one, one[:2]], 0, 1, out)
    with pytest.raises(ContributionError, match="contributor 1 gives float32"):
        kernels.gram([one, one.astype(np.float32)])
    with pytest.raises(ContributionError, match="not int64"):
        kernels.norms([np.arange(3)])
    with pytest.raises(ContributionError, match="not >f8"):
        kernels.middle([one.astype(">f8")], 0, 1, out)
    with pytest.raises(ContributionError, match="an output of this tile"):
        kernels.middle([one], 0, 1, np.empty(4))
    with pytest.raises(WeightError, match="2 contributors need 2 weights"):
        kernels.weighted_sum([one, one], [1], out)
    with pytest.raises(ContributionError, match="2 ranks need as many outputs"):
        kernels.ranks([one, one], [0, 1], [out])
    with pytest.raises(ContributionError, match="one length"):
        kernels.cross([one], [one[:2]])
