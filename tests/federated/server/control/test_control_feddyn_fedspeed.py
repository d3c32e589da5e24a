import numpy as np
import pytest
from federations import federation, quadratics
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FedAvg, FedDyn, FedProx, FedSpeed
from pluribus.federated.server.control.fedspeed import uphill


def optimum(targets, curvatures):
    return (curvatures * targets).sum(axis=0) / curvatures.sum(axis=0)


def test_feddyn_written_out_as_in_the_paper():
    setup, targets, curvatures = quadratics(clients=4, steps=3, lr=0.1, participation="cyclic:2")
    run = simulate(setup, FedDyn(alpha=0.3), seed=0, rounds=6)
    x, h, own = np.zeros(2), np.zeros(2), np.zeros((4, 2))
    for here in run.history.present:
        ends = []
        for i in np.flatnonzero(here):
            y = x.copy()
            for _ in range(3):
                y -= 0.1 * (curvatures[i] * (y - targets[i]) - own[i] + 0.3 * (y - x))
            own[i] -= 0.3 * (y - x)
            ends.append(y)
        h = h - 0.3 * sum(y - x for y in ends) / 4
        x = np.mean(ends, axis=0) - h / 0.3
    np.testing.assert_allclose(run.state["params"]["w"], x, rtol=1e-10)
    np.testing.assert_allclose(run.state["drift"]["w"], -h / 0.3, rtol=1e-10)


def test_fedspeed_written_out_as_in_the_paper():
    setup, targets, curvatures = quadratics(clients=3, steps=3, lr=0.1)
    run = simulate(setup, FedSpeed(lam=2.0, rho=0.2, ascent=0.6), seed=0, rounds=4)
    x, own = np.zeros(2), np.zeros((3, 2))
    for _ in range(4):
        sent = []
        for i in range(3):
            y = x.copy()
            for _ in range(3):
                g = curvatures[i] * (y - targets[i])
                above = y + 0.2 * g / np.linalg.norm(g)
                v = 0.4 * g + 0.6 * curvatures[i] * (above - targets[i])
                y -= 0.1 * (v - own[i] + (y - x) / 2.0)
            own[i] -= (y - x) / 2.0
            sent.append(y - 2.0 * own[i])
        x = np.mean(sent, axis=0)
    np.testing.assert_allclose(run.state["params"]["w"], x, rtol=1e-12)


@pytest.mark.parametrize("rule", [FedDyn(alpha=0.5), FedSpeed(lam=2.0, ascent=0.0)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_they_end_at_the_optimum_where_fedavg_and_fedprox_do_not(rule, seed):
    setup, targets, curvatures = quadratics(clients=4, steps=10, lr=0.1, seed=seed)

    def gap(used):
        return np.abs(
            simulate(setup, used, seed=0, rounds=200, eval_every=200).state["params"]["w"]
            - optimum(targets, curvatures)
        ).max()

    assert gap(rule) < 1e-6
    assert gap(FedAvg(weighting="uniform")) > 5e-3
    assert gap(FedProx(mu=0.5, weighting="uniform")) > 5e-3


def test_without_ascent_and_correction_fedspeed_is_fedprox_and_then_fedavg():
    setup = federation(clients=3)
    one = simulate(setup, FedSpeed(lam=4.0, ascent=0.0, correct=False), seed=1, rounds=2).state["params"]
    other = simulate(setup, FedProx(mu=0.25, weighting="uniform"), seed=1, rounds=2).state["params"]
    far = simulate(setup, FedSpeed(lam=1e12, ascent=0.0, correct=False), seed=1, rounds=2).state["params"]
    average = simulate(setup, FedAvg(weighting="uniform"), seed=1, rounds=2).state["params"]
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(far[name], average[name], rtol=1e-4, atol=1e-6)


def test_the_ascent_sees_the_gradient_of_all_tensors_as_one_vector():
    def evaluate(own, batch):
        return 1.0, {"a": 3 * own["a"], "b": 4 * own["b"]}

    _, grads = uphill(0.5)(evaluate, {"a": np.ones(1), "b": np.ones(1)}, None, 0)
    np.testing.assert_allclose(grads["a"], 3 * (1 + 0.5 * 3 / 5))
    np.testing.assert_allclose(grads["b"], 4 * (1 + 0.5 * 4 / 5))
    zero = {"a": np.zeros(1), "b": np.zeros(1)}
    same_bits(uphill(0.5)(evaluate, zero, None, 0)[1], zero)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_skewed_digits_both_are_ahead_of_fedavg(seed):
    setup = federation(seed, clients=10, partition="dirichlet:0.1", epochs=2, model="mlp:16")

    def accuracy(rule):
        return simulate(setup, rule, seed=seed, rounds=12, eval_every=12).history.accuracy[-1]

    base = accuracy(FedAvg())
    assert accuracy(FedDyn()) > base + 0.05
    assert accuracy(FedSpeed()) > base + 0.05


def test_bad_input_is_told():
    with pytest.raises(RuleError, match="alpha must be a positive number"):
        FedDyn(alpha=0.0)
    with pytest.raises(RuleError, match="ascent must be at most 1"):
        FedSpeed(ascent=1.5)
    with pytest.raises(RuleError, match="correct must be true or false"):
        FedSpeed(correct=1)
