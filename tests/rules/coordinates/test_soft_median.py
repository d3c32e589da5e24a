"""The soft median against its formula in R^d."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import NonFiniteError, RuleError


def directly(x, w, t):
    median = rules.Median()(list(x), w).value
    distances = np.linalg.norm(x - median, axis=1) / np.sqrt(x.shape[1])
    a = w * np.exp(-distances / t)
    return a / a.sum()


@pytest.mark.parametrize("t", [0.1, 1.0, 10.0])
def test_published_formula(rng, t):
    x = rng.normal(size=(7, 30))
    for w in (np.ones(7), np.array([1.0, 2, 3, 1, 1, 2, 1])):
        found = aggregate(x, "soft_median", w, temperature=t)
        np.testing.assert_allclose(found.weights, directly(x, w, t), rtol=1e-10)
        np.testing.assert_allclose(found.value, directly(x, w, t) @ x, rtol=1e-10, atol=1e-12)


def test_limits(rng):
    x = rng.normal(size=(7, 30))
    nearest = np.linalg.norm(x - np.median(x, axis=0), axis=1).argmin()
    np.testing.assert_allclose(aggregate(x, "soft_median", temperature=1e-9).value, x[nearest])
    np.testing.assert_allclose(aggregate(x, "soft_median", temperature=1e9).value, x.mean(axis=0), atol=1e-8)


def test_a_far_contributor_counts_for_nothing(rng):
    x = rng.normal(size=(7, 30))
    x[3] = 1e20
    found = aggregate(x, "soft_median")
    assert found.weights[3] == 0
    np.testing.assert_allclose(np.abs(found.value) < 5, True)


def test_influence_runs_it_again(rng):
    x = rng.normal(size=(6, 10))
    found = aggregate(x, "soft_median", temperature=0.5)
    rest = [np.delete(x, k, axis=0) for k in range(6)]
    directly = [np.linalg.norm(found.value - aggregate(r, "soft_median", temperature=0.5).value) for r in rest]
    np.testing.assert_allclose(found.influence(), directly)


def test_absent_tensors_make_nobody_nearer(rng):
    """Whoever holds less is no nearer for it: distances are means over what a contributor holds."""
    rows = [{"a": rng.normal(size=40), "b": rng.normal(size=4000)} for _ in range(6)]
    del rows[5]["b"]
    found = rules.SoftMedian(0.2)(rows, missing="absent")
    assert 0.3 < found.weights[5] * 6 < 3


def test_counters_take_no_part(rng):
    rows = [{"w": rng.normal(size=5), "steps": np.array(1000 * k)} for k in range(5)]
    alone = rules.SoftMedian()([{"w": row["w"]} for row in rows])
    np.testing.assert_array_equal(rules.SoftMedian()(rows).weights, alone.weights)


def test_errors_teach():
    with pytest.raises(RuleError, match="positive number"):
        rules.SoftMedian(0)
    with pytest.raises(NonFiniteError, match="contributor 0"):
        aggregate([np.array([np.nan]), np.zeros(1)], "soft_median")
