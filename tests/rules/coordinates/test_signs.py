"""Sign majority and sign election, coordinate by coordinate in plain Python."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import NonFiniteError, RuleError


def sign(v):
    return int(v > 0) - int(v < 0)


def majority(x, w):
    return [sign(sum(Fraction(int(a)) * sign(v) for v, a in zip(column, w, strict=True))) for column in x.T]


def elected(x, w, by):
    result = []
    for column in x.T:
        pairs = list(zip(column, w, strict=True))
        votes = [Fraction(int(a)) * (Fraction(float(v)) if by == "mass" else sign(v)) for v, a in pairs]
        s = sign(sum(votes))
        those = [(v, a) for v, a in pairs if s and sign(v) == s]
        result.append(sum(v * a for v, a in those) / sum(a for _, a in those) if those else 0.0)
    return result


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_directly(rng, n, dtype):
    x = np.round(2 * rng.normal(size=(n, 200))).astype(dtype) / 2  # zeros and ties
    for w in (np.ones(n), rng.integers(1, 4, n)):
        np.testing.assert_array_equal(aggregate(x, "sign_majority", w).value, majority(x, w))
        for by in ("mass", "count"):
            np.testing.assert_allclose(aggregate(x, "sign_election", w, by=by).value, elected(x, w, by), rtol=1e-6)


def test_ties_that_do_not_round_to_zero():
    """Three of weight 1/3 against one of weight 1: in floating point the sums differ by an ulp, in some order."""
    w = np.array([0.1, 0.2, 0.3])
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        x = np.array([[1.0], [1.0], [-1.0]])[order]
        assert aggregate(x, "sign_majority", w[order]).value == 0
        assert aggregate(x, "sign_election", w[order]).value == 0


def test_ties_merging():
    """Values the other way and zeros count neither above nor below the line: (2 + 4) / 2, not / 4."""
    x = [np.array([2.0]), np.array([4.0]), np.array([-5.0]), np.array([0.0])]
    assert aggregate(x, "sign_election").value == 3
    assert aggregate(x, "sign_election", by="count").value == 3
    x[2] -= 2
    assert aggregate(x, "sign_election").value == -7
    assert aggregate(x, "sign_election", by="count").value == 3


def test_magnitude_buys_no_votes():
    x = [np.array([1e-9, -1.0]), np.array([1e-9, 1.0]), np.array([-1e30, 1e-30])]
    np.testing.assert_array_equal(aggregate(x, "sign_majority").value, [1, 1])


def test_who_counted():
    x = [np.ones(4), 2 * np.ones(4), -np.ones(4), np.zeros(4)]
    np.testing.assert_allclose(aggregate(x, "sign_majority").weights, [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(aggregate(x, "sign_election").weights, [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(aggregate([np.ones(2), -np.ones(2)], "sign_majority").weights, [0.5, 0.5])


def test_no_negative_zero():
    for rule in ("sign_majority", "sign_election"):
        assert not np.signbit(aggregate([np.array([-0.0]), np.array([0.0])], rule).value).any()


@pytest.mark.parametrize("rule", ["sign_majority", "sign_election"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_is_named(rule, bad):
    with pytest.raises(NonFiniteError, match="contributor 1"):
        aggregate([np.zeros(2), np.array([0, bad])], rule)


def test_by_is_mass_or_count():
    with pytest.raises(RuleError, match="'mass' or 'count'"):
        rules.SignElection(by="votes")
