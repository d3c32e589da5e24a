"""Rules on copies."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pluribus import rules
from pluribus.core.errors import RuleError

RULES = [
    rules.Krum(f=3),
    rules.MultiKrum(f=3),
    rules.chain(rules.NNM(f=3), rules.Krum(f=3)),
    rules.TrimmedMean(3),
    rules.chain(rules.Clip(2.0), rules.Meamed(3)),
    rules.GeometricMedian(),
    rules.mix(rules.Krum(f=3), rules.Median()),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_it_is_the_rule_on_copies(rng, rule):
    x, copies = rng.normal(size=(7, 30)), np.array([1, 3, 2, 1, 4, 2, 1])
    found = rules.weighted(rule)(list(x), copies * 0.37)
    directly = rule(list(np.repeat(x, copies, axis=0)))
    np.testing.assert_allclose(found.value, directly.value, atol=1e-10)
    folded = np.add.reduceat(directly.weights, np.concatenate([[0], np.cumsum(copies)[:-1]]))
    np.testing.assert_allclose(found.weights, folded, atol=1e-9)


def test_equal_weights_change_nothing(rng):
    x = list(rng.normal(size=(7, 30)))
    found = rules.weighted(rules.Krum(f=2))(x, np.full(7, 3.0))
    assert found.value.tobytes() == rules.Krum(f=2)(x).value.tobytes()
    with pytest.raises(RuleError, match="at least 9 contributors, and got 7"):
        rules.weighted(rules.Krum(f=3))(x)


def test_a_heavy_contributor_can_be_an_honest_majority(rng):
    """Krum asks how many others are near; four copies of one are near to each other."""
    x = rng.normal(size=(5, 3)) + 10 * np.arange(5)[:, None]
    w = [4, 1, 1, 1, 1]
    np.testing.assert_array_equal(rules.weighted(rules.Krum(f=2))(list(x), w).value, x[0])
    assert rules.Krum(f=1)(list(x), w).weights[0] == 0


def test_ratios():
    copies = rules.weighted(rules.Mean()).copies
    for numbers in ([1, 1], [1, 2, 3], [7, 11, 13], [101, 200, 299], [1, 999]):
        w = np.array(numbers, dtype=float)
        np.testing.assert_array_equal(copies(w / w.sum()), numbers)
        np.testing.assert_array_equal(copies(w * 3.3e-7 / (w * 3.3e-7).sum()), numbers)


def test_weights_without_a_common_measure(rng):
    x, w = list(rng.normal(size=(5, 3))), rng.random(5)
    with pytest.raises(RuleError, match=r"more than 1000 copies.*resolution="):
        rules.weighted(rules.Krum(f=1))(x, w)
    rule = rules.weighted(rules.Krum(f=1), resolution=50)
    shares = w / w.sum()
    numbers = rule.copies(shares)
    np.testing.assert_allclose(numbers / numbers.sum(), shares, atol=0.03)
    assert rule(x, w).value.shape == (3,)
    assert rules.weighted(rules.Mean(), resolution=10).copies(np.array([0.001, 0.999])).tolist() == [1, 10]
    assert rules.weighted(rules.Mean(), resolution=100).copies(np.array([0.2, 0.4, 0.4])).tolist() == [1, 2, 2]


def test_influence_leaves_out_all_copies(rng):
    x, w = rng.normal(size=(6, 8)), np.array([1, 2, 1, 3, 1, 1])
    rule = rules.weighted(rules.Krum(f=1))
    found = rule(list(x), w)
    directly = [np.linalg.norm(found.value - rule(list(np.delete(x, k, 0)), np.delete(w, k)).value) for k in range(6)]
    np.testing.assert_allclose(found.influence(), directly, atol=1e-12)


def test_a_reference_is_no_copy(rng):
    x, start = rng.normal(size=(4, 6)), rng.normal(size=6)
    rule = rules.CenteredClipping(radius=0.5, iterations=3)
    found = rules.weighted(rule)(list(x), [1, 2, 1, 3], reference=start)
    np.testing.assert_allclose(found.value, rule(list(x), [1, 2, 1, 3], reference=start).value, atol=1e-12)


def test_rules_are_values():
    rule = rules.weighted(rules.Krum(f=1), 20)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert "monotone weight" not in rule.laws
    for make in (lambda: rules.weighted("krum"), lambda: rules.weighted(rules.Mean(), 0)):
        with pytest.raises(RuleError, match="must be"):
            make()
