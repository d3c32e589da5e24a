"""FedFix: weights by how often a client arrives, and where the naive rule ends."""

from dataclasses import replace

import numpy as np
import pytest
from clocks import Fixed
from federations import federation, quadratics
from server_rounds import a_round, model, plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FedAvg, FedFix
from pluribus.federated.world import schedule
from pluribus.federated.world.base import World


def windows(rule, text, times, rounds, **how):
    setup, targets, curvatures = quadratics(clients=len(times), world=World(schedule.parse(text), Fixed(times)), **how)
    return simulate(setup, rule, seed=0, rounds=rounds), targets, curvatures


@pytest.mark.parametrize("seed", range(3))
def test_a_window_longer_than_the_slowest_is_fedavg(seed):
    fixed = federation(seed, clients=4, speeds="tiers:1:2:3", schedule="window:1e5")
    one = simulate(fixed, FedFix(), seed, rounds=3).state["params"]
    other = simulate(federation(seed, clients=4), FedAvg(), seed, rounds=3).state["params"]
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_weights_of_steady_clients_are_exact_from_their_first_arrival():
    """A client of tau seconds arrives every ceil(tau / dt) windows and counts that many times its share."""
    times = (0.9, 1.7, 2.0, 4.5)
    run, *_ = windows(FedFix(), "window:1", times, 20, steps=1)
    for client, every in enumerate((1, 2, 2, 5)):
        counted = run.history.weights[:, client]
        came = np.arange(1, 21) % every == 0
        assert np.isfinite(counted).tolist() == came.tolist()
        np.testing.assert_allclose(counted[came], every / 4)


def test_short_windows_are_asynchronous_averaging():
    """One arrival a step, each as x + p_i / P_i delta."""
    times = (1.0, 1.5)
    run, targets, curvatures = windows(FedFix(), "window:0.25", times, 12, steps=1)
    x, started, arrivals = [np.zeros(2)], [0, 0], [0, 0]
    begun = [0.0, 0.0]
    for step in range(1, 13):
        now, new = step * 0.25, x[-1].copy()
        for i in (0, 1):
            if now >= begun[i] + times[i]:
                arrivals[i] += 1
                start = x[started[i]]
                new += 0.5 * step / arrivals[i] * -0.1 * curvatures[i] * (start - targets[i])
                begun[i] = now
                started[i] = step
        x.append(new)
    np.testing.assert_allclose(run.state["params"]["w"], x[-1], rtol=1e-10)


def test_the_naive_limit_leans_towards_the_fast_and_the_corrected_one_is_right():
    """Limits of small steps: optimum of sum_i E[omega_i] F_i, with E = p_i / m_i and E = p_i."""
    times, every = (0.9, 1.7, 3.6), np.array([1.0, 2.0, 4.0])

    def gaps(rule):
        run, targets, curvatures = windows(rule, "window:1", times, 1200, steps=1, lr=0.04)
        w = run.state["params"]["w"]
        naive, right = (
            (share[:, None] * curvatures * targets).sum(axis=0) / (share[:, None] * curvatures).sum(axis=0)
            for share in (1 / every, np.ones(3))
        )
        return np.abs(w - naive).max(), np.abs(w - right).max()

    to_naive, to_right = gaps(FedFix(arrival="one"))
    assert to_naive < 0.03
    assert to_right > 0.1
    to_naive, to_right = gaps(FedFix())
    assert to_right < 0.03
    assert to_naive > 0.1


def test_windows_without_arrivals_count():
    rule = FedFix()
    state = rule.init({"w": np.zeros(1)}, 2)
    nobody = plain([], clients=(), n_clients=2)
    state = rule.step(rule.step(state, nobody), nobody)
    state = rule.step(state, plain([[1.0]], clients=(1,), n_clients=2))
    assert state["weights"][1] == 3  # p = 1 / 1 of the told total, arrived once in three
    assert state["params"]["w"] == 3


def test_buffers_go_no_further_than_to_the_clients_own():
    """Seldom clients have weights that sum to more than one: 4 here, by which the parameters move."""
    params, rule = model(), FedFix(arrival="told")
    told = a_round(params, n_clients=7)
    told = replace(told, rates=np.full(7, 0.25), total_size=float(told.sizes.sum()))
    after = rule.step(rule.init(params, 7), told)["params"]
    shares = told.sizes / told.sizes.sum()
    for name, step in (("layer.bias", 4.0), ("norm.running_var", 1.0)):
        mean = sum(share * update[name] for share, update in zip(shares, told.updates, strict=True))
        np.testing.assert_allclose(after[name], params[name] + step * mean, rtol=1e-12)


def test_told_rates():
    rule = FedFix(arrival="told")
    told = plain([[1.0], [1.0]], rates=np.array([0.5, 0.25]))
    assert rule.step(rule.init({"w": np.zeros(1)}, 2), told)["weights"].tolist() == [1, 2]
    with pytest.raises(RuleError, match="rates"):
        rule.step(rule.init({"w": np.zeros(1)}, 2), plain([[1.0]], n_clients=2))


@pytest.mark.parametrize("bad", [{"server_lr": 0}, {"arrival": "soon"}])
def test_parameters_that_mean_nothing(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        FedFix(**bad)
