"""Krum's influence by the short way is that of deciding without each contributor anew, ties included."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from pluribus import rules
from pluribus.core import execution
from pluribus.core.influence import WeighsWithout
from pluribus.rules.robust import krum, krum_without


def clouds(n):
    rng = np.random.default_rng(n)
    yield "normal", rng.normal(size=(n, 7))
    yield "outliers", np.where(np.arange(n)[:, None] < n // 4, 1e12, 1.0) * rng.normal(size=(n, 3))
    yield "far away", 1e6 + rng.normal(size=(n, 5))
    yield "grid", rng.integers(0, 2, (n, 3)).astype(float)
    yield "symmetric", np.eye(n) * 0.1
    yield "corners", np.array(list(itertools.islice(itertools.product([-0.1, 0.3], repeat=10), n)))
    yield "one place", np.full((n, 2), 0.3)


@pytest.mark.parametrize("n", [8, 9, 13, 40])
@pytest.mark.parametrize("f", [0, 1, 2])
def test_the_short_way_is_the_long_way(n, f):
    rng = np.random.default_rng(n + f)
    for (name, cloud), rule in itertools.product(
        clouds(n), [rules.Krum(f=f), rules.MultiKrum(f=f), rules.MultiKrum(f=f, m=3)]
    ):
        found = rule(list(cloud), weights=rng.integers(1, 4, n))
        shares = found.given
        assert isinstance(rule, WeighsWithout)
        for k, without in enumerate(rule.weigh_without(found.relation, shares)):
            rest = np.delete(shares, k)
            directly = np.insert(rule.weigh(found.relation.without(k), rest / rest.sum()), k, 0.0)
            assert np.array_equal(without > 0, directly > 0), (name, rule, k)
            np.testing.assert_allclose(without, directly, rtol=1e-14)
        slow = execution.leave_one_out(rule, found._outcome, shares)
        np.testing.assert_allclose(found.influence(), slow, rtol=1e-9, atol=1e-12 * np.abs(cloud).max(), err_msg=name)


def test_places_that_rounding_could_change_are_added_up_anew(monkeypatch):
    monkeypatch.setattr(krum_without, "_ROUNDING", 1e9)  # all are near
    for _, cloud in clouds(12):
        relation = rules.Krum(f=2)(list(cloud)).relation
        for k, found in enumerate(krum_without.lowest_without(relation.squared_distances, 2, 4)):
            chosen = krum.select_lowest(krum.krum_scores(relation.without(k), 2), 4)
            np.testing.assert_array_equal(np.sort(found), np.sort(chosen + (chosen >= k)))


def test_the_fewest_and_the_left_out(rng):
    assert np.isnan(rules.Krum(f=3)(list(rng.normal(size=(9, 2)))).influence()).all()
    assert np.isnan(rules.MultiKrum(f=1, m=6)(list(rng.normal(size=(7, 2)))).influence()).all()
    found = rules.MultiKrum(f=1)(list(rng.normal(size=(9, 2))), weights=[1, 1, 0, 1, 1, 1, 1, 1, 1])
    assert np.isnan(found.influence()).tolist() == [k == 2 for k in range(9)]


def test_a_thousand_take_a_second(rng):
    found = rules.MultiKrum(f=250)(list(rng.normal(size=(1000, 20))))
    start = time.process_time()
    moved = found.influence()
    assert time.process_time() - start < 15  # some 2 s; deciding a thousand times took a minute
    assert np.isfinite(moved).all()
