"""The mean around a centre against sorting by distance, coordinate by coordinate."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import rules
from pluribus.core import kernels
from pluribus.core.errors import RuleError
from pluribus.core.kernels.around import weighted_around
from pluribus.rules.coordinates.around import around_shares, mean_around

KERNELS = [k for k in (kernels.plain, kernels._compiled()) if k is not None]


def directly(x, centre, keep):
    """The mean over both ways to take the nearest where some tie: the smaller first, and the larger first."""
    result = []
    for column, c in zip(x.T, centre, strict=True):
        ways = [
            values[np.argsort(np.abs(values - c), kind="stable")[:keep]].mean()
            for values in (np.sort(column), np.sort(column)[::-1])
        ]
        result.append(np.mean(ways))
    return np.array(result)


def uniform(n):
    return np.full(n, 1 / n)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.NAME)
@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 12])
@pytest.mark.parametrize("kind", ["random", "grid", "outlier"])
def test_every_window(rng, kernel, n, kind):
    x = rng.normal(size=(n, 300))
    centre = rng.normal(size=300)
    if kind == "grid":  # many ties, and sums of halves without rounding
        x, centre = np.round(2 * x), np.round(2 * centre)
    if kind == "outlier":
        x[0] *= 1e30
    for keep in range(1, n + 1):
        out = np.empty(300)
        assert mean_around(list(x), uniform(n), centre, keep, out, kernel=kernel)
        np.testing.assert_allclose(out, directly(x, centre, keep), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.NAME)
@pytest.mark.parametrize("keep", [1, 2, 4, 7])
def test_unequal_weights_keep_a_share(rng, keep, kernel):
    x = np.round(2 * rng.normal(size=(7, 200)))
    copies = np.array([1, 3, 1, 2, 1, 4, 2])
    centre = np.round(2 * rng.normal(size=200))
    # keep/7 of a total of 14 is 2 keep copies.
    out = np.empty(200)
    assert mean_around(list(x), copies / 14, centre, keep, out, kernel=kernel)
    np.testing.assert_allclose(out, directly(np.repeat(x, copies, axis=0), centre, 2 * keep), rtol=1e-12, atol=1e-14)


def test_a_long_tile_is_the_same_in_pieces(rng):
    x = rng.normal(size=(9, 150_001)).astype(np.float32)
    centre = np.median(x, axis=0).astype(np.float64)
    outs = [np.empty(150_001, np.float32) for _ in KERNELS]
    for kernel, out in zip(KERNELS, outs, strict=True):
        assert mean_around(list(x), uniform(9), centre, 6, out, kernel=kernel)
        assert out.tobytes() == outs[0].tobytes()
    some = rng.integers(0, 150_001, 200)
    np.testing.assert_allclose(outs[0][some], directly(x[:, some].astype(float), centre[some], 6), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["random", "grid", "outlier", "zeros"])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 33])
def test_unequal_weights_have_the_same_bits_compiled(rng, n, kind, dtype):
    """In pieces and in one, with values and distances that tie, and with whole rows of zeros of both signs."""
    x, weights = rng.normal(size=(n, 2500)), rng.integers(1, 5, n) + 0.0
    centre = np.median(x, axis=0)
    if kind == "grid":
        x, centre = np.round(2 * x), np.round(4 * centre) / 4
    if kind == "outlier":
        x[0] *= 1e30
    if kind == "zeros":
        x, centre = x * 0.0, centre * 0.0
    x, weights = x.astype(dtype), weights / weights.sum()
    for keep in {1, (n + 1) // 2, n}:
        outs = [np.empty(2500, dtype) for _ in KERNELS]
        for kernel, out in zip(KERNELS, outs, strict=True):
            assert mean_around(list(x), weights, centre, keep, out, kernel=kernel)
            assert out.tobytes() == outs[0].tobytes()
        strided = np.empty((2500, 2), dtype)[:, 0]
        assert mean_around(list(np.asfortranarray(x)), weights, centre, keep, strided, kernel=KERNELS[-1])
        assert strided.tobytes() == outs[0].tobytes()


def test_rounding_lets_nobody_in(rng):
    """Where the window ends between two values, an attacker beyond it counts for nothing, not for a rounding error."""
    for total in range(6, 60):
        copies = rng.multinomial(total - 5, [0.2] * 5) + 1
        x = np.array([[0.0], [1.0], [2.0], [3.0], [1e30]])
        share = (total - copies[4]) / total
        for kernel in KERNELS:
            out = np.empty(1)
            assert weighted_around(list(x), copies / total, np.array([1.5]), share, out, kernel=kernel)
            assert out[0] == pytest.approx((copies[:4] @ x[:4, 0]) / copies[:4].sum(), rel=1e-9)


@pytest.mark.parametrize("weights", [uniform(3), np.array([0.5, 0.25, 0.25])])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_is_told(weights, bad):
    x = [np.zeros(4), np.ones(4), np.array([0, 1, bad, 3])]
    assert not mean_around(x, weights, np.zeros(4), 2, np.empty(4))


def test_huge_values_do_not_overflow():
    x = [np.array([v]) for v in (-1.7e308, 1.6e308, 1.7e308)]
    out = np.empty(1)
    assert mean_around(x, uniform(3), np.array([1.6e308]), 2, out)
    assert out[0] == pytest.approx(1.65e308)


@pytest.mark.parametrize("keep", [0, 4])
def test_keep_must_fit(keep):
    with pytest.raises(RuleError, match=r"1\.\.n = 3"):
        mean_around([np.zeros(2)] * 3, uniform(3), np.zeros(2), keep, np.empty(2))


def test_a_centre_between_two_does_not_choose(rng):
    """The median of an even number lies as far from two values; rounding must not choose one of them."""
    x = rng.normal(size=(4, 500)) + 1e6
    centre, out = np.empty(500), np.empty(500)
    kernels.plain.middle(list(x), 1, 3, centre)
    for weights in (uniform(4), np.array([1, 1, 1, 1 + 1e-11]) / 4):
        assert mean_around(list(x), weights, centre, 1, out)
        np.testing.assert_allclose(out, centre, rtol=0, atol=2e-10)


def test_a_huge_value_blurs_no_tie(rng):
    x = np.array([[0.0], [1.0], [2.1], [1e300]])
    out = np.empty(1)
    for weights in (uniform(4), np.array([1, 1, 1, 1 + 1e-11]) / 4):
        assert mean_around(list(x), weights, np.array([1.0]), 2, out)
        assert out[0] == pytest.approx(0.5)


def test_shares_of_the_nearest():
    """The second column's -1 and 1 lie as far from 0: half of each way, and the two of 1 share alike."""
    tile = np.array([[0.0, 1.0], [1.0, 1.0], [9.0, -1.0]])
    found = around_shares(tile, uniform(3), np.array([0.0, 0.0]), 2)
    np.testing.assert_allclose(found, [[0.5, 3 / 8], [0.5, 3 / 8], [0.0, 1 / 4]])


