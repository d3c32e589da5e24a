"""``result.weights`` of rules of coordinates: what each contributor counted for, under the weights that were given."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import rules

PICK = [
    rules.Median(), rules.TrimmedMean(1), rules.TrimmedMean(2), rules.Quantile(0.3), rules.Maximum(), rules.Minimum(),
    rules.Phocas(1), rules.Meamed(2), rules.MeanAroundMedian(3), rules.Bulyan(1), rules.SignElection(),
    rules.SignElection(by="count"), rules.NNM(1) >> rules.Median(),
]  # fmt: skip


@pytest.mark.parametrize("rule", PICK, ids=str)
@pytest.mark.parametrize("weights", [None, [3, 1, 2, 1, 1, 4, 2.5]], ids=["uniform", "unequal"])
@pytest.mark.parametrize("step", [0, 0.5], ids=["apart", "ties"])
def test_they_make_the_result(rng, rule, weights, step):
    """These rules are weighted means at each coordinate, so at one coordinate the weights give the value."""
    for _ in range(20):
        x = rng.normal(size=(7, 1))
        x = np.round(x / step) * step if step else x
        result = rule(list(x), weights)
        if not isinstance(rule, rules.SignElection) or result.value[0]:  # a tie elects none, and all share its zero
            np.testing.assert_allclose(result.weights @ x, result.value, atol=1e-12)
        assert result.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("rule", [*PICK[:4], *PICK[6:9], rules.SignMajority(), rules.LogSumExp()], ids=str)
def test_a_weight_of_two_counts_as_two_copies(rng, rule):
    x, copies = np.round(rng.normal(size=(6, 40)) * 2), [2] * 6
    once, twice = rule(list(x), copies).weights, rule(list(np.repeat(x, 2, axis=0))).weights
    if rule in (rules.Median(), rules.Quantile(0.3), rules.SignMajority(), rules.LogSumExp()):
        np.testing.assert_allclose(twice.reshape(6, 2).sum(axis=1), once, atol=1e-12)
        copies = [1, 2, 1, 3, 1, 1]
        twice = rule(list(np.repeat(x, copies, axis=0))).weights
        once = rule(list(x), copies).weights
        ends = np.cumsum(copies)
        np.testing.assert_allclose([twice[e - c : e].sum() for e, c in zip(ends, copies, strict=True)], once, atol=1e-9)
    np.testing.assert_allclose(rule(list(x)).weights, rule(list(x), [7.0] * 6).weights)


def test_given_weights_are_not_ignored():
    np.testing.assert_array_equal(rules.Median()([0, 1, 5], weights=[10, 1, 1]).weights, [1, 0, 0])
    rows = [np.array([1.0]), np.array([2.0])]
    np.testing.assert_allclose(rules.SignElection()(rows, weights=[9, 1]).weights, [0.9, 0.1])
    np.testing.assert_allclose(rules.SignMajority()([*rows, -rows[0]], weights=[1, 1, 8]).weights, [0, 0, 1])
    np.testing.assert_allclose(rules.LogSumExp()([rows[0]] * 2, weights=[9, 1]).weights, [0.9, 0.1])
    np.testing.assert_allclose(rules.GradDrop(mean=True)(rows, weights=[9, 1]).weights, [0.9, 0.1])
    np.testing.assert_allclose(rules.GradDrop(leak=1)(rows, weights=[9, 1]).weights, [1.8, 0.2])


def test_those_of_who_has_a_tensor_are_of_sum_one_there():
    rows = [{"a": np.zeros(1), "b": np.zeros(1)}, {"a": np.ones(1), "b": np.ones(1)}, {"a": np.full(1, 5.0)}]
    found = rules.Median()(rows, weights=[1, 3, 10], missing="absent").weights
    np.testing.assert_allclose(found, [0, 0.5, 0.5])
