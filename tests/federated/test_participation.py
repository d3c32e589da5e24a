"""Rates of participation, independence of the order of calls, and the tie to labels."""

import numpy as np
import pytest

from pluribus.federated import participation
from pluribus.federated.errors import SettingError

COUNTS = np.eye(4, dtype=int)[np.arange(20) % 4] * 10


def test_everyone_is_there():
    who = participation.everyone(5)
    np.testing.assert_array_equal(who.participants(3, seed=0), np.arange(5))
    np.testing.assert_array_equal(who.rates, 1)


def test_bernoulli_clients_come_at_their_own_rates_and_independently():
    rates = np.linspace(0.05, 1.0, 12)
    who = participation.bernoulli(rates)
    rounds = 4000
    there = np.zeros((rounds, 12))
    for r in range(rounds):
        there[r, who.participants(r, seed=7)] = 1
    error = 4.5 * np.sqrt(rates * (1 - rates) / rounds)
    assert (np.abs(there.mean(axis=0) - rates) <= error).all()
    assert there[:, 11].all()
    assert np.abs(np.corrcoef(there[:, :11].T) - np.eye(11)).max() < 0.08
    assert abs(np.corrcoef(there[1:, 5], there[:-1, 5])[0, 1]) < 0.08
    np.testing.assert_array_equal(who.rates, rates)


def test_a_round_does_not_depend_on_the_rounds_before_it():
    who = participation.bernoulli(0.3, clients=30)
    forward = [who.participants(r, seed=1).tolist() for r in range(20)]
    backward = [participation.bernoulli(0.3, 30).participants(r, seed=1).tolist() for r in reversed(range(20))]
    assert forward == backward[::-1]
    assert len({tuple(r) for r in forward}) == 20
    assert forward != [who.participants(r, seed=2).tolist() for r in range(20)]


def test_a_round_may_be_empty_and_participants_are_sorted_positions():
    who = participation.bernoulli(0.01, clients=3)
    rounds = [who.participants(r, seed=0) for r in range(200)]
    empty = [r for r in rounds if len(r) == 0]
    assert 150 < len(empty) < 200
    assert all(r.dtype == np.int64 and (np.diff(r) > 0).all() for r in rounds)
    np.testing.assert_array_equal(np.zeros(3)[empty[0]], [])


def test_cyclic_groups_take_turns():
    who = participation.cyclic(10, 3, seed=4)
    turns = [who.participants(r, seed=9).tolist() for r in range(6)]
    assert turns[:3] == turns[3:]
    assert sorted(turns[0] + turns[1] + turns[2]) == list(range(10))
    assert sorted(map(len, turns[:3])) == [3, 3, 4]
    np.testing.assert_allclose(who.rates, 1 / 3)
    given = participation.cyclic(4, [[3, 1], [], [0, 2]])
    assert [given.participants(r, 0).tolist() for r in range(3)] == [[1, 3], [], [0, 2]]
    assert given.participants(1, 0).dtype == np.int64


def test_probabilities_tied_to_labels_follow_the_labels():
    who = participation.tied_to_labels(COUNTS, seed=3, mean=0.1, minimum=0.001)
    rates = who.rates
    # Clients with the same single label have the same rate; labels differ, and by a lot at alpha = 0.1.
    for label in range(4):
        assert np.ptp(rates[label::4]) == 0
    assert rates.max() > 3 * rates.min()
    # Even classes: the average is mean * C * sum(q) / C = mean, before the ends of the range.
    loose = participation.tied_to_labels(COUNTS, seed=3, mean=0.01, minimum=1e-12).rates
    assert loose.mean() == pytest.approx(0.01, rel=1e-6)
    mixed = participation.tied_to_labels(np.ones((5, 4)), seed=3, mean=0.2)
    np.testing.assert_allclose(mixed.rates, 0.2)


def test_probabilities_tied_to_labels_stay_in_their_range():
    for seed in range(20):
        rates = participation.tied_to_labels(COUNTS, seed, mean=0.5, minimum=0.02).rates
        assert rates.min() >= 0.02
        assert rates.max() <= 1.0
    assert participation.tied_to_labels(COUNTS, 0) != participation.tied_to_labels(COUNTS, 1)
    assert participation.tied_to_labels(COUNTS, 0) == participation.tied_to_labels(COUNTS, 0)


def test_texts_name_participations():
    assert participation.parse("all", COUNTS, 0) == participation.everyone(20)
    assert participation.parse("bernoulli:0.3", COUNTS, 0) == participation.bernoulli(0.3, 20)
    assert participation.parse("labels:0.2", COUNTS, 5) == participation.tied_to_labels(COUNTS, 5, mean=0.2)
    assert participation.parse("labels", COUNTS, 5) == participation.tied_to_labels(COUNTS, 5)
    assert participation.parse("cyclic:4", COUNTS, 5) == participation.cyclic(20, 4, 5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: participation.everyone(0), "clients is 0"),
        (lambda: participation.bernoulli(0.5), "for how many clients"),
        (lambda: participation.bernoulli([0.5, 0.0]), "client 1.*probability 0"),
        (lambda: participation.bernoulli([0.5, float("nan")]), "client 1.*nan"),
        (lambda: participation.bernoulli([1.5]), "client 0.*1.5"),
        (lambda: participation.bernoulli([0.5], clients=2), "shape"),
        (lambda: participation.bernoulli([]), "shape"),
        (lambda: participation.cyclic(4, 5), "5 groups of 4"),
        (lambda: participation.cyclic(4, [[0, 1], [1, 2]]), "exactly once"),
        (lambda: participation.tied_to_labels(np.zeros((2, 3)), 0), "without samples"),
        (lambda: participation.tied_to_labels([1, 2], 0), "clients x classes"),
        (lambda: participation.tied_to_labels(COUNTS, 0, mean=0.01, minimum=0.02), "minimum"),
        (lambda: participation.tied_to_labels(COUNTS, 0, alpha=0), "alpha"),
        (lambda: participation.parse("some", COUNTS, 0), "no participation is called 'some'"),
        (lambda: participation.parse("bernoulli", COUNTS, 0), "bernoulli:0.3"),
        (lambda: participation.parse("bernoulli:x", COUNTS, 0), "'x' is no number"),
        (lambda: participation.parse("cyclic:2.5", COUNTS, 0), "cyclic:4"),
        (lambda: participation.parse("cyclic:nan", COUNTS, 0), "cyclic:4"),
    ],
)
def test_bad_settings_are_told(make, words):
    with pytest.raises(SettingError, match=words):
        make()
