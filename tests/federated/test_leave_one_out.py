"""Contributions: leaving out is training without, on quadratics by hand; and measures beside it on digits."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation, quadratics

from pluribus.federated import SettingError, simulate
from pluribus.federated.contributions import influence_of, leave_one_out, measures, rank_correlation, without
from pluribus.federated.participation import Everyone
from pluribus.federated.server import FairBFL, FedAvg, FedCE, parse
from pluribus.federated.world.availability import Trace


def own_classes(seed):
    """Client 0 has all of classes 8 and 9, client 1 half of 6 and 7; the others share the rest evenly."""
    setup = federation(seed=seed, clients=5, rounds=4, model="softmax", epochs=2)
    x, y = (np.concatenate([getattr(c, name) for c in setup.clients]) for name in "xy")
    rng = np.random.default_rng(seed)
    mine, some = np.flatnonzero(y >= 8), rng.permutation(np.flatnonzero((y >= 6) & (y < 8)))
    rest = rng.permutation(np.concatenate([np.flatnonzero(y < 6), some[len(some) // 2 :]]))
    parts = [mine, some[: len(some) // 2], *np.array_split(rest, 3)]
    clients = tuple(replace(setup.clients[0], x=x[part], y=y[part]) for part in parts)
    return replace(setup, clients=clients, true_counts=np.stack([c.counts for c in clients]))


def test_leaving_out_is_training_without_by_hand():
    setup, targets, curvatures = quadratics(clients=3, steps=4, lr=0.1)
    run = simulate(without(setup, 1), FedAvg(), seed=0, rounds=5)
    x = np.zeros(2)
    for _ in range(5):
        ends = []
        for i in (0, 2):
            y = x.copy()
            for _ in range(4):
                y -= 0.1 * curvatures[i] * (y - targets[i])
            ends.append(y)
        x = np.mean(ends, axis=0)
    np.testing.assert_allclose(run.state["params"]["w"], x, rtol=1e-12)


def test_the_others_keep_their_random_numbers():
    setup = federation(clients=3, rounds=2)
    with_all, less = (simulate(s, FedAvg(), seed=3, rounds=1) for s in (setup, without(setup, 2)))
    assert less.history.present[0].tolist() == [True, True, False]
    np.testing.assert_array_equal(with_all.history.gram[:2, :2], less.history.gram[:2, :2])


def test_a_timed_trace_is_left_out_of_too():
    setup = federation(clients=3, rounds=1)
    table = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1]], dtype=bool)
    timed = Trace("t", np.array([0.0, 2.0, 1000.0]), table, timed=True)
    run = simulate(without(replace(setup, participation=timed), 0), FedAvg(), seed=0, rounds=2)
    assert 2 <= run.history.time[0] < 1000  # the second round is in the second line, by the clock alone
    assert run.history.present.tolist() == [[False, True, True], [False, True, False]]
    for who in (timed, Everyone(3)):  # rules that are told the rates get the same, whoever is absent
        absent = without(replace(setup, participation=who), 1).participation
        assert absent.rates.tolist() == who.rates.tolist()
        assert absent.clients == 3


def test_the_differences_are_those_of_the_runs():
    setup = federation(clients=3, rounds=2, model="softmax", partition="dirichlet:0.5")
    found = leave_one_out(setup, FedAvg(), seed=1, rounds=2)
    whole = simulate(setup, FedAvg(), seed=1, rounds=2).history
    for i in range(3):
        other = simulate(without(setup, i), FedAvg(), seed=1, rounds=2).history
        assert found.accuracy[i] == whole.accuracy[-1] - other.accuracy[-1]
        assert found.loss[i] == other.loss[-1] - whole.loss[-1]
    assert set(found.measures) == {"weights", "influence"}
    assert set(found.agreement()) == set(found.agreement("accuracy")) == {"weights", "influence"}
    with pytest.raises(SettingError, match="expected 'loss' or 'accuracy'"):
        found.agreement("bytes")


def test_under_personal_models_the_others_are_measured():
    setup = federation(clients=3, rounds=2, model="softmax")
    alone = leave_one_out(setup, parse("fedcollab:groups=0-1-2"), seed=0, rounds=2)
    np.testing.assert_allclose(alone.accuracy, 0.0, atol=1e-15)  # nobody's model depends on anybody else
    assert np.isnan(alone.loss).all()
    together = leave_one_out(setup, parse("fedcollab:groups=0-0-0"), seed=0, rounds=2)
    assert (together.accuracy != 0).any()


def test_fedces_contribution_agrees_with_the_exact_one():
    """Mean rank correlation is positive; three clients are alike, so their order is chance and it is not one."""
    ranks = []
    for seed in range(4):
        found = leave_one_out(own_classes(seed), FedCE(), seed=seed, rounds=5)
        assert int(np.argmax(found.loss)) == int(np.argmax(found.measures["contribution"])) == 0
        assert np.corrcoef(found.loss, found.measures["contribution"])[0, 1] > 0.7
        ranks.append(found.agreement()["contribution"])
    assert np.mean(ranks) > 0


def test_wrong_labels_look_like_a_contribution_to_fedce_and_not_to_the_exact_one():
    ranks = []
    for seed in range(3):
        setup = federation(seed=seed, clients=5, model="softmax", partition="iid", epochs=2, label_noise="2:0.8")
        found = leave_one_out(setup, FedCE(), seed=seed, rounds=5)
        assert found.loss[list(setup.noisy)].max() < np.delete(found.loss, setup.noisy).min()
        ranks.append(found.agreement()["contribution"])
    assert np.mean(ranks) < -0.4


def test_influence_is_what_the_mean_moves_by():
    setup = federation(clients=4, rounds=1, model="softmax", partition="dirichlet:1")
    run = simulate(setup, FedAvg(), seed=0, rounds=1)
    left, whole = [], run.state["params"]
    for i in range(4):
        other = simulate(without(setup, i), FedAvg(), seed=0, rounds=1).state["params"]
        left.append(np.sqrt(sum(((whole[n].astype(float) - other[n]) ** 2).sum() for n in whole)))
    np.testing.assert_allclose(influence_of(run.history), left, rtol=1e-4)
    empty = replace(run.history, weights=np.full((1, 4), np.nan))
    assert influence_of(empty) is None


def test_measures_of_the_rules_own():
    setup = federation(clients=3, rounds=2, participation="cyclic:2", partition="iid")
    run = simulate(setup, FairBFL(), seed=0, rounds=2)
    np.testing.assert_array_equal(measures(run)["rewards"], run.state["rewards"])
    np.testing.assert_allclose(measures(run)["weights"], np.nan_to_num(run.history.weights).mean(axis=0))


def test_rank_correlation_against_scipy():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    for _ in range(5):
        one, other = rng.integers(0, 5, 12).astype(float), rng.normal(size=12)
        assert rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic, rel=1e-10)
    one[2] = np.nan
    known = np.isfinite(one)
    assert rank_correlation(one, other) == pytest.approx(spearmanr(one[known], other[known]).statistic, rel=1e-10)
    assert np.isnan(rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))
    assert np.isnan(rank_correlation([1.0, 2.0], [1.0, 2.0]))


def test_it_refuses_what_takes_too_long():
    setup = federation(clients=5, rounds=1)
    with pytest.raises(SettingError, match=r"6 runs of 300 rounds: about 7500 trainings .* or give most=7500"):
        leave_one_out(setup, FedAvg(), seed=0, rounds=300)
    with pytest.raises(SettingError, match="cannot be left out"):
        leave_one_out(federation(clients=1, rounds=1), FedAvg(), seed=0, rounds=1)
