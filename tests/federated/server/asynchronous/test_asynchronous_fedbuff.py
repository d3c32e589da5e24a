"""FedBuff: the sum over K, what staleness does to it, and what it must not do to a variance."""

from dataclasses import replace

import numpy as np
import pytest
from clocks import Fixed
from federations import federation, quadratics
from server_rounds import a_round, model, plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FedAvg, FedBuff
from pluribus.federated.world import schedule
from pluribus.federated.world.base import World


def stepped(rule, deltas, **known):
    state = rule.init({"w": np.zeros(3)}, 9)
    return rule.step(state, plain(deltas, n_clients=9, **known))


@pytest.mark.parametrize("seed", range(3))
def test_the_formula(seed):
    rng = np.random.default_rng(seed)
    deltas, tau = rng.normal(size=(4, 3)), rng.integers(0, 9, size=4)
    expected = np.zeros(3)
    for delta, staleness in zip(deltas, tau, strict=True):
        expected += 0.7 * delta / np.sqrt(1 + staleness)
    after = stepped(FedBuff(server_lr=0.7), deltas, staleness=tau)
    np.testing.assert_allclose(after["params"]["w"], expected / 4, rtol=1e-12)


def test_a_fresh_update_counts_fully():
    # In NVFlare 2.9 it counts half: staleness is taken from the version after the step.
    after = stepped(FedBuff(), [[1.0, 2.0, 3.0]], staleness=np.array([0]))
    assert after["params"]["w"].tolist() == [1, 2, 3]
    assert after["weights"][0] == 1


def test_divided_by_the_count_and_not_by_the_weights():
    after = stepped(FedBuff(), [[1.0, 1.0, 1.0]] * 2, staleness=np.array([3, 3]))
    np.testing.assert_allclose(after["params"]["w"], 0.5)


@pytest.mark.parametrize("known", [{}, {"staleness": np.zeros(4, dtype=int)}])
def test_fresh_cohorts_are_fedavg(known):
    deltas = np.random.default_rng(0).normal(size=(4, 3))
    sizes = [1.0, 5.0, 2.0, 9.0]
    one = stepped(FedBuff(), deltas, sizes=sizes, **known)
    other = stepped(FedAvg(weighting="uniform"), deltas, sizes=sizes)
    np.testing.assert_allclose(one["params"]["w"], other["params"]["w"], rtol=1e-15)


def test_exponent_zero_ignores_staleness():
    deltas = np.random.default_rng(1).normal(size=(3, 3))
    after = stepped(FedBuff(exponent=0), deltas, staleness=np.array([0, 5, 50]))
    np.testing.assert_allclose(after["params"]["w"], deltas.mean(axis=0), rtol=1e-12)


def test_a_stale_variance_stays_positive():
    """A stale difference could make it negative; the clients' own variances cannot."""
    params = model()
    old = {**params, "norm.running_var": params["norm.running_var"] + 40}
    told = a_round(old)
    told = replace(told, starts=[old] * len(told.clients), staleness=np.full(len(told.clients), 3))
    rule = FedBuff(server_lr=3.0)
    after = rule.step(rule.init(params, told.n_clients), told)["params"]
    local = [old["norm.running_var"] + update["norm.running_var"] for update in told.updates]
    assert (params["norm.running_var"] + np.mean([u["norm.running_var"] for u in told.updates], axis=0) < 0).all()
    expected = params["norm.running_var"] + 0.5 * (np.mean(local, axis=0) - params["norm.running_var"])
    np.testing.assert_allclose(after["norm.running_var"], expected, rtol=1e-12)
    assert after["norm.num_batches_tracked"].dtype == params["norm.num_batches_tracked"].dtype
    assert after["norm.num_batches_tracked"] > 400_000


def test_the_schedule_tells_staleness():
    """Client 0 is twice as fast: its second update, at 2 s, meets a model that has stepped once."""
    world = World(schedule.parse("async"), Fixed((1.0, 1.5)))
    setup, targets, curvatures = quadratics(clients=2, steps=1, lr=0.1, world=world)
    run = simulate(setup, FedBuff(), seed=0, rounds=3)
    assert run.history.staleness.tolist() == [0, 1, 1]
    x = [np.zeros(2)]
    for client, start in ((0, 0), (1, 0), (0, 1)):
        delta = -0.1 * curvatures[client] * (x[start] - targets[client])
        x.append(x[-1] + delta / np.sqrt(len(x) - start))
    np.testing.assert_allclose(run.state["params"]["w"], x[-1], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_digits_are_learned_sooner_than_in_step(seed):
    common = {"clients": 12, "partition": "dirichlet:1", "speeds": "lognormal:1"}

    def seconds(rule, when, rounds):
        run = simulate(federation(seed, **common, schedule=when), rule, seed, rounds=rounds)
        reached = np.flatnonzero(run.history.accuracy >= 0.7)
        return run.history.time[reached[0]] if len(reached) else np.inf

    assert seconds(FedBuff(), "buffer:4", 120) < 0.7 * seconds(FedAvg(), "sync", 50)


@pytest.mark.parametrize("bad", [{"server_lr": 0}, {"exponent": -1}, {"exponent": float("nan")}])
def test_parameters_that_mean_nothing(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        FedBuff(**bad)
