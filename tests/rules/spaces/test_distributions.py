"""Pools of distributions, and means of compositions."""

from __future__ import annotations

import numpy as np
import pytest
from frechet_checks import assert_least

from pluribus import aggregate, rules
from pluribus.core.errors import ContributionError, UndefinedError


@pytest.fixture
def p(rng):
    return rng.dirichlet(np.ones(5), size=6)


def divergence(a, b):
    return (a * np.log(a / b)).sum(axis=-1)


def test_linear_pool_is_the_mixture(p, rng):
    w = rng.random(6)
    found = aggregate(p, "linear_pool", w).value
    np.testing.assert_allclose(found, w @ p / w.sum(), rtol=1e-14)
    others = rng.dirichlet(np.ones(5), size=500)
    costs = [sum(a * divergence(row, q) for a, row in zip(w, p, strict=True)) for q in (found, *others)]
    assert costs[0] == min(costs)
    assert_least(rules.LinearPool(), p, w, found, others)


def test_log_pool_is_the_geometric_mean(p, rng):
    w = rng.random(6)
    found = aggregate(p, "log_pool", w).value
    expected = np.exp(w @ np.log(p) / w.sum())
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)
    costs = [
        sum(a * divergence(q, row) for a, row in zip(w, p, strict=True))
        for q in (found, *rng.dirichlet(np.ones(5), size=500))
    ]
    assert costs[0] == min(costs)


def test_log_pool_commutes_with_bayes(p, rng):
    """Updating all by one likelihood and pooling is pooling and updating: external Bayesianity."""
    likelihood = rng.random(5)
    updated = p * likelihood / (p * likelihood).sum(axis=1, keepdims=True)
    pooled = aggregate(p, "log_pool").value * likelihood
    np.testing.assert_allclose(aggregate(updated, "log_pool").value, pooled / pooled.sum(), rtol=1e-12)


def test_a_zero_is_a_veto():
    p = np.array([[0.5, 0.5, 0.0], [0.2, 0.4, 0.4]])
    found = aggregate(p, "log_pool").value
    assert found[2] == 0
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(aggregate(p, "log_pool", [0, 1]).value, p[1], rtol=1e-14)
    with pytest.raises(UndefinedError, match="probability zero for somebody"):
        aggregate([np.array([1.0, 0.0]), np.array([0.0, 1.0])], "log_pool")


def test_many_outcomes_do_not_underflow(rng):
    p = rng.dirichlet(np.full(1000, 0.01), size=200) + 1e-300
    p /= p.sum(axis=1, keepdims=True)
    found = aggregate(p, "log_pool").value
    assert np.isfinite(found).all()
    assert found.sum() == pytest.approx(1)


def test_aitchison(p, rng):
    w = rng.random(6)
    found = aggregate(p, "aitchison_mean", w).value
    np.testing.assert_allclose(found, aggregate(p, "log_pool", w).value, rtol=1e-12)
    totals = rng.uniform(1, 100, size=(6, 1))
    np.testing.assert_allclose(aggregate(p * totals, "aitchison_mean", w).value, found, rtol=1e-12)
    near = [found * np.exp(s * rng.normal(size=(200, 5))) for s in (1e-4, 0.1, 2)]
    assert_least(rules.AitchisonMean(), p, w, found, np.concatenate(near))
    # Changing units of parts (perturbation) moves the mean alike.
    units = rng.lognormal(size=5)
    moved = found * units
    np.testing.assert_allclose(aggregate(p * units, "aitchison_mean", w).value, moved / moved.sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("rule", "bad", "told"),
    [
        ("linear_pool", [0.5, 0.6], r"contributor 1: tensor 'q' at \[0\] has sum 1\.1; .*divide by the sum"),
        ("linear_pool", [-0.1, 1.1], r"at \[0\] holds -0\.1; probabilities are not negative"),
        ("log_pool", [0.4, 0.5], r"has sum 0\.9"),
        ("aitchison_mean", [0.0, 1.0], r"holds the part 0; .*replace zeros"),
    ],
)
def test_what_is_no_point(rule, bad, told):
    rows = [{"q": np.full((2, 2), 0.5)} for _ in range(3)]
    rows[1]["q"][0] = bad
    with pytest.raises(ContributionError, match=told):
        aggregate(rows, rule)


def test_rounded_sums_are_forgiven(rng):
    p = rng.dirichlet(np.ones(1000), size=4)
    for dtype in (np.float32, np.float16):
        aggregate(p.astype(dtype), "linear_pool")


def test_one_outcome():
    assert aggregate([np.ones((3, 1))] * 2, "log_pool").value.tolist() == [[1], [1], [1]]
