"""FedLD: the penalty's slope by differences, the server's half in R^d, and its laws."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import server, simulate
from pluribus.federated.clients.base import Plain
from pluribus.federated.models import softmax
from pluribus.federated.server import FedLD
from pluribus.federated.server.contribution.fedld import margin_slope


def step(rule, deltas):
    deltas = np.asarray(deltas, dtype=float)
    return rule.step(rule.init({"w": np.zeros(deltas.shape[1])}, len(deltas)), plain(deltas))


def test_the_penaltys_slope():
    z = np.random.default_rng(0).normal(size=(3, 4))

    def penalty(z):
        return np.log(1 + (softmax(z) ** 2).sum())

    numeric = np.zeros_like(z)
    for index in np.ndindex(*z.shape):
        move = np.zeros_like(z)
        move[index] = 1e-6
        numeric[index] = (penalty(z + move) - penalty(z - move)) / 2e-6
    np.testing.assert_allclose(margin_slope(z), numeric, atol=1e-8)


def test_the_rule_in_r_d():
    deltas = np.random.default_rng(1).normal(size=(5, 7))
    s, e = np.linalg.eigh(deltas @ deltas.T / 5)
    s, v = s[::-1], (deltas.T @ e[:, ::-1]).T
    expected = np.zeros(7)
    for i in range(5):
        for j in range(4):  # 0.8 of the directions
            along = (deltas[i] @ v[j]) / (v[j] @ v[j]) * v[j]
            expected += along * s[j] / s.sum() * np.linalg.norm(deltas[i]) / np.linalg.norm(along) / 5
    np.testing.assert_allclose(step(FedLD(signs="own"), deltas)["params"]["w"], expected, rtol=1e-8)


def test_each_tensor_has_directions_of_its_own():
    rule = FedLD()
    rng = np.random.default_rng(2)
    trees = [{"a": rng.normal(size=4), "b": rng.normal(size=(2, 3))} for _ in range(4)]
    start = {"a": np.zeros(4), "b": np.zeros((2, 3))}
    round = plain([np.zeros(1)] * 4)
    whole = rule.step(rule.init(start, 4), replace(round, updates=trees))["params"]
    for name in ("a", "b"):
        part = [{name: tree[name]} for tree in trees]
        alone = rule.step(rule.init({name: start[name]}, 4), replace(round, updates=part))["params"]
        np.testing.assert_allclose(whole[name], alone[name], rtol=1e-12)


def test_equal_updates_come_back_and_weights_are_shares():
    state = step(FedLD(), np.tile([[1.0, -2.0, 3.0]], (4, 1)))
    np.testing.assert_allclose(state["params"]["w"], [1.0, -2.0, 3.0], rtol=1e-9)
    np.testing.assert_allclose(state["weights"], 0.25, rtol=1e-6)


def test_one_who_pulls_the_other_way_moves_it_less_than_the_mean():
    rng = np.random.default_rng(3)
    for _ in range(5):
        deltas = rng.normal(size=6) + 0.3 * rng.normal(size=(7, 6))
        flipped = deltas.copy()
        flipped[0] *= -1
        moved = np.linalg.norm(step(FedLD(), flipped)["params"]["w"] - step(FedLD(), deltas)["params"]["w"])
        assert moved < 0.7 * np.linalg.norm(flipped.mean(axis=0) - deltas.mean(axis=0))


def test_zero_updates_and_bad_parameters():
    np.testing.assert_array_equal(step(FedLD(), np.zeros((3, 2)))["params"]["w"], 0.0)
    for bad in ({"keep": 0}, {"keep": 1.5}, {"margin": -1}, {"signs": "no"}, {"weighting": "all"}):
        with pytest.raises(RuleError, match="FedLD"):
            FedLD(**bad)


def test_the_penalty_makes_clients_less_sure():
    setup = federation(clients=3, rounds=3, model="softmax", epochs=5)
    assert isinstance(FedLD(margin=0).client, Plain)

    def sureness(rule):
        params = simulate(setup, rule, seed=0, rounds=3).state["params"]
        return setup.model.probabilities(params, setup.test.x).max(axis=1).mean()

    assert sureness(FedLD(margin=2.0)) < sureness(FedLD(margin=0.0)) - 0.01


def test_it_learns_about_as_well_as_fedavg():
    """The gain on digits is within the spread; what holds is that nothing is lost."""
    gaps = []
    for seed in range(3):
        setup = federation(seed=seed, clients=5, rounds=6, model="softmax", partition="iid")
        accuracy = [simulate(setup, rule, seed=seed, rounds=6).history.accuracy[-1] for rule in _rules()]
        gaps.append(accuracy[0] - accuracy[1])
    assert np.mean(gaps) > -0.05


def _rules():
    return FedLD(keep=1.0), server.parse("fedavg:weighting=uniform")
