"""FedStale: its ends, its expectation, and what stale updates are worth in between."""

import dataclasses
import itertools

import numpy as np
import pytest
from federations import quadratics
from server_rounds import a_round, model, plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.participation import bernoulli
from pluribus.federated.server import FedAvg, FedStale

RATES = np.array([0.9, 0.5, 0.2])
SIZES = np.array([1.0, 3.0, 4.0])


def a_step(rule, state, deltas, here, rates=RATES):
    told = plain([deltas[i] for i in here], sizes=SIZES[list(here)], clients=here, n_clients=3, rates=rates)
    return rule.step(state, dataclasses.replace(told, total_size=8.0))


def seen(rule, history):
    """A state in which all clients have sent an update."""
    return a_step(rule, rule.init({"w": np.zeros(2)}, 3), history, (0, 1, 2))


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_formula(beta):
    rng = np.random.default_rng(1)
    rule, p = FedStale(beta=beta, server_lr=0.5), SIZES / 8
    state, x, h = rule.init({"w": np.zeros(2)}, 3), np.zeros(2), np.zeros((3, 2))
    for here in ((0, 2), (1,), (0, 1), (2,)):
        deltas = rng.normal(size=(3, 2))
        change = beta * sum(p[i] * h[i] for i in range(3))
        for i in here:
            change = change + p[i] / RATES[i] * (deltas[i] - beta * h[i])
        x = x + 0.5 * change
        for i in here:
            h[i] = deltas[i]
        state = a_step(rule, state, deltas, here)
    np.testing.assert_allclose(state["params"]["w"], x, rtol=1e-12)
    np.testing.assert_allclose(state["last"]["w"], h)


def test_beta_zero_is_fedavg_by_inverse_probabilities_and_one_is_fedvarp():
    rng = np.random.default_rng(2)
    history, deltas = rng.normal(size=(2, 3, 2))
    for beta, expected in (
        (0.0, sum(SIZES[i] / 8 / RATES[i] * deltas[i] for i in (0, 2))),
        (
            1.0,
            sum(SIZES[i] / 8 * history[i] for i in range(3))
            + sum(SIZES[i] / 8 / RATES[i] * (deltas[i] - history[i]) for i in (0, 2)),
        ),
    ):
        rule = FedStale(beta=beta)
        before = seen(rule, history)
        after = a_step(rule, before, deltas, (0, 2))
        np.testing.assert_allclose(after["params"]["w"] - before["params"]["w"], expected, rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_unbiased_whatever_beta(beta):
    """The expectation over all sets of participants, exactly."""
    rng = np.random.default_rng(5)
    history, deltas = rng.normal(size=(2, 3, 2))
    rule = FedStale(beta=beta)
    before = seen(rule, history)
    expected = np.zeros(2)
    for there in itertools.product((False, True), repeat=3):
        chance = np.prod(np.where(there, RATES, 1 - RATES))
        here = tuple(np.flatnonzero(there))
        if here:
            change = a_step(rule, before, deltas, here)["params"]["w"] - before["params"]["w"]
        else:  # the frame takes no step of nobody; the formula's would be the stale part
            change = beta * (SIZES / 8) @ history
        expected += chance * change
    np.testing.assert_allclose(expected, (SIZES / 8) @ deltas, rtol=1e-10)


def test_full_participation_makes_beta_irrelevant():
    history, deltas = np.random.default_rng(6).normal(size=(2, 3, 2))
    found = []
    for rule in (FedStale(beta=0.0), FedStale(beta=0.7), FedAvg()):
        state = a_step(rule, rule.init({"w": np.zeros(2)}, 3), history, (0, 1, 2), np.ones(3))
        found.append(a_step(rule, state, deltas, (0, 1, 2), np.ones(3))["params"]["w"])
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-12)


def test_estimated_rates_are_shares_of_the_rounds():
    rule = FedStale(beta=0.0, rates="estimated", weighting="uniform")
    state = rule.init({"w": np.zeros(1)}, 2)
    for here in ((0,), (), (0,)):
        state = rule.step(state, plain([[0.0]] * len(here), clients=here, n_clients=2))
    state = rule.step(state, plain([[1.0], [1.0]]))
    np.testing.assert_allclose(state["weights"], [0.5 / (3 / 4), 0.5 / (1 / 4)])


@pytest.mark.parametrize("seed", range(5))
def test_with_very_unequal_rates_something_in_between_is_best(seed):
    """Heterogeneous quadratics, half the clients there in 3 % of the rounds: loss averaged over the run.

    It holds here, early in a run of long local training; with noiseless gradients and many rounds beta = 1 wins.
    """
    setup, targets, curvatures = quadratics(clients=20, steps=10, lr=0.05, size=10, seed=seed)
    setup = dataclasses.replace(setup, participation=bernoulli(np.where(np.arange(20) % 2, 1.0, 0.03)))

    def mean_loss(beta):
        losses = []

        def look(run):
            gap = run.state["params"]["w"] - targets
            losses.append((curvatures * gap**2).sum(axis=1).mean())

        simulate(setup, FedStale(beta=beta), seed, rounds=60, after_round=look)
        return np.mean(losses)

    assert min(mean_loss(0.2), mean_loss(0.8)) < min(mean_loss(0.0), mean_loss(1.0))


def test_buffers_and_counters_have_no_past():
    params = model()
    rule, told = FedStale(weighting="uniform", rates="estimated"), a_round(params)
    after = rule.step(rule.init(params, told.n_clients), told)
    assert sorted(after["last"]) == ["layer.bias", "layer.weight"]
    mean = np.mean([update["norm.running_var"] for update in told.updates], axis=0)
    np.testing.assert_allclose(after["params"]["norm.running_var"], params["norm.running_var"] + mean)


def test_rates_that_nobody_told():
    rule = FedStale()
    with pytest.raises(RuleError, match="rates=estimated"):
        rule.step(rule.init({"w": np.zeros(1)}, 2), plain([[1.0]], n_clients=2))


@pytest.mark.parametrize("bad", [{"beta": 1.5}, {"beta": -1}, {"server_lr": 0}, {"weighting": "x"}, {"rates": "x"}])
def test_parameters_that_mean_nothing(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        FedStale(**bad)
