"""AsyncFedED: steps by the distance that the model has moved, epochs that follow."""

import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import AsyncFedED, FedAvg, parse
from pluribus.federated.training import LocalTraining


def told(deltas, starts, tau, epochs=None, **more):
    return plain(
        deltas,
        staleness=np.array(tau),
        starts=[{"w": np.asarray(start)} for start in starts],
        messages=None if epochs is None else [{"epochs": np.array(e)} for e in epochs],
        **more,
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_formula(seed):
    rng = np.random.default_rng(seed)
    x, starts, deltas = rng.normal(size=5), rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    rule = AsyncFedED(lam=0.8, eps=0.6, kappa=1.5, target=2.0, most=6)
    after = rule.step(rule.init({"w": x}, 3), told(deltas, starts, [1, 2, 3], [1, 2, 6]))
    expected, epochs = x.copy(), []
    for k in range(3):
        gamma = np.sqrt(sum((x - starts[k]) ** 2)) / np.sqrt(sum(deltas[k] ** 2))
        expected += 0.8 / (gamma + 0.6) * deltas[k] / 3
        epochs.append(min(max(1, (1, 2, 6)[k] + int(np.floor(1.5 * (2.0 - gamma)))), 6))
        np.testing.assert_allclose(after["gamma"][k], gamma, rtol=1e-12)
    np.testing.assert_allclose(after["params"]["w"], expected, rtol=1e-12)
    assert after["epochs"].tolist() == epochs


def test_a_fresh_update_takes_the_longest_step():
    rule = AsyncFedED(lam=2.0, eps=0.5, kappa=0)
    after = rule.step(rule.init({"w": np.zeros(2)}, 1), plain([[1.0, 0.0]]))
    assert after["params"]["w"].tolist() == [4, 0]


def test_the_step_falls_as_the_model_moves_away():
    rule = AsyncFedED(kappa=0)
    steps = []
    for far in (0.0, 0.5, 1.0, 4.0, 64.0):
        x = np.array([far, 0.0])
        after = rule.step(rule.init({"w": x}, 1), told([[0.0, 1.0]], [[0.0, 0.0]], [3]))
        steps.append(after["params"]["w"][1])
    assert (np.diff(steps) < 0).all()
    assert steps[0] == 1


def test_gamma_does_not_know_the_scale():
    rng = np.random.default_rng(4)
    x, start, delta = rng.normal(size=(3, 6))
    rule = AsyncFedED(kappa=0)
    one, other = (
        rule.step(rule.init({"w": s * x}, 1), told([s * delta], [s * start], [2]))["gamma"] for s in (1.0, 1e5)
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_fresh_cohort_is_fedavg_and_an_update_of_zero_does_nothing():
    deltas = np.random.default_rng(0).normal(size=(3, 4))
    rule, other = AsyncFedED(kappa=0), FedAvg(weighting="uniform")
    w = {"w": np.zeros(4)}
    np.testing.assert_allclose(
        rule.step(rule.init(w, 3), plain(deltas))["params"]["w"],
        other.step(other.init(w, 3), plain(deltas))["params"]["w"],
    )
    for kappa, epochs in ((0, 0), (0.5, 1)):  # infinitely stale: as few epochs as there can be
        rule = AsyncFedED(kappa=kappa)
        after = rule.step(rule.init({"w": np.ones(2)}, 1), told([[0.0, 0.0]], [[5.0, 5.0]], [2], [4]))
        assert after["status"] == 0
        assert after["params"]["w"].tolist() == [1, 1]
        assert after["epochs"].tolist() == [epochs]


def test_epochs_are_the_client_s_next_ones():
    rule = AsyncFedED()
    state = rule.init({"w": np.zeros(1)}, 2) | {"epochs": np.array([0, 4])}
    assert rule.local(state, 0, LocalTraining(epochs=2)).epochs == 2
    assert rule.local(state, 1, LocalTraining(epochs=2)).epochs == 4
    assert rule.local(state, 1, LocalTraining(steps=9)).steps == 4


def test_epochs_grow_where_nothing_is_stale_and_stop():
    run = simulate(federation(clients=3), AsyncFedED(kappa=1, target=1, most=3), seed=0, rounds=4)
    assert run.state["epochs"].tolist() == [3, 3, 3]
    assert simulate(federation(clients=3), AsyncFedED(kappa=0), seed=0, rounds=2).state["epochs"].tolist() == [0] * 3


def test_what_it_needs_is_said():
    rule = AsyncFedED()
    state = rule.init({"w": np.zeros(1)}, 2)
    with pytest.raises(RuleError, match=r"Round\.starts"):
        rule.step(state, plain([[1.0]], n_clients=2, staleness=np.array([1])))
    with pytest.raises(RuleError, match=r"client 0 did not tell .*AsyncFedED\(\)\.client"):
        rule.step(state, plain([[1.0]], n_clients=2))


@pytest.mark.parametrize("seed", range(3))
def test_fewer_updates_than_mixing_by_a_constant(seed):
    """Stragglers on digits: updates until 70 %, beside FedAsync with a constant share, as the catalogue has it."""

    def updates(text):
        setup = federation(
            seed, clients=12, partition="dirichlet:1", speeds="lognormal:1", schedule="async", model="mlp:16"
        )
        run = simulate(setup, parse(text), seed, rounds=700, eval_every=5)
        reached = np.flatnonzero(run.history.accuracy >= 0.7)
        return reached[0] if len(reached) else np.inf

    assert updates("asyncfeded") < updates("fedasync:staleness=constant")


@pytest.mark.parametrize("bad", [{"lam": 0}, {"eps": 0}, {"kappa": -1}, {"target": -1}, {"most": 0}])
def test_parameters_that_mean_nothing(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        AsyncFedED(**bad)
