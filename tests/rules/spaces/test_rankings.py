"""Borda and Kemeny against brute force."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import ContributionError, RuleError


def ranks(rng, n, m):
    return np.argsort(rng.random((n, m)), axis=1)


def disagreements(one, other, ties=0.0):
    """Pairs that two rankings order otherwise; a pair that one of them ties costs ``ties``."""
    a, b = (np.sign(r[:, None] - r[None, :]) for r in (one, other))
    upper = np.triu_indices(len(one), 1)
    return float(np.where(a[upper] * b[upper] < 0, 1.0, np.where(a[upper] * b[upper] == 0, ties, 0.0)).sum())


def kemeny_cost(x, w, order):
    return sum(a * disagreements(row, order) for a, row in zip(w, x, strict=True))


@pytest.mark.parametrize("m", [1, 2, 3, 5, 6])
def test_kemeny_is_the_best_of_all_orders(rng, m):
    for _ in range(5):
        x, w = ranks(rng, 5, m), rng.integers(1, 4, 5)
        costs = {order: kemeny_cost(x, w, np.array(order)) for order in permutations(range(m))}
        least = min(costs.values())
        best = [np.argsort(order).tolist() for order, c in costs.items() if c <= least + 1e-9]
        found = aggregate(x, "kemeny", w).value
        assert costs[tuple(found.tolist())] == pytest.approx(least)
        assert np.argsort(found).tolist() == min(best), "of the best the first in the order of items"


def test_kemeny_puts_a_condorcet_winner_first(rng):
    for _ in range(20):
        x = ranks(rng, 7, 6)
        beats = (x[:, :, None] < x[:, None, :]).sum(axis=0) > 3.5
        winners = np.flatnonzero(beats.sum(axis=1) == 5)
        if winners.size:
            assert aggregate(x, "kemeny").value[winners[0]] == 0


def test_borda_within_five_times_kemeny(rng):
    """Number 5 of the catalogue says so, and that they mostly agree."""
    equal = 0
    for _ in range(30):
        x, w = ranks(rng, 6, 5), np.ones(6)
        borda, kemeny = (kemeny_cost(x, w, aggregate(x, name).value) for name in ("borda", "kemeny"))
        assert borda <= 5 * kemeny
        equal += borda <= kemeny + 1
    assert equal > 20


def test_borda_is_the_rank_of_the_mean_rank(rng):
    x, w = ranks(rng, 5, 8), rng.random(5)
    np.testing.assert_array_equal(aggregate(x, "borda", w).value, np.argsort(np.argsort(w @ x)))


def test_borda_ties_what_ties():
    x = np.array([[0, 1, 2], [1, 0, 2]])
    assert aggregate(x, "borda").value.tolist() == [0, 0, 2]
    assert aggregate(x, "kemeny").value.tolist() == [0, 1, 2]
    assert aggregate(x + 1, "borda", first=1).value.tolist() == [1, 1, 3]


def test_tied_ranks_of_contributors():
    x = np.array([[0, 0, 2], [0, 0, 2], [2, 1, 0]])
    assert aggregate(x, "borda").value.tolist() == [1, 0, 2]  # middle ranks 3, 2, 4
    assert aggregate(x, "kemeny").value.tolist() == [1, 0, 2]
    assert aggregate(x[:2], "borda").value.tolist() == [0, 0, 2]


def test_names_of_items_do_not_matter_to_borda(rng):
    x, order = ranks(rng, 5, 6), rng.permutation(6)
    np.testing.assert_array_equal(aggregate(x[:, order], "borda").value, aggregate(x, "borda").value[order])


def test_many_rankings_at_a_time(rng):
    x = np.stack([ranks(rng, 30, 4).reshape(5, 6, 4) for _ in range(7)])
    for name in ("borda", "kemeny"):
        found = aggregate(x, name).value
        assert found.shape == (5, 6, 4)
        np.testing.assert_array_equal(found[3, 2], aggregate(x[:, 3, 2], name).value)


def test_eighteen_items_and_no_more(rng):
    x = ranks(rng, 3, 18)
    unanimous = aggregate([x[0]] * 3, "kemeny").value
    np.testing.assert_array_equal(unanimous, x[0])
    with pytest.raises(RuleError, match=r"19 items are more than an exact search can order \(18\); use Borda"):
        aggregate(ranks(rng, 3, 19), "kemeny")


def test_distances(rng):
    x = ranks(rng, 4, 6)
    found = aggregate(x, "kemeny")
    np.testing.assert_allclose(found.distances, [disagreements(row, found.value) for row in x])
    found = aggregate(x, "borda")
    assert found.distances.shape == (4,)


@pytest.mark.parametrize("rule", ["borda", "kemeny"])
@pytest.mark.parametrize("bad", [[1, 2, 3], [0, 0, 1], [0, 2, 2], [-1, 0, 1]])
def test_what_is_no_ranking_is_named(rule, bad):
    x = [np.array([[0, 1, 2], [2, 1, 0]]) for _ in range(3)]
    x[1] = np.array([[0, 1, 2], bad])
    with pytest.raises(
        ContributionError, match=r"contributor 1: the array at \[1\] is \[.*\], no ranking from first=0"
    ):
        aggregate(x, rule)


def test_floats_are_no_ranks():
    with pytest.raises(ContributionError, match="combines whole numbers; convert it to integers"):
        aggregate(np.array([[0.0, 1.0], [1.0, 0.0]]), "borda")
    with pytest.raises(RuleError, match="first must be"):
        rules.Kemeny(first=-1)


@pytest.mark.parametrize("rule", ["borda", "kemeny"])
def test_ranks_are_numbers(rule):
    """Booleans cannot hold a rank above one."""
    with pytest.raises(ContributionError, match=r"holds bool.*convert it to integers"):
        aggregate([np.array([True, False])] * 3, rule)
    assert aggregate([np.array([1, 0])] * 3, rule).value.tolist() == [1, 0]
