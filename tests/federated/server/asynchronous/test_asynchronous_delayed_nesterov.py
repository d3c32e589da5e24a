"""Delayed Nesterov and DyLU: the algorithm arrival by arrival, and what it agrees with."""

import numpy as np
import pytest
from clocks import Fixed
from federations import federation, quadratics
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import DelayedNesterov, DiLoCo, parse
from pluribus.federated.training import LocalTraining
from pluribus.federated.world import schedule
from pluribus.federated.world.base import World


@pytest.mark.parametrize("c", [0.0, 0.1, 0.25])
def test_the_algorithm_written_out(c):
    """As the paper has it, in gradients: pseudo-gradient g = start - local, and theta falls along it."""
    rng = np.random.default_rng(3)
    lr, beta, n = 0.6, 0.8, 4
    rule = DelayedNesterov(server_lr=lr, momentum=beta, period=n, c=c)
    state = rule.init({"w": np.zeros(3)}, 7)
    theta, m, gathered, t = np.zeros(3), np.zeros(3), np.zeros(3), 0
    for here in ((0,), (5,), (1, 2, 6), (0,), (3, 4), (0, 1, 2, 3, 4)):
        deltas = rng.normal(size=(len(here), 3))
        for g in -deltas:
            gathered = gathered + g
            if (t + 1) % n == 0:
                m = beta * m + gathered / n
                theta = theta - lr * ((1 - c * n + c) * beta * m + g / n)
                gathered = np.zeros(3)
            else:
                theta = theta - lr * (c * beta * m + g / n)
            t += 1
        state = rule.step(state, plain(deltas, clients=here, n_clients=7))
    np.testing.assert_allclose(state["params"]["w"], theta, rtol=1e-10)
    np.testing.assert_allclose(state["momentum"]["w"], -m, rtol=1e-10)
    assert int(state["count"]) == t % n


def test_without_momentum_it_is_averaging_by_one_over_n():
    deltas = np.random.default_rng(0).normal(size=(6, 2))
    rule = DelayedNesterov(momentum=0, server_lr=1)
    state = rule.init({"w": np.zeros(2)}, 3)
    for k, delta in enumerate(deltas):
        state = rule.step(state, plain([delta], clients=(k % 3,), n_clients=3))
    np.testing.assert_allclose(state["params"]["w"], deltas.sum(axis=0) / 3, rtol=1e-12)


@pytest.mark.parametrize("together", [True, False])
def test_an_even_cohort_has_the_synchronous_momentum(together):
    """The same pseudo-gradients, at once or one by one: Nesterov on their mean, as DiLoCo takes it."""
    rng = np.random.default_rng(1)
    rule, other = DelayedNesterov(), DiLoCo(inner="sgd")
    state, synchronous = rule.init({"w": np.zeros(2)}, 4), other.init({"w": np.zeros(2)}, 4)
    for _ in range(3):
        deltas = rng.normal(size=(4, 2))
        synchronous = other.step(synchronous, plain(deltas))
        if together:
            state = rule.step(state, plain(deltas))
        else:
            for k in (2, 0, 3, 1):
                state = rule.step(state, plain([deltas[k]], clients=(k,), n_clients=4))
    np.testing.assert_allclose(state["momentum"]["w"], synchronous["velocity"]["w"], rtol=1e-12)
    np.testing.assert_allclose(state["params"]["w"], synchronous["params"]["w"], rtol=1e-12)


def test_given_speeds_shorten_the_work():
    rule = DelayedNesterov(speeds="1/2/4")
    state = rule.init({"w": np.zeros(1)}, 5)
    assert [rule.local(state, i, LocalTraining(steps=10)).steps for i in range(5)] == [2, 5, 10, 2, 5]
    assert rule.local(state, 0, LocalTraining(steps=2)).steps == 1
    assert rule.local(state, 0, LocalTraining(epochs=2)) == LocalTraining(epochs=2)  # not known yet how many steps
    state = {**state, "full": np.array([8, 0, 0, 0, 0])}
    assert rule.local(state, 0, LocalTraining(epochs=2)).steps == 2
    assert DelayedNesterov().local(state, 0, LocalTraining(steps=10)).steps == 10


def test_measured_speeds_even_out_the_clients():
    """Seconds a step of 1, 2 and 4: after the first job each, 8, 4 and 2 steps, of 8 seconds."""
    world = World(schedule.parse("async"), Fixed((1.0, 2.0, 4.0), by_step=True))
    setup, *_ = quadratics(clients=3, steps=8, lr=0.01, world=world)
    rule = DelayedNesterov(speeds="measured")
    run = simulate(setup, rule, seed=0, rounds=30)
    np.testing.assert_allclose(run.state["speed"], [1, 0.5, 0.25])
    assert [rule.local(run.state, i, setup.training).steps for i in range(3)] == [8, 4, 2]
    assert np.ptp(run.history.present[-12:].sum(axis=0)) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_loss_per_update_beside_naive_nesterov(seed):
    """Speeds of 1:2:4:8 on digits: below Nesterov at every arrival, with the same step and with a shorter one."""
    setup = federation(
        seed, clients=8, speeds="tiers:1:2:4:8", schedule="async", partition="dirichlet:1", model="mlp:16"
    )

    def loss(text):
        return simulate(setup, parse(text), seed, rounds=240, eval_every=240).history.loss[-1]

    delayed = loss("delayed_nesterov")
    assert delayed < loss("delayed_nesterov:period=1:server_lr=0.0875")
    assert delayed < loss("delayed_nesterov:period=1:server_lr=0.02")


@pytest.mark.parametrize(
    "bad",
    [
        {"server_lr": 0},
        {"momentum": 1},
        {"period": -1},
        {"c": -0.1},
        {"c": 0.5, "period": 4},
        {"speeds": "fast"},
        {"speeds": "1/0"},
        {"speeds": "3"},
    ],
)
def test_parameters_that_mean_nothing(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        DelayedNesterov(**bad)


def test_a_share_above_one_over_the_clients():
    with pytest.raises(RuleError, match="at most 1 / 4"):
        DelayedNesterov(c=0.5).init({"w": np.zeros(1)}, 4)


def test_speeds_are_read_back():
    assert parse(DelayedNesterov(speeds="1/2.5").name) == DelayedNesterov(speeds="1/2.5")
