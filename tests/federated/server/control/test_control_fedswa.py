from dataclasses import replace

import numpy as np
import pytest
from federations import federation, quadratics
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.participation import parse
from pluribus.federated.server import FedAvg, FedMoSWA, FedSWA
from pluribus.federated.server.control.fedswa import falling


def test_both_written_out():
    setup, targets, curvatures = quadratics(clients=3, steps=4, lr=0.1)
    swa = simulate(setup, FedSWA(alpha=1.3, rho=0.2), seed=0, rounds=3)
    mo = simulate(setup, FedMoSWA(alpha=1.3, rho=0.2, gamma=0.4), seed=0, rounds=3)
    rates = [0.1 * (1 - k / 4) + k / 4 * 0.2 * 0.1 for k in range(4)]
    for run, control in ((swa, False), (mo, True)):
        x, m, own = np.zeros(2), np.zeros(2), np.zeros((3, 2))
        for _ in range(3):
            ends, gaps = [], []
            for i in range(3):
                y = x.copy()
                for rate in rates:
                    correction = m - own[i] if control else 0.0
                    y -= rate * (curvatures[i] * (y - targets[i]) + correction)
                own[i] = own[i] - m + (x - y) / sum(rates)
                gaps.append(own[i] - m)
                ends.append(y)
            x = x + 1.3 * (np.mean(ends, axis=0) - x)
            m = m + 0.4 * np.mean(gaps, axis=0)
        np.testing.assert_allclose(run.state["params"]["w"], x, rtol=1e-12)
    np.testing.assert_allclose(mo.state["momentum"]["w"], m, rtol=1e-12)


def test_with_a_constant_rate_and_a_whole_step_it_is_fedavg_bit_for_bit():
    setup = federation(clients=3)
    one = simulate(setup, FedSWA(alpha=1.0, rho=1.0), seed=1, rounds=2)
    same_bits(one.state["params"], simulate(setup, FedAvg(), seed=1, rounds=2).state["params"])


def test_with_zero_control_variates_both_are_one():
    setup = federation(clients=3)
    one, other = (simulate(setup, rule, seed=1, rounds=1) for rule in (FedSWA(), FedMoSWA()))
    same_bits(one.state["params"], other.state["params"])


def test_equal_clients_are_not_corrected():
    """With gamma = 1 exactly; below, the average lags behind the clients, which is its momentum."""
    setup, *_ = quadratics(clients=1, steps=3)
    setup = replace(
        setup,
        clients=setup.clients * 3,
        true_counts=np.tile([1, 0], (3, 1)),
        participation=parse("all", np.tile([1, 0], (3, 1)), 0),
    )
    run = simulate(setup, FedMoSWA(gamma=1.0), seed=0, rounds=4)
    for i in range(3):
        np.testing.assert_allclose(
            run.memories[str(i)]["method"]["control"]["w"], run.state["momentum"]["w"], rtol=1e-12, atol=1e-14
        )
    lagging = simulate(setup, FedMoSWA(gamma=0.2), seed=0, rounds=1)
    assert not np.allclose(lagging.memories["0"]["method"]["control"]["w"], lagging.state["momentum"]["w"])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_skewed_digits_the_loss_around_the_model_is_below_fedavgs(seed):
    """Perturbed loss, as the catalogue has it: mean over random directions of the model's own length times 0.2."""
    setup = federation(seed, clients=10, partition="dirichlet:0.1", epochs=2, model="mlp:16")

    def perturbed(rule):
        params = simulate(setup, rule, seed=seed, rounds=12, eval_every=12).state["params"]
        rng, found = np.random.default_rng(seed), []
        for _ in range(5):
            moved = {}
            for name, value in params.items():
                noise = rng.normal(size=value.shape)
                moved[name] = value + 0.2 * np.linalg.norm(value) / np.linalg.norm(noise) * noise
            p = setup.model.probabilities(moved, setup.test.x)[np.arange(len(setup.test)), setup.test.y]
            found.append(-np.log(np.maximum(p, 1e-30)).mean())
        return np.mean(found)

    base = perturbed(FedAvg())
    assert perturbed(FedSWA()) < base
    assert perturbed(FedMoSWA()) < base


def test_rates_fall_and_bad_input_is_told():
    assert [falling(0.0)(k, 4) for k in range(4)] == [1.0, 0.75, 0.5, 0.25]
    for bad, match in (({"rho": 1.5}, "rho must be at most 1"), ({"alpha": 0.0}, "alpha must be")):
        with pytest.raises(RuleError, match=match):
            FedSWA(**bad)
    with pytest.raises(RuleError, match="gamma must be at most 1"):
        FedMoSWA(gamma=2.0)
