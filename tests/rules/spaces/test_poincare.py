"""The mean in the Poincaré ball, and the catalogue's check of number 419."""

from __future__ import annotations

import numpy as np
import pytest
from frechet_checks import assert_least, cost

from pluribus import aggregate, laws, rules
from pluribus.core.errors import ContributionError, RuleError
from pluribus.rules.spaces import frechet, poincare
from pluribus.rules.spaces.poincare import moebius


def ball(rng, n, d, radius=0.95):
    y = rng.normal(size=(n, d))
    return y / np.linalg.norm(y, axis=1, keepdims=True) * radius * rng.random((n, 1)) ** (1 / d)


def distance(a, b, c=1.0):
    """By arcosh, the other formula for it."""
    gap = ((a - b) ** 2).sum(-1)
    return np.arccosh(1 + 2 * c * gap / ((1 - c * (a**2).sum(-1)) * (1 - c * (b**2).sum(-1)))) / np.sqrt(c)


@pytest.mark.parametrize("c", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("d", [1, 2, 10])
def test_it_is_the_least(rng, c, d):
    x, w = ball(rng, 6, d) / np.sqrt(c), rng.random(6)
    rule = rules.PoincareMean(c)
    found = rule(list(x), w).value
    near = np.concatenate([moebius(np.sqrt(c) * found, s * ball(rng, 200, d)) for s in (1e-4, 0.01, 0.9)]) / np.sqrt(c)
    assert_least(rule, x, w, found, near)
    np.testing.assert_allclose(rule(list(x), w).distances, distance(x, found, c), rtol=1e-9)


def test_on_a_diameter_it_is_the_mean_of_signed_distances(rng):
    far, w = rng.uniform(-4, 4, size=8), rng.random(8)
    direction = np.array([0.6, 0.8])
    x = np.tanh(far / 2)[:, None] * direction
    expected = np.tanh(far @ w / w.sum() / 2) * direction
    np.testing.assert_allclose(aggregate(x, "poincare_mean", w).value, expected, atol=1e-13)


def test_far_points_take_few_steps(rng, monkeypatch):
    """At distances of ten Karcher's steps would take hundreds."""
    monkeypatch.setattr(frechet, "ITERATIONS", 25)
    for _ in range(10):
        direction = rng.normal(size=(5, 3))
        x = np.tanh(5.0) * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        w = rng.uniform(0.5, 1, 5)
        found = aggregate(x, "poincare_mean", w).value
        ways = poincare._Ball().log(found[None], x[:, None])[:, 0]
        assert np.abs(w @ ways).max() < 1e-8
    np.testing.assert_allclose(aggregate([x[0], -x[0]], "poincare_mean").value, 0, atol=1e-9)


class TestCatalogue:
    """Number 419."""

    def test_curvature_to_zero_is_the_weighted_mean(self, rng):
        x, w = rng.normal(size=(5, 4)), rng.random(5)
        mean = aggregate(x, "mean", w).value
        # The mean is correctly rounded, and this sums in float64: up to n roundings of a term's size.
        off = np.abs(aggregate(x, "poincare_mean", w, curvature=0).value - mean)
        assert (off <= 5 * np.finfo(float).eps * (w / w.sum()) @ np.abs(x)).all()
        np.testing.assert_allclose(aggregate(x, "poincare_mean", w, curvature=1e-9).value, mean, rtol=1e-6)

    def test_equal_points_are_their_mean(self, rng):
        x = ball(rng, 1, 5)[0]
        np.testing.assert_allclose(aggregate([x] * 4, "poincare_mean").value, x, rtol=1e-14)

    def test_moving_all_moves_the_mean(self, rng):
        x, w, by = ball(rng, 6, 3), rng.random(6), ball(rng, 1, 3)[0]
        found = aggregate(x, "poincare_mean", w).value
        moved = aggregate(moebius(by, x), "poincare_mean", w).value
        np.testing.assert_allclose(moved, moebius(by, found), atol=1e-12)

    def test_it_stays_in_the_ball(self, rng):
        x = ball(rng, 6, 3)
        x *= (1 - 1e-12) / np.linalg.norm(x, axis=1, keepdims=True)
        assert np.linalg.norm(aggregate(x, "poincare_mean").value) < 1

    def test_every_step_lowers_the_sum(self, rng, monkeypatch):
        x, w = moebius(np.array([0.9, 0.0, 0.0]), ball(rng, 6, 3, 0.99)), np.full(6, 1 / 6)
        reached = []
        for steps in range(12):
            monkeypatch.setattr(frechet, "ITERATIONS", steps)
            found = aggregate(x, "poincare_mean").value
            reached.append(cost(rules.PoincareMean(), x, w, found[None])[0])
        assert (np.diff(reached) <= 1e-12 * reached[0]).all()
        assert reached[-1] < reached[0] - 0.01

    def test_trees_are_distorted_less_than_in_the_plane(self):
        """A star of paths: the pooled point of leaves is near the root by hyperbolic distances, as in the tree.

        Leaves at depth h lie at distance h from the root, spread over half of the directions. The tree's own centre of
        the leaves is the root. The Euclidean mean of their points in the ball lies farther from it.
        """
        angles = np.linspace(-np.pi / 2, np.pi / 2, 9)
        for depth in (2.0, 4.0, 6.0):
            leaves = np.tanh(depth / 2) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            off = [distance(aggregate(leaves, rule).value, np.zeros(2)) / depth for rule in ("poincare_mean", "mean")]
            assert off[0] < off[1], depth


def test_laws_of_other_curvatures():
    for c in (0.0, 0.25, 4.0):
        rule = rules.PoincareMean(c)
        found = laws.check(rule, sorted(rule.laws), examples=15)
        assert not {name: v.message for name, v in found.items() if not v.holds}, c


def test_what_is_no_point():
    x = np.zeros((3, 2, 2))
    x[1, 1] = [0.6, 0.8]
    with pytest.raises(ContributionError, match=r"contributor 1: the array at \[1\] has norm 1; .* norms below 1"):
        aggregate(x, "poincare_mean")
    with pytest.raises(ContributionError, match=r"norms below 0\.5"):
        aggregate(x * 0.6, "poincare_mean", curvature=4)
    with pytest.raises(RuleError, match="non-negative"):
        rules.PoincareMean(-1)
