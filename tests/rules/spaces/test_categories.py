"""Votes on labels."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from pluribus import aggregate, laws, rules
from pluribus.core.errors import ContributionError, RuleError


def counts(column, w):
    found = {}
    for label, weight in zip(column.tolist(), w, strict=True):
        found[label] = found.get(label, Fraction(0)) + Fraction(int(weight))
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_directly(rng, n):
    x = rng.integers(-2, 3, size=(n, 300))
    for w in (np.ones(n), rng.integers(1, 4, n)):
        tables = [counts(column, w) for column in x.T]
        tied = [sorted(k for k, v in t.items() if v == max(t.values())) for t in tables]
        run = {ties: aggregate(x, "plurality", w / 3, ties=ties).value.tolist() for ties in ("smallest", "largest", -9)}
        assert run["smallest"] == [t[0] for t in tied]
        assert run["largest"] == [t[-1] for t in tied]
        assert run[-9] == [t[0] if len(t) == 1 else -9 for t in tied]
        over = [[k for k, v in t.items() if 2 * v > sum(t.values())] for t in tables]
        assert aggregate(x, "majority", w / 3, otherwise=7).value.tolist() == [o[0] if o else 7 for o in over]


def test_ties_are_ties_in_any_order():
    """0.1 + 0.2 and 0.3 differ by rounding."""
    for x, w in (([0, 0, 1], [0.1, 0.2, 0.3]), ([1, 0, 0], [0.3, 0.2, 0.1]), ([0, 1, 0], [0.2, 0.3, 0.1])):
        votes = [np.array([label]) for label in x]
        assert aggregate(votes, "plurality", w, ties=-1).value == -1
        assert aggregate(votes, "majority", w).value == -1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, bool])
def test_dtypes(dtype):
    x = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]], dtype=dtype)
    found = aggregate(x, "plurality").value
    assert found.dtype == dtype
    assert found.tolist() == [1, 1, 1]


def test_large_labels_are_exact():
    labels = [np.array([2**62 + 1]), np.array([2**62 + 1]), np.array([2**62])]
    assert aggregate(labels, "plurality").value == 2**62 + 1


def test_shapes_and_trees(rng):
    rows = [{"a": rng.integers(0, 3, (4, 5)), "b": rng.integers(0, 3, ())} for _ in range(5)]
    found = aggregate(rows, "plurality").value
    assert found["a"].shape == (4, 5)
    assert found["b"].shape == ()
    with pytest.raises(ContributionError, match=r"tensor 'c' holds float64, and Plurality\(\) combines whole numbers"):
        aggregate([{"c": np.zeros(2)}] * 2, "plurality")


def test_distance_is_how_many_labels_differ():
    x = [np.array([0, 0, 0, 1]), np.array([0, 0, 5, 5]), np.array([0, 0, 0, 5])]
    found = aggregate(x, "plurality")
    np.testing.assert_allclose(found.distances**2, [1, 1, 0])
    assert found.influence()[2] == pytest.approx(1), "without the third the last label ties and the smaller wins"


def test_policies_for_counters_do_not_touch_labels():
    x = [np.array([3]), np.array([1]), np.array([1])]
    for policy in ("round", "max", "first"):
        assert aggregate(x, "plurality", integers=policy).value == 1


@pytest.mark.parametrize(
    "rule", [rules.Plurality("largest"), rules.Plurality(-1), rules.Majority(otherwise=2)], ids=str
)
def test_laws_of_the_others(rule):
    held = sorted(rule.laws - {"unanimity"} | {"unanimity"})
    found = laws.check(rule, held, examples=25)
    assert not {name: v.message for name, v in found.items() if not v.holds}


def test_errors_teach():
    for bad in ("first", 0.5, None, True):
        with pytest.raises(RuleError, match="'smallest', 'largest' or a whole number"):
            rules.Plurality(bad)
    with pytest.raises(RuleError, match="otherwise must be a whole number"):
        rules.Majority(otherwise="none")
