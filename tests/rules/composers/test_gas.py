"""Gradient splitting against the authors' algorithm in R^d, and the catalogue's checks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.contributions import gather
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError
from pluribus.rules.composers.gas import split


def scores_directly(x, base, p):
    """Contiguous groups of nearly equal size, as numpy cuts them."""
    total = np.zeros(len(x))
    for group in np.array_split(x, p, axis=1):
        result = base(list(group)).value
        total += np.linalg.norm(group - result, axis=1)
    return total


BASES = [
    rules.Median(),
    rules.TrimmedMean(2),
    rules.Krum(f=2),
    rules.Mean(),
    rules.GeometricMedian(),
    rules.chain(rules.NNM(f=2), rules.Median()),
    rules.chain(rules.Clip(1.0), rules.Mean()),
]


@pytest.mark.parametrize("base", BASES, ids=str)
@pytest.mark.parametrize("p", [1, 3, 50])
def test_published_scores(rng, base, p):
    x = rng.normal(size=(9, 50)) + 2 * (np.arange(9) < 2)[:, None]
    kept = np.sort(np.argsort(scores_directly(x, base, p))[:7])
    found = rules.gas(base, f=2, p=p, seed=None)(list(x))
    np.testing.assert_array_equal(np.flatnonzero(found.weights), kept)
    np.testing.assert_allclose(found.value, x[kept].mean(axis=0), atol=1e-14)


def test_weights_count_in_the_base_and_in_the_mean(rng):
    x, w = rng.normal(size=(7, 20)), np.array([1.0, 2, 1, 3, 1, 1, 2])
    found = rules.gas(rules.Median(), f=2, p=4, seed=None)(list(x), w)
    scores = sum(np.linalg.norm(g - rules.Median()(list(g), w).value, axis=1) for g in np.array_split(x, 4, axis=1))
    kept = np.argsort(scores)[:5]
    np.testing.assert_allclose(found.value, np.average(x[kept], axis=0, weights=w[kept]))


class TestSplit:
    @pytest.mark.parametrize("seed", [None, 0, 5])
    @pytest.mark.parametrize("p", [1, 2, 7, 100])
    def test_every_float_is_in_one_group(self, rng, p, seed):
        data = gather([{"a": np.zeros((5, 7)), "n": np.arange(3), "b": np.zeros(1), "c": np.zeros(211)}] * 2)
        groups = split(data, p, seed)
        seen = [(b.tensor, k) for group in groups for b in group for k in range(b.start, b.stop)]
        assert len(seen) == len(set(seen)) == 5 * 7 + 1 + 211
        assert {tensor for tensor, _ in seen} == {0, 2, 3}, "counters belong to none"
        sizes = [sum(b.stop - b.start for b in group) for group in groups]
        assert len(groups) == p
        assert max(sizes) - min(sizes) <= 1

    def test_few_coordinates_make_few_groups(self):
        assert len(split(gather([np.zeros(3)]), 100, 0)) == 3

    def test_the_seed_deals_coordinates(self):
        data = gather([np.zeros(1000)])
        one, other = split(data, 4, 1), split(data, 4, 2)
        assert one == split(data, 4, 1)
        assert one != other
        for group in one:
            spread = [b.start for b in group]
            assert min(spread) < 250
            assert max(spread) > 750

    def test_runs_stay_long_where_there_are_many_coordinates(self):
        data = gather([np.broadcast_to(np.zeros(()), (10_000_000,))])
        blocks = [b for group in split(data, 10, 0) for b in group]
        assert len(blocks) < 11 * 70


def attacked(rng, d=300):
    """Honest ones are unlike: each strays far in a few coordinates. A fifth of all sends the mean, sign flipped."""
    n, f = 20, 4
    mean = 0.08 * rng.choice([-1.0, 1.0], size=d)
    x = mean + rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.05)
    x[:f] = -mean * rng.uniform(0.8, 1.2, size=(f, 1))
    return x, f


class TestCatalogue:
    """Number 78: the check in the catalogue."""

    def test_one_group_with_the_mean_ranks_by_distance_to_the_mean(self, rng):
        x = rng.normal(size=(9, 30))
        kept = np.argsort(np.linalg.norm(x - x.mean(axis=0), axis=1))[:6]
        found = rules.gas(rules.Mean(), f=3, p=1)(list(x))
        assert set(np.flatnonzero(found.weights)) == set(kept)

    def test_dropping_nobody_is_the_average(self, rng):
        x, w = rng.normal(size=(6, 30)), rng.random(6)
        found = rules.gas(rules.Median(), f=0, p=5)(list(x), w).value
        np.testing.assert_allclose(found, aggregate(x, "mean", w).value, rtol=1e-14)

    def test_order_does_not_matter(self, rng):
        x, _ = attacked(rng)
        order = rng.permutation(20)
        rule = rules.gas(rules.Median(), f=4, p=20)
        np.testing.assert_allclose(rule(list(x)).value, rule(list(x[order])).value, atol=1e-14)

    def test_attackers_are_found_more_often_than_by_the_base_rule_alone(self):
        caught = {1: 0, 60: 0}
        for seed in range(10):
            x, f = attacked(np.random.default_rng(seed))
            for p in caught:
                caught[p] += int((rules.gas(rules.Median(), f=f, p=p)(list(x)).weights[:f] == 0).sum())
        assert caught[60] > 0.9 * 40, caught
        assert caught[1] < 0.5 * 40, caught


def test_a_random_split_is_as_good_as_single_coordinates(rng):
    """Few coordinates are dealt one by one, as in the paper."""
    x, f = attacked(rng)
    found = rules.gas(rules.Median(), f=f, p=50, seed=3)(list(x))
    groups = split(gather(list(x)), 50, 3)
    total = np.zeros(20)
    for group in groups:
        columns = np.concatenate([np.arange(b.start, b.stop) for b in group])
        total += np.linalg.norm(x[:, columns] - np.median(x[:, columns], axis=0), axis=1)
    np.testing.assert_array_equal(np.flatnonzero(found.weights), np.sort(np.argsort(total, kind="stable")[:16]))


def test_trees_counters_and_influence(rng):
    rows = [{"a": rng.normal(size=(3, 4)), "n": np.array(10 * k), "b": rng.normal(size=5)} for k in range(7)]
    rule = rules.gas(rules.Median(), f=2, p=3)
    found = rule(rows)
    flat = [np.concatenate([row["a"].ravel(), row["b"]]) for row in rows]
    np.testing.assert_array_equal(found.weights, rule(flat).weights)
    kept = found.weights > 0
    assert found.value["n"] == round(10 * float(np.flatnonzero(kept).mean()))
    directly = []
    for k in range(7):
        rest = rule(rows[:k] + rows[k + 1 :]).value
        gap = np.concatenate([(rest[name] - found.value[name]).ravel() for name in ("a", "b")])
        directly.append(np.linalg.norm(gap))
    np.testing.assert_allclose(found.influence(), directly, atol=1e-9)


def test_nan_is_named_by_its_tensor(rng):
    rows = [{"a": rng.normal(size=40), "b": rng.normal(size=5)} for _ in range(6)]
    rows[3]["b"][1] = np.nan
    for base in (rules.Median(), rules.Krum(f=1)):
        rule = rules.gas(base, f=1, p=4)
        with pytest.raises(NonFiniteError, match=r"contributor 3: NaN or Inf in tensor 'b';"):
            rule(rows)
        assert rule(rows, nonfinite="drop").weights[3] == 0


def test_absent_tensors_would_score_low(rng):
    rows = [{"a": rng.normal(size=4), "b": rng.normal(size=5)} for _ in range(5)]
    del rows[0]["b"]
    with pytest.raises(ContributionError, match="some lack tensors"):
        rules.gas(rules.Median(), f=1)(rows, missing="absent")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: rules.gas("median", f=1), r"base must be a rule.*get\('median'\)"),
        (lambda: rules.gas(rules.Median(), f=-1), "f must be"),
        (lambda: rules.gas(rules.Median(), f=1, p=0), "p must be"),
        (lambda: rules.gas(rules.Median(), f=1, seed=-1), "seed must be"),
        (lambda: rules.gas(rules.Median(), f=2)([np.ones(2)] * 4), "at least 5"),
        (lambda: rules.gas(rules.Krum(f=2), f=1)([np.ones(2)] * 6), "at least 7"),
    ],
)
def test_errors_teach(make, told):
    with pytest.raises(RuleError, match=told):
        make()


def test_rules_are_values():
    rule = rules.gas(rules.Krum(f=1), f=2, p=10)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert rule.tolerates(9) == 1
