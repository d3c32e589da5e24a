"""MIFA: everybody's last update, also of those who are absent."""

import dataclasses

import numpy as np
import pytest
from federations import quadratics
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.participation import bernoulli
from pluribus.federated.server import MIFA, FedAvg, FedStale


@pytest.mark.parametrize("seed", range(3))
def test_the_algorithm_written_out(seed):
    rng = np.random.default_rng(seed)
    rule = MIFA(server_lr=0.6)
    state = rule.init({"w": np.zeros(3)}, 4)
    x, last = np.zeros(3), np.zeros((4, 3))
    for here in ((0, 2), (), (1,), (0, 1, 3)):
        deltas = rng.normal(size=(len(here), 3))
        for client, delta in zip(here, deltas, strict=True):
            last[client] = delta
        if here:
            x = x + 0.6 * last.sum(axis=0) / 4
        state = rule.step(state, plain(deltas, clients=here, n_clients=4))
    np.testing.assert_allclose(state["params"]["w"], x, rtol=1e-12)
    np.testing.assert_allclose(state["last"]["w"], last)
    assert state["last"]["w"].nbytes == 4 * x.nbytes  # N models


def test_where_all_come_it_is_fedavg():
    deltas = np.random.default_rng(0).normal(size=(3, 4))
    one, other = MIFA(), FedAvg(weighting="uniform")
    w = {"w": np.zeros(4)}
    np.testing.assert_allclose(
        one.step(one.init(w, 3), plain(deltas))["params"]["w"],
        other.step(other.init(w, 3), plain(deltas))["params"]["w"],
        rtol=1e-12,
    )


def test_it_is_fedstale_that_trusts_the_past_and_counts_nobody_twice():
    rng = np.random.default_rng(3)
    mifa, stale = MIFA(), FedStale(beta=1.0, weighting="uniform")
    states = [rule.init({"w": np.zeros(2)}, 3) for rule in (mifa, stale)]
    for here in ((0, 1), (2,), (0, 2)):
        told = plain(rng.normal(size=(len(here), 2)), clients=here, n_clients=3, rates=np.ones(3))
        states = [rule.step(state, told) for rule, state in zip((mifa, stale), states, strict=True)]
    np.testing.assert_allclose(states[0]["params"]["w"], states[1]["params"]["w"], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_seldom_seen_count_as_much(seed):
    """With very unequal rates the mean of the participants ends elsewhere; MIFA ends at everybody's optimum."""
    setup, targets, curvatures = quadratics(clients=6, steps=2, lr=0.05, seed=seed)
    setup = dataclasses.replace(setup, participation=bernoulli([1.0, 1.0, 1.0, 0.1, 0.1, 0.1]))
    optimum = (curvatures * targets).sum(axis=0) / curvatures.sum(axis=0)

    def gap(rule):
        late = []

        def look(run):
            late.append(run.state["params"]["w"])

        simulate(setup, rule, seed, rounds=300, after_round=look)
        return np.abs(np.mean(late[150:], axis=0) - optimum).max()

    assert gap(MIFA()) < 0.05
    assert gap(MIFA()) < gap(FedAvg(weighting="uniform")) / 3


def test_parameters_that_mean_nothing():
    with pytest.raises(RuleError, match="server_lr"):
        MIFA(server_lr=0)
