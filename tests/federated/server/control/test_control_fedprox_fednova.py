import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from federations import federation, quadratics
from server_rounds import plain, same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FedAvg, FedNova, FedProx, parse
from pluribus.federated.server.control.fednova import gradient_weights, normaliser
from pluribus.federated.training import LocalTraining


def test_fedprox_is_fedavg_under_the_setting_bit_for_bit():
    one = simulate(federation(clients=3), parse("fedprox:mu=0.1"), seed=1, rounds=2)
    other = simulate(federation(clients=3, proximal=0.1), FedAvg(), seed=1, rounds=2)
    same_bits(one.state["params"], other.state["params"])
    plain_run = simulate(federation(clients=3), FedAvg(), seed=1, rounds=2)
    none = simulate(federation(clients=3, proximal=0.1), FedProx(mu=0.0), seed=1, rounds=2)
    same_bits(none.state["params"], plain_run.state["params"])
    with pytest.raises(RuleError, match="mu must be a non-negative number"):
        FedProx(mu=-1.0)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_gradient_weights_are_what_training_gives_each_gradient(momentum, mu):
    """Steps written out with gradients drawn at random, independent of where the client is."""
    how = LocalTraining(steps=6, lr=0.2, momentum=momentum, proximal_mu=mu)
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(6, 3))
    w, v = np.zeros(3), np.zeros(3)
    for g in gradients:
        v = momentum * v + g + mu * w
        w = w - 0.2 * v
    np.testing.assert_allclose(-w, 0.2 * gradient_weights(how, 6) @ gradients, rtol=1e-12)


def test_normalisers_of_the_paper():
    rho, s, lr, mu = 0.9, 7, 0.1, 0.3
    assert normaliser(LocalTraining(lr=lr), s) == pytest.approx(s)
    momentum = (s - rho * (1 - rho**s) / (1 - rho)) / (1 - rho)
    assert normaliser(LocalTraining(lr=lr, momentum=rho), s) == pytest.approx(momentum)
    proximal = (1 - (1 - lr * mu) ** s) / (lr * mu)
    assert normaliser(LocalTraining(lr=lr, proximal_mu=mu), s) == pytest.approx(proximal)


@pytest.mark.parametrize("tau", ["normaliser", "steps"])
def test_the_step_written_out(tau):
    rng = np.random.default_rng(1)
    deltas, sizes = rng.normal(size=(3, 4)), np.array([1.0, 2.0, 5.0])
    amounts, steps = np.array([3.0, 1.5, 8.0]), np.array([2.0, 1.0, 6.0])
    work = [{"work": {"normaliser": np.array(a), "steps": np.array(s)}} for a, s in zip(amounts, steps, strict=True)]
    rule = FedNova(server_lr=0.7, tau=tau)
    state = rule.step(rule.init({"w": np.ones(4)}, 3), plain(deltas, sizes, messages=work))
    p = sizes / sizes.sum()
    total = np.zeros(4)
    for i in range(3):
        total += p[i] * deltas[i] / amounts[i]
    expected = 1 + 0.7 * (p @ (amounts if tau == "normaliser" else steps)) * total
    np.testing.assert_allclose(state["params"]["w"], expected, rtol=1e-12)


def test_equal_work_is_fedavg():
    setup, *_ = quadratics(clients=3, steps=5)
    one = simulate(setup, FedNova(), seed=0, rounds=4).state["params"]["w"]
    np.testing.assert_allclose(one, simulate(setup, FedAvg(), seed=0, rounds=4).state["params"]["w"], rtol=1e-12)


@dataclass(frozen=True)
class _Uneven:
    def local(self, state, client, how):
        return dataclasses.replace(how, steps=1 + 6 * client)


@dataclass(frozen=True)
class UnevenNova(_Uneven, FedNova):
    key = "uneven_nova"


@dataclass(frozen=True)
class UnevenAvg(_Uneven, FedAvg):
    key = "uneven_avg"


def test_unequal_work_does_not_tilt_the_objective():
    """With small rates FedAvg ends where clients count by their steps, FedNova where they count alike."""
    setup, targets, curvatures = quadratics(clients=3, lr=0.005)

    def optimum(weights):
        return (weights @ (curvatures * targets)) / (weights @ curvatures)

    nova = simulate(setup, UnevenNova(), seed=0, rounds=500).state["params"]["w"]
    average = simulate(setup, UnevenAvg(), seed=0, rounds=500).state["params"]["w"]
    np.testing.assert_allclose(nova, optimum(np.ones(3)), atol=0.03)
    np.testing.assert_allclose(average, optimum(np.array([1.0, 7.0, 13.0])), atol=0.03)
    assert np.abs(optimum(np.ones(3)) - optimum(np.array([1.0, 7.0, 13.0]))).max() > 0.1


def test_bad_input_is_told():
    rule = FedNova()
    with pytest.raises(RuleError, match=r"FedNova\(\)\.client"):
        rule.step(rule.init({"w": np.zeros(2)}, 2), plain(np.ones((2, 2))))
    with pytest.raises(RuleError, match="tau must be one of"):
        FedNova(tau="all")
