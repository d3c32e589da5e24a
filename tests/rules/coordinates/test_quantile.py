"""Quantiles and extremes against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import NonFiniteError, RuleError

LEVELS = [0, 0.1, 0.25, 1 / 3, 0.5, 0.7, 0.9, 1]


@pytest.mark.parametrize("q", LEVELS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 13])
def test_numpys_averaged_inverted_cdf(rng, n, q):
    x = rng.normal(size=(n, 50))
    expected = np.quantile(x, q, axis=0, method="averaged_inverted_cdf")
    np.testing.assert_allclose(aggregate(x, "quantile", q=q).value, expected, rtol=1e-14)


@pytest.mark.parametrize("q", LEVELS)
def test_weights_are_copies(rng, q):
    x, w = rng.normal(size=(6, 80)), np.array([1, 3, 2, 1, 4, 1])
    expected = np.quantile(np.repeat(x, w, axis=0), q, axis=0, method="averaged_inverted_cdf")
    np.testing.assert_allclose(aggregate(x, "quantile", w, q=q).value, expected, rtol=1e-14)


def test_the_half_is_the_median(rng):
    for n in (5, 8):
        x = list(rng.normal(size=(n, 40)).astype(np.float32))
        for w in (None, rng.integers(1, 4, n)):
            assert rules.Quantile(0.5)(x, w).value.tobytes() == rules.Median()(x, w).value.tobytes()


def test_extremes(rng):
    x = rng.normal(size=(6, 40)).astype(np.float32)
    w = [1, 0, 2, 1, 1, 1]
    assert aggregate(x, "maximum").value.tobytes() == x.max(axis=0).tobytes()
    assert aggregate(x, "minimum").value.tobytes() == x.min(axis=0).tobytes()
    assert aggregate(x, "maximum", w).value.tobytes() == np.delete(x, 1, axis=0).max(axis=0).tobytes()
    np.testing.assert_array_equal(aggregate(x, "quantile", q=1).value, x.max(axis=0))
    np.testing.assert_array_equal(aggregate(x, "quantile", q=0).value, x.min(axis=0))


def test_shares(rng):
    x = [np.zeros(4), np.zeros(4), np.ones(4), np.full(4, 2.0)]
    np.testing.assert_allclose(aggregate(x, "maximum").weights, [0, 0, 0, 1])
    np.testing.assert_allclose(aggregate(x, "minimum").weights, [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(aggregate(x, "quantile", q=0.75).weights, [0, 0, 0.5, 0.5])


def test_breakdown_point():
    assert rules.Quantile(0.5).tolerates(11) == rules.Median().tolerates(11) == 5
    assert rules.Quantile(0.25).tolerates(11) == 2
    assert rules.Quantile(0.9).tolerates(11) == 1
    assert rules.Quantile(0.9).tolerates(10) == 0, "the mean of the two greatest"
    assert rules.Quantile(0).tolerates(100) == 0


def test_not_finite_is_named():
    with pytest.raises(NonFiniteError, match="contributor 1"):
        aggregate([np.zeros(2), np.array([0, np.inf])], "maximum")


@pytest.mark.parametrize("q", [-0.1, 1.1, np.nan, True, "0.5"])
def test_a_level_is_a_share(q):
    with pytest.raises(RuleError, match="from 0 to 1"):
        rules.Quantile(q)
