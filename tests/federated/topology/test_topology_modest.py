"""MoDeST: samples that all compute alike, uniform over nodes; FedAvg as a special case; nodes that stop answering."""

import numpy as np
import pytest
from federations import federation
from scipy.stats import chi2

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FedAvg
from pluribus.federated.topology import MoDeST, ordered, run_modest


def test_nodes_with_equal_views_compute_the_same_sample():
    schedule = MoDeST(sample=4)
    view = np.array([3, 0, 5, 5, -1, 2, 4, 4])
    everybody = np.ones(8, dtype=bool)
    here, pings = schedule.answering(view, 6, 4, everybody)
    there, _ = schedule.answering(view.copy(), 6, 4, everybody)
    assert here == there == [i for i in ordered(range(8), 6) if i != 4][:4]
    assert pings == 4
    assert ordered([3, 1, 2], 5) == ordered([1, 2, 3], 5)
    assert ordered(range(30), 5) != ordered(range(30), 6)
    assert ordered(range(30), 5) != ordered(range(30), 5, salt=1)


def test_selection_is_uniform():
    n, rounds, size = 20, 1500, 5
    counts = np.zeros(n)
    for number in range(rounds):
        counts[ordered(range(n), number)[:size]] += 1
    expected = rounds * size / n
    # a sample without replacement varies less than independent draws, by (n - size) / (n - 1)
    statistic = ((counts - expected) ** 2 / expected).sum() * (n - 1) / (n - size)
    assert chi2.ppf(0.0005, n - 1) < statistic < chi2.ppf(0.9995, n - 1)


def test_who_does_not_answer_is_passed_over_and_who_was_not_seen_is_not_asked():
    schedule = MoDeST(sample=3, patience=4)
    view = np.array([9, 9, 9, 9, 2, -1])
    assert schedule.active(view, 10) == [0, 1, 2, 3]
    assert schedule.active(np.array([5, 6]), 10) == [1]
    alive = np.array([True, False, True, False, True, True])
    found, pings = schedule.answering(view, 10, 3, alive)
    assert found == [i for i in ordered([0, 1, 2, 3], 10) if alive[i]]
    assert pings == 4
    nobody = np.array([False, False, False, False, True, True])
    assert schedule.answering(view, 10, 3, nobody) == ([4], 5)  # then all it ever heard of


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_the_whole_federation_and_one_aggregator_are_fedavg(weighting):
    setup = federation(clients=5, partition="dirichlet:0.5")
    flat = simulate(setup, FedAvg(weighting=weighting), seed=1, rounds=3)
    run = run_modest(setup, MoDeST(sample=5, weighting=weighting), seed=1, rounds=3)
    for name, value in flat.state["params"].items():
        np.testing.assert_allclose(run.params[name], value, atol=1e-6)
    np.testing.assert_allclose(run.accuracy, flat.history.accuracy, atol=0.01)
    assert run.participants.all()
    assert (run.aggregating.sum(axis=1) == 1).all()


def test_training_goes_on_when_most_nodes_stop_answering():
    setup = federation(clients=20, partition="iid", lr=0.1, epochs=2)

    def alive(number):
        return np.arange(20) % 5 == 0 if number >= 4 else np.ones(20, dtype=bool)

    for seed in range(3):
        run = run_modest(setup, MoDeST(sample=4, aggregators=2, patience=3), seed, 14, alive=alive)
        assert not run.participants[4:, np.arange(20) % 5 != 0].any()
        assert (run.participants[5:].sum(axis=1) >= 1).all()
        assert np.isfinite(run.accuracy).sum() >= 12
        assert run.accuracy[-1] > run.accuracy[3] + 0.1
        # the dead are forgotten: no more pings than nodes that are there
        assert run.pings[10:].max() <= run.pings[4:7].max()


def test_an_aggregator_waits_for_its_fraction_only():
    setup = federation(clients=6)
    whole = run_modest(setup, MoDeST(sample=6), 0, 3)
    half = run_modest(setup, MoDeST(sample=6, fraction=0.5), 0, 3)
    again = run_modest(setup, MoDeST(sample=6, fraction=0.5), 0, 3)
    assert any((whole.params[name] != half.params[name]).any() for name in whole.params)
    assert all(half.params[name].tobytes() == again.params[name].tobytes() for name in half.params)
    assert (run_modest(setup, MoDeST(sample=2), 0, 3).participants.sum(axis=1) == 2).all()


def test_bad_parameters():
    for options in ({"sample": 0}, {"aggregators": 0}, {"fraction": 0}, {"fraction": 1.5}, {"weighting": "most"}):
        with pytest.raises(RuleError):
            MoDeST(**options)
