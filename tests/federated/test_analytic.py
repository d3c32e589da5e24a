"""Least-squares heads from merged sums: the centralised solution, for any split and in any order."""

from functools import reduce

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pluribus.core.errors import RuleError
from pluribus.federated.analytic import Sums, merge, merge_solved, solve, solved, sums, without_ridge


def samples(n=300, d=7, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.integers(classes, size=n)


def central(x, y, classes, ridge):
    return np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ np.eye(classes)[y])


@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("split", ["one class a client", "random", "a sample a client"])
def test_any_split_gives_the_centralised_solution(split, ridge):
    x, y = samples()
    rng = np.random.default_rng(1)
    owner = {"one class a client": y, "random": rng.integers(40, size=300), "a sample a client": np.arange(300)}[split]
    found = merge(*(sums(x[owner == i], y[owner == i], 4) for i in np.unique(owner)))
    assert_allclose(solve(found, ridge), central(x, y, 4, ridge), atol=1e-8)


def test_the_published_recursion_is_the_same_head():
    x, y = samples()
    parts = [solved(sums(x[k::10], y[k::10], 4), 1.0) for k in range(10)]
    for order in (range(10), range(9, -1, -1)):
        whole = reduce(merge_solved, [parts[k] for k in order])
        assert_allclose(without_ridge(whole, 1.0, 10), central(x, y, 4, 0.0), atol=1e-8)


def test_merging_is_commutative_to_the_bit_and_associative_up_to_rounding():
    a, b, c = (sums(*samples(seed=seed), 4) for seed in range(3))
    for one, other in zip(merge(a, b), merge(b, a), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(merge(merge(a, b), c), merge(a, merge(b, c)), strict=True):
        assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_of_many_solutions_the_least_is_taken():
    x, y = samples(n=4, d=7)
    targets = np.eye(4)[y]
    assert_allclose(solve(sums(x, y, 4)), np.linalg.lstsq(x, targets, rcond=None)[0], atol=1e-8)
    assert_allclose(solve(Sums(np.zeros((3, 3)), np.zeros((3, 2)))), np.zeros((3, 2)))


def test_the_intercept_is_a_last_feature():
    x, y = samples()
    wide = np.concatenate([x, np.ones((300, 1))], axis=1)
    assert_allclose(sums(x, y, 4, intercept=True).gram, wide.T @ wide)


def test_what_does_not_merge_is_told():
    with pytest.raises(RuleError, match=r"at least one; got none"):
        merge()
    with pytest.raises(RuleError, match=r"one shape .*\(7, 4\), \(5, 4\)"):
        merge(sums(*samples(), 4), sums(*samples(d=5), 4))
