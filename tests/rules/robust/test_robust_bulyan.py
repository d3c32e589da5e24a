"""Bulyan against the published procedure, step by step in R^d."""

from __future__ import annotations

import numpy as np
import pytest
from robust_cases import cloud

from pluribus import aggregate, rules
from pluribus.core.errors import RuleError
from pluribus.rules.robust.bulyan import repeated_krum


def chosen_directly(x, f):
    """n - 2f times Krum among those left: n' - f - 2 neighbours, squared distances, ties by the sum to all left."""
    left = list(range(len(x)))
    taken = []
    for _ in range(len(x) - 2 * f):
        scores = {}
        for i in left:
            others = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in left if j != i)
            scores[i] = (sum(others[: max(len(left) - f - 2, 1)]), sum(others))
        winner = min(scores, key=lambda i: scores[i])
        left.remove(winner)
        taken.append(winner)
    return sorted(taken)


def around_median(values, keep):
    median = np.median(values, axis=0)
    nearest = np.argsort(np.abs(values - median), axis=0, kind="stable")[:keep]
    return np.take_along_axis(values, nearest, axis=0).mean(axis=0)


@pytest.mark.parametrize(("n", "f"), [(7, 1), (12, 1), (11, 2), (15, 3), (5, 0)])
def test_bulyan_is_the_published_procedure(n, f):
    for seed in range(8):
        x, _ = cloud(seed, honest=n - f, attackers=f, d=15, shift=0.7)
        chosen = chosen_directly(x, f)
        squares = ((x[:, None] - x) ** 2).sum(-1)
        assert repeated_krum(squares, f).tolist() == chosen
        assert len(chosen) == n - 2 * f
        np.testing.assert_allclose(aggregate(x, "bulyan_selection", f=f).value, x[chosen].mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(aggregate(x, "bulyan", f=f).value, around_median(x[chosen], n - 4 * f), atol=1e-12)


def test_scores_are_computed_anew():
    """An implementation in the field scores once; the choice differs then."""
    differs = 0
    for seed in range(40):
        x, _ = cloud(seed, honest=9, attackers=2, d=3, shift=0.5)
        others = np.sort(((x[:, None] - x) ** 2).sum(-1) + np.diag(np.full(11, np.inf)), axis=1)
        once = np.sort(np.argsort(others[:, : 11 - 2 - 2].sum(axis=1))[:7])
        differs += once.tolist() != chosen_directly(x, 2)
    assert differs > 5


def test_the_result_is_values_not_distances():
    """An implementation in the field returns the mean of |x - median|."""
    x = np.full((7, 2), 5.0) + np.arange(7)[:, None] / 100
    np.testing.assert_allclose(aggregate(x, "bulyan", f=1).value, 5.03, atol=0.02)


def test_a_chosen_attacker_gains_nothing_at_a_coordinate():
    """The hidden vulnerability: one coordinate far off, the rest honest. Krum chooses it; Bulyan does not follow."""
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(13, 500))
    bad = np.tile(honest.mean(axis=0), (2, 1))  # at the centre, where scores are best
    bad[:, 7] += 20
    x = np.vstack([bad, honest])
    assert aggregate(x, "krum", f=2).value[7] > 10
    assert abs(aggregate(x, "bulyan", f=2).value[7] - honest[:, 7].mean()) < 1


def test_weights_weigh_among_the_chosen():
    x, w = cloud(1)
    chosen = chosen_directly(x, 2)
    found = aggregate(x, "bulyan_selection", w, f=2)
    np.testing.assert_allclose(found.value, w[chosen] @ x[chosen] / w[chosen].sum())
    even = aggregate(x, "bulyan", np.full(11, 3.0), f=2).value
    np.testing.assert_allclose(even, aggregate(x, "bulyan", f=2).value)
    heavy = np.ones(11)
    heavy[chosen[0]] = 1e6
    np.testing.assert_allclose(aggregate(x, "bulyan", heavy, f=2).value, x[chosen[0]], atol=1e-3)


def test_a_preset_is_its_chain():
    x, _ = cloud(2, honest=11)
    rule = rules.Bulyan(f=2)
    assert rule.tolerates(13) == 2
    found = rule(list(x))
    np.testing.assert_array_equal(found.value, rule.chained()(list(x)).value)
    assert str(rule) == "Bulyan(f=2)"
    directly = [np.linalg.norm(found.value - rule([v for j, v in enumerate(x) if j != i]).value) for i in range(len(x))]
    np.testing.assert_allclose(found.influence(), directly, atol=1e-12)
    assert found.weights.sum() == pytest.approx(1)
    assert (found.weights[np.setdiff1d(np.arange(13), chosen_directly(x, 2))] == 0).all()
    mixed = (rules.Clip(4.0) >> rule)(list(x)).value
    clipped = x * np.minimum(1, 4.0 / np.linalg.norm(x, axis=1))[:, None]
    np.testing.assert_allclose(mixed, rule(list(clipped)).value, atol=1e-12)


def test_trees_and_kinds():
    x, _ = cloud(3)
    trees = [{"a": row[:4].astype(np.float32), "b": row[4:].reshape(4, 4), "steps": np.array(7)} for row in x]
    found = rules.Bulyan(f=2)(trees).value
    expected = rules.Bulyan(f=2)(list(x)).value
    np.testing.assert_allclose(np.concatenate([found["a"], found["b"].ravel()]), expected, atol=1e-6)
    assert found["steps"] == 7


def test_the_published_condition():
    with pytest.raises(RuleError, match="at least 11 contributors, and got 10"):
        rules.Bulyan(f=2)([np.ones(1)] * 10)
    with pytest.raises(RuleError, match=r"whole number of at least 0, not 0\.2"):
        rules.Bulyan(f=0.2)