TIED = np.array([[0.001257302210933933], [-0.0013210486329130189], [0.006404226504432821]])
"""Under weights 1, 1, 2 the trimmed mean is the middle of the two that are farthest apart, but for rounding."""


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.NAME)
@pytest.mark.parametrize("shift", [0.0, 0.25, -100.0, 3e5])
@pytest.mark.parametrize("factor", [1.0, 0.1, 3.0, 1e-120, 1e120])
def test_rounding_of_the_centre_chooses_nobody(kernel, shift, factor, monkeypatch):
    monkeypatch.setenv("PLURIBUS_KERNELS", kernel.NAME)
    x = (TIED + shift) * factor
    found = rules.Phocas(1)(list(x), weights=[1, 1, 2]).value
    expected = 0.5 * (0.75 * x[2] + 0.25 * x[0]) + 0.5 * (0.375 * x[0] + 0.625 * x[2])  # either way to break the tie
    np.testing.assert_allclose(found, expected, rtol=1e-9 if not shift else 0, atol=1e-9 * abs(shift * factor))
    if shift == 0 and factor == 1:
        assert found[0] == pytest.approx(0.0047958, abs=1e-7)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.NAME)
def test_where_some_tie_the_order_does_not_matter(kernel, monkeypatch):
    monkeypatch.setenv("PLURIBUS_KERNELS", kernel.NAME)
    x, weights, order = np.array([[-2.0], [-1], [-1], [0], [1], [1]]), np.array([3, 1, 3, 1, 1, 3]), [0, 2, 1, 3, 4, 5]
    for rows, given in ((x, weights), (x[order], weights[order])):
        assert rules.Phocas(1)(list(rows), given).value == pytest.approx(-0.5)


def test_of_equal_weights_rounding_chooses_nobody_either(rng):
    """Centres that are off by an ulp from the middle of two values."""
    x = np.sort(rng.normal(size=(4, 500)), axis=0) + 10
    middle = 0.5 * x[0] + 0.5 * x[3]
    for centre in (middle, np.nextafter(middle, 0), np.nextafter(middle, 99)):
        out = np.empty(500)
        assert mean_around(list(x), uniform(4), centre, 3, out)
        np.testing.assert_allclose(out, x[1:3].sum(axis=0) / 3 + middle / 3)


@pytest.mark.parametrize("rule", [rules.Phocas(1), rules.Meamed(1), rules.MeanAroundMedian(2)], ids=str)
@pytest.mark.parametrize("weights", [None, [1, 1, 1, 2]], ids=["uniform", "unequal"])
def test_at_the_end_of_float64(rule, weights):
    most = float(np.finfo(np.float64).max)
    result = rule([np.array([most, -most, most])] * 3 + [np.array([-most, most, most])], weights)
    assert np.isfinite(result.value).all()
    assert result.weights.sum() == pytest.approx(1)
