"""Means of positive definite matrices."""

from __future__ import annotations

import numpy as np
import pytest
from frechet_checks import assert_least
from scipy.linalg import expm, sqrtm

from pluribus import aggregate, laws, rules
from pluribus.core.errors import ContributionError, RuleError

METRICS = ["log_euclidean", "affine_invariant"]


def logm(m):
    """scipy's is for any matrix, and warns of what it loses."""
    values, vectors = np.linalg.eigh(0.5 * (m + m.T))
    return vectors @ np.diag(np.log(values)) @ vectors.T


def matrices(rng, n, d, scale=1.0):
    a = rng.normal(size=(n, d, d))
    return np.stack([expm(scale * (m + m.T) / 2) for m in a])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_it_is_the_least(rng, metric, scale):
    x, w = matrices(rng, 5, 3, scale), rng.random(5)
    rule = rules.PositiveDefiniteMean(metric)
    found = rule(list(x), w).value
    np.testing.assert_allclose(found, found.T, rtol=1e-14)
    root = sqrtm(found).real
    near = [root @ m @ root for size in (1e-4, 0.01, 0.3) for m in matrices(rng, 100, 3, size)]
    assert_least(rule, x, w, found, np.stack([0.5 * (m + m.T) for m in near]), slack=1e-10)


def test_log_euclidean_is_its_formula(rng):
    x, w = matrices(rng, 4, 5), rng.random(4)
    expected = expm(sum(a * logm(m) for a, m in zip(w / w.sum(), x, strict=True)))
    np.testing.assert_allclose(aggregate(x, "positive_definite_mean", w).value, expected, rtol=1e-10)


def test_affine_invariant_solves_its_equation(rng):
    x, w = matrices(rng, 6, 4, 2.0), rng.random(6)
    found = aggregate(x, "positive_definite_mean", w, metric="affine_invariant").value
    inverse = np.linalg.inv(sqrtm(found).real)
    left = sum(a * logm(inverse @ m @ inverse) for a, m in zip(w / w.sum(), x, strict=True))
    assert np.abs(left).max() < 1e-10


def test_affine_invariant_of_two_is_the_geometric_mean(rng):
    a, b = matrices(rng, 2, 3)
    root, inverse = sqrtm(a).real, np.linalg.inv(sqrtm(a).real)
    for t in (0.25, 0.5):
        expected = root @ expm(t * logm(inverse @ b @ inverse)) @ root
        found = aggregate([a, b], "positive_definite_mean", [1 - t, t], metric="affine_invariant").value
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_affine_invariant_moves_with_coordinates(rng):
    x, change = matrices(rng, 5, 3), rng.normal(size=(3, 3))
    rule = rules.PositiveDefiniteMean("affine_invariant")
    moved = rule([change @ m @ change.T for m in x]).value
    np.testing.assert_allclose(moved, change @ rule(list(x)).value @ change.T, rtol=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_the_determinant_does_not_swell(rng, metric):
    x = matrices(rng, 5, 3)
    found = aggregate(x, "positive_definite_mean", metric=metric).value
    geometric = np.exp(np.log(np.linalg.det(x)).mean())
    assert np.linalg.det(found) == pytest.approx(geometric)
    assert np.linalg.det(x.mean(axis=0)) > geometric


@pytest.mark.parametrize("metric", METRICS)
def test_commuting_matrices_have_geometric_means(rng, metric):
    turn, values = np.linalg.qr(rng.normal(size=(4, 4)))[0], rng.lognormal(size=(5, 4))
    x = np.stack([turn @ np.diag(v) @ turn.T for v in values])
    expected = turn @ np.diag(np.exp(np.log(values).mean(axis=0))) @ turn.T
    np.testing.assert_allclose(
        aggregate(x, "positive_definite_mean", metric=metric).value, expected, rtol=1e-9, atol=1e-12
    )


def test_laws_of_the_other_metric():
    rule = rules.PositiveDefiniteMean("affine_invariant")
    found = laws.check(rule, sorted(rule.laws), examples=25)
    assert not {name: v.message for name, v in found.items() if not v.holds}


@pytest.mark.parametrize("metric", METRICS)
def test_many_at_a_time_and_float32(rng, metric):
    x = np.stack([matrices(rng, 40, 2).reshape(4, 10, 2, 2) for _ in range(3)]).astype(np.float32)
    found = aggregate(x, "positive_definite_mean", metric=metric).value
    assert found.dtype == np.float32
    alone = aggregate(x[:, 1, 7], "positive_definite_mean", metric=metric).value
    assert found[1, 7].tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (np.array([[1.0, 0.1], [0.0, 1.0]]), r"contributor 1: the array at \[2\] is off symmetry by 0\.1"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), r"contributor 1: the array at \[2\] has the eigenvalue -1;"),
        (np.zeros((2, 2)), r"has the eigenvalue 0; all eigenvalues must be positive"),
    ],
)
def test_what_is_no_point(bad, told):
    x = np.broadcast_to(np.eye(2), (3, 4, 2, 2)).copy()
    x[1, 2] = bad
    with pytest.raises(ContributionError, match=told):
        aggregate(x, "positive_definite_mean")


def test_shapes():
    with pytest.raises(ContributionError, match="is 2 x 3; positive definite matrices are square"):
        aggregate(np.ones((2, 2, 3)), "positive_definite_mean")
    with pytest.raises(ContributionError, match=r"has shape \(3,\), but the last 2 axes"):
        aggregate(np.ones((2, 3)), "positive_definite_mean")
    with pytest.raises(RuleError, match="'log_euclidean' or 'affine_invariant', not 'euclid'"):
        rules.PositiveDefiniteMean("euclid")
