"""Sums of float64 values lie within one unit in the last place of the exact sums, whatever cancels."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from pluribus import aggregate
from pluribus.core.kernels import compensated

SIZE = 60


def cancelling(n, digits, size=SIZE):
    """n rows of float64 whose sums lose some digits: pairs that cancel, small change between, in any order."""
    rng = np.random.default_rng([n, digits])
    half = rng.standard_normal((n // 2, size)) * 10.0 ** rng.integers(0, digits + 1, (n // 2, size))
    rest = rng.standard_normal((n - 2 * (n // 2), size))
    return rng.permuted(np.vstack([half, -half + rng.standard_normal(half.shape), rest]), axis=0)


def ulps(found, exact):
    """How far off, in units in the last place of the exact result."""
    return float(abs(Fraction(float(found)) - exact) / Fraction(float(np.spacing(abs(float(exact))))))


def exactly(weights, column):
    return sum(Fraction(w) * Fraction(x) for w, x in zip(weights.tolist(), column.tolist(), strict=True))


@pytest.mark.parametrize("digits", [0, 4, 12])
@pytest.mark.parametrize("n", [2, 3, 4, 7, 10, 101])
def test_within_one_ulp(kernels, n, digits):
    views, out, rng = cancelling(n, digits), np.empty(SIZE), np.random.default_rng(n)
    assert kernels.weighted_sum(list(views), np.full(n, 1 / n), out)
    assert max(ulps(out[k], sum(map(Fraction, views[:, k].tolist())) / n) for k in range(SIZE)) <= 0.51
    for weights in (rng.dirichlet(np.ones(n)), rng.standard_normal(n), np.full(n, -0.3), np.arange(1.0, n + 1)):
        assert kernels.weighted_sum(list(views), weights, out)
        assert max(ulps(out[k], exactly(weights, views[:, k])) for k in range(SIZE)) <= 1


def test_what_is_small_beside_what_cancels_is_kept(kernels):
    out = np.empty(1)
    views = [np.array([value]) for value in (1e16, 1.0, -1e16)]
    assert kernels.weighted_sum(views, np.full(3, 1 / 3), out)
    assert out[0] == 1 / 3
    assert kernels.weighted_sum(views, [0.25, 0.5, 0.25], out)
    assert out[0] == 0.5
    assert aggregate(views).value[0] == 1 / 3
    assert aggregate([x.astype(complex) for x in views]).value[0] == 1 / 3


def test_the_mean_of_equal_numbers_is_that_number(kernels):
    info, out = np.finfo(float), np.empty(8)
    values = np.array([0.1, -1 / 3, info.max, -info.max, info.smallest_subnormal, info.tiny, 1e-310, 1e300])
    for n in [*range(1, 50), 1000]:
        assert kernels.weighted_sum([values] * n, np.full(n, 1 / n), out)
        fits = abs(values) < info.max / 2  # `sum_into` mends what overflows beyond its weights' own rounding
        assert np.array_equal(out[fits], values[fits])
        np.testing.assert_allclose(np.nan_to_num(out), values, rtol=1e-12)


def test_a_sum_that_overflows_is_that_of_the_weighted_values(kernels):
    out = np.empty(3)
    huge, small = np.array([1e308, 1.0, 1.5e308]), np.array([1.2e308, 1e16, -1.5e308])
    assert kernels.weighted_sum([huge, huge, small, -small * [0, 1, 1]], np.full(4, 0.25), out)
    np.testing.assert_array_equal(out, [0.8e308, 0.5, 0.75e308])


def test_equal_weights_of_sum_one_are_a_mean():
    assert compensated.plan([1 / 49] * 49).count == 49
    assert compensated.plan([np.nextafter(1 / 49, 1)] * 49).count == 49  # rescaled where a tensor is absent
    assert compensated.plan([0.02] * 49).count == 0
    assert compensated.plan([-0.5] * 2).count == 0
    assert compensated.plan([0.5, 0.25]).count == 0


@pytest.mark.parametrize("weight", [1 / 3, -0.7, 1e-320, 1.7e308, 2.0**1000, 5e-324, 1.0])
def test_a_number_is_the_sum_of_its_halves(weight):
    high, low = compensated.split(weight)
    assert Fraction(high) + Fraction(low) == Fraction(weight)
    for half in (high, low):
        digits = abs(Fraction(half)).numerator
        assert digits == 0 or (digits // (digits & -digits)).bit_length() <= 26
