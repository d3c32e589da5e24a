"""FAIR-BFL's accounting: clusters by hand, rewards that sum to the pot, and attackers who are not paid."""

import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FairBFL, FedAvg


def step(rule, deltas, **known):
    deltas = np.asarray(deltas, dtype=float)
    return rule.step(rule.init({"w": np.zeros(deltas.shape[1])}, len(deltas)), plain(deltas, **known))


def test_the_accounting_written_out():
    deltas = np.array([[1.0, 0.1], [1.0, -0.2], [0.8, 0.3], [-1.0, 0.0]])
    middle = deltas.mean(axis=0)
    cosines = np.array([d @ middle / np.linalg.norm(d) / np.linalg.norm(middle) for d in deltas])
    expected = np.append(cosines[:3], 0.0) / cosines[:3].sum()
    state = step(FairBFL(eps=0.3, pot=5.0), deltas, sizes=[1, 1, 1, 1e9])
    np.testing.assert_allclose(state["weights"], expected, rtol=1e-10)
    np.testing.assert_allclose(state["rewards"], 5 * expected, rtol=1e-10)
    np.testing.assert_allclose(state["params"]["w"], expected @ deltas, rtol=1e-10)
    by_distance = step(FairBFL(eps=0.3, score="distance"), deltas)["weights"]
    np.testing.assert_allclose(by_distance, np.append(1 - cosines[:3], 0) / (1 - cosines[:3]).sum(), rtol=1e-9)


def test_others_may_stay_unpaid():
    deltas = np.array([[1.0, 0.1], [1.0, -0.2], [0.8, 0.3], [0.0, 1.0]])
    state = step(FairBFL(eps=0.2, others="keep"), deltas)
    assert state["weights"][3] > 0
    assert state["rewards"][3] == 0
    assert state["rewards"].sum() == pytest.approx(1)


@pytest.mark.parametrize("score", ["cosine", "distance"])
def test_equal_clients_share_equally_and_the_order_changes_nothing(score):
    np.testing.assert_allclose(step(FairBFL(score=score), np.ones((4, 3)))["rewards"], 0.25, rtol=1e-9)
    deltas = np.random.default_rng(0).normal(size=(6, 3)) + 1.0
    rewards = step(FairBFL(score=score), deltas)["rewards"]
    np.testing.assert_allclose(step(FairBFL(score=score), deltas[::-1])["rewards"], rewards[::-1], rtol=1e-9)
    assert rewards.sum() == pytest.approx(1)


def test_nobody_near_the_mean_and_no_mean_at_all():
    lonely = step(FairBFL(eps=0.01), np.eye(3))
    np.testing.assert_allclose(lonely["weights"], 1 / 3, rtol=1e-9)
    nothing = step(FairBFL(), np.zeros((3, 2)))
    np.testing.assert_allclose(nothing["weights"], 1 / 3)
    np.testing.assert_array_equal(nothing["params"]["w"], 0.0)


def test_rewards_add_up_over_the_rounds():
    run = simulate(federation(clients=4, rounds=3, participation="bernoulli:0.6"), FairBFL(pot=2.0), seed=1, rounds=3)
    assert run.state["rewards"].sum() == pytest.approx(2.0 * (run.history.status == 0).sum())


@pytest.mark.parametrize("seed", range(3))
def test_sign_flippers_are_outside_and_the_model_is_better_for_it(seed):
    """Evenly shared digits, 2 of 10. Under strong label skew honest cosines are as low as an attacker's: it fails."""
    setup = federation(seed=seed, clients=10, model="softmax", partition="iid", attack="sign_flip:2")
    run = simulate(setup, FairBFL(), seed=seed, rounds=8)
    assert (run.history.weights[:, list(setup.attackers)] == 0).mean() > 0.9
    assert run.state["rewards"][list(setup.attackers)].sum() < 0.1 * run.state["rewards"].sum()
    assert run.history.accuracy[-1] >= simulate(setup, FedAvg(), seed=seed, rounds=8).history.accuracy[-1]


def test_bad_parameters():
    for bad in ({"eps": 0}, {"pot": -1}, {"score": "x"}, {"others": "x"}, {"min_neighbours": 0}):
        with pytest.raises(RuleError, match="FairBFL"):
            FairBFL(**bad)
