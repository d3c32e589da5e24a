"""Meamed, the mean around the median and Phocas against sorting by distance."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import NonFiniteError, RuleError


def nearest(x, centre, keep):
    order = np.argsort(np.abs(x - centre), axis=0, kind="stable")[:keep]
    return np.take_along_axis(x, order, axis=0).mean(axis=0)


@pytest.mark.parametrize(("n", "f"), [(3, 1), (7, 2), (7, 3), (10, 2), (21, 5)])
def test_direct_formulas(rng, n, f):
    x = rng.normal(size=(n, 200))
    np.testing.assert_allclose(aggregate(x, "meamed", f=f).value, nearest(x, np.median(x, axis=0), n - f), atol=1e-14)
    trimmed = np.sort(x, axis=0)[f : n - f].mean(axis=0)
    np.testing.assert_allclose(aggregate(x, "phocas", f=f).value, nearest(x, trimmed, n - f), atol=1e-14)
    kept = aggregate(x, "mean_around_median", keep=n - f).value
    assert kept.tobytes() == aggregate(x, "meamed", f=f).value.tobytes()


def test_byzfl():
    """byzfl 0.0.11, Meamed(f=2) on numpy, run on these rows; 200 random sets agreed to 5e-16."""
    x = [
        [-0.802, -1.324, -0.248, 0.42],
        [1.136, 0.11, -0.553, -0.785],
        [0.749, 1.635, 0.273, -1.233],
        [-0.958, 1.6, 0.203, -1.732],
        [-0.084, -1.163, -0.629, -0.488],
        [-0.713, 0.553, -0.063, -0.589],
    ]
    found = aggregate([np.array(row) for row in x], "meamed", f=2).value
    np.testing.assert_allclose(found, [-0.63925, 0.9745, -0.16525, -0.77375], rtol=1e-12)


@pytest.mark.parametrize("rule", [rules.Meamed(2), rules.Phocas(2), rules.MeanAroundMedian(5)], ids=str)
class TestAll:
    def test_one_nan_row_is_named_or_dropped(self, rng, rule):
        """byzfl's Meamed gives NaN for it."""
        x = rng.normal(size=(8, 5))
        x[6, 2] = np.nan
        with pytest.raises(NonFiniteError, match="contributor 6"):
            rule(list(x))
        found = rule(list(x), nonfinite="drop")
        np.testing.assert_array_equal(found.value, rule(list(np.delete(x, 6, axis=0))).value)

    def test_attackers_are_left_out(self, rng, rule):
        x = rng.normal(size=(7, 50))
        for attack in (1e9, -1e30, 3.0):
            moved = x.copy()
            moved[:2] = attack
            honest = x[2:]
            found = rule(list(moved)).value
            assert (np.abs(found - np.median(honest, axis=0)) <= 2 * np.ptp(honest, axis=0)).all()

    def test_weights_are_shares_of_what_is_kept(self, rng, rule):
        x = rng.normal(size=(7, 300))
        found = rule(list(x)).weights
        assert found.sum() == pytest.approx(1)
        moved = x + 10.0 * (np.arange(7) == 3)[:, None]
        assert rule(list(moved)).weights[3] == pytest.approx(0, abs=1e-12)

    def test_equal_weights_of_any_scale(self, rng, rule):
        x = list(rng.normal(size=(8, 20)))
        assert rule(x, np.full(8, 7.0)).value.tobytes() == rule(x).value.tobytes()

    def test_a_heavy_contributor_is_copies(self, rng, rule):
        """Two of weight two are four; f counts contributors of mean weight, so all of it doubles."""
        x = rng.normal(size=(8, 60))
        w = np.array([1, 3, 1, 3, 2, 2, 1, 3])
        doubled = {"Meamed": 4, "Phocas": 4, "MeanAroundMedian": 10}[type(rule).__name__]
        copies = type(rule)(doubled)(list(np.repeat(x, w, axis=0)))
        np.testing.assert_allclose(rule(list(x), w).value, copies.value, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: rules.Meamed(0), "leave nothing out; use Mean"),
        (lambda: rules.Phocas(0), "leave nothing out; use Mean"),
        (lambda: rules.Meamed(-1), "at least 1"),
        (lambda: rules.Phocas(1.5), "whole number"),
        (lambda: rules.MeanAroundMedian(0), "keep must be"),
        (lambda: rules.Meamed(2)([np.ones(2)] * 4), "at least 5 contributors, and got 4"),
        (lambda: rules.MeanAroundMedian(5)([np.ones(2)] * 4), "at least 5 contributors, and got 4"),
    ],
)
def test_errors_teach(make, told):
    with pytest.raises(RuleError, match=told):
        make()
