"""DiLoCo: Nesterov outside, AdamW inside, and moments that stay with the client."""

import dataclasses

import numpy as np
import pytest
from federations import federation, quadratics

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.participation import Cyclic
from pluribus.federated.server import DiLoCo, FedAvg, parse
from pluribus.federated.training import LocalTraining


def with_steps(setup, steps, **changes):
    return dataclasses.replace(setup, training=dataclasses.replace(setup.training, steps=steps, **changes))


def test_outer_step_one_without_momentum_is_fedavg():
    setup = federation(clients=3)
    one, other = (
        simulate(setup, rule, seed=0, rounds=2).state["params"]
        for rule in (DiLoCo(server_lr=1, momentum=0, inner="sgd"), FedAvg(weighting="uniform"))
    )
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_one_local_step_is_synchronous_nesterov_sgd():
    setup, targets, curvatures = quadratics(clients=3, steps=1, lr=0.1)
    w, buffer = np.zeros(2), np.zeros(2)
    for _ in range(6):  # torch.optim.SGD(lr=0.7 * 0.1, momentum=0.9, nesterov=True) on the mean gradient
        gradient = (curvatures * (w - targets)).mean(axis=0)
        buffer = 0.9 * buffer + gradient
        w = w - 0.07 * (gradient + 0.9 * buffer)
    run = simulate(setup, DiLoCo(inner="sgd"), seed=0, rounds=6)
    np.testing.assert_allclose(run.state["params"]["w"], w, rtol=1e-12)


def test_the_whole_written_out_with_moments_that_are_kept():
    """Two clients that take turns and sometimes both come; AdamW by hand."""
    setup, targets, curvatures = quadratics(clients=2, steps=3, lr=0.5)
    setup = dataclasses.replace(setup, participation=Cyclic(((0,), (1,))))
    rule = DiLoCo(inner_lr=0.05, beta1=0.8, beta2=0.9, weight_decay=0.1)
    x, u = np.zeros(2), np.zeros(2)
    kept = [[np.zeros(2), np.zeros(2), 0] for _ in range(2)]
    for number in range(5):
        client = number % 2
        y, memory = x.copy(), kept[client]
        for _ in range(3):
            g = curvatures[client] * (y - targets[client])
            memory[0] = 0.8 * memory[0] + 0.2 * g
            memory[1] = 0.9 * memory[1] + 0.1 * g**2
            memory[2] += 1
            first, second = memory[0] / (1 - 0.8 ** memory[2]), memory[1] / (1 - 0.9 ** memory[2])
            y = y - 0.05 * (first / (np.sqrt(second) + 1e-8) + 0.1 * y)
        u = 0.9 * u + (y - x)
        x = x + 0.7 * ((y - x) + 0.9 * u)
    run = simulate(setup, rule, seed=0, rounds=5)
    np.testing.assert_allclose(run.state["params"]["w"], x, rtol=1e-10)
    np.testing.assert_allclose(run.memories["0"]["method"]["v"]["w"], kept[0][1], rtol=1e-10)
    assert int(run.memories["1"]["method"]["steps"]) == 6


def test_the_inner_optimiser_is_torch_s():
    torch = pytest.importorskip("torch")
    setup, targets, curvatures = quadratics(clients=1, steps=1, lr=0.1)
    rule = DiLoCo(server_lr=1, momentum=0, inner_lr=0.02, weight_decay=0.05)
    run = simulate(setup, rule, seed=0, rounds=7)
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    adamw = torch.optim.AdamW([w], lr=0.02, betas=(0.9, 0.99), weight_decay=0.05)
    for _ in range(7):
        adamw.zero_grad()
        (0.5 * (torch.tensor(curvatures[0]) * (w - torch.tensor(targets[0])) ** 2).sum()).backward()
        adamw.step()
    np.testing.assert_allclose(run.state["params"]["w"], w.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_fifty_steps_between_exchanges_cost_nothing(seed):
    """Digits instead of characters: 8 exchanges of 50 AdamW steps beside 400 of one, loss at most 2 % above."""
    setup = federation(seed, clients=4, model="mlp:16", partition="iid")

    def loss(text, steps, rounds, **world):
        here = dataclasses.replace(with_steps(setup, steps), **world)
        return simulate(here, parse(text), seed, rounds=rounds, eval_every=rounds).history

    seldom, always = loss("diloco", 50, 8), loss("diloco:server_lr=1:momentum=0", 1, 400)
    assert seldom.loss[-1] < 1.02 * always.loss[-1]
    assert seldom.bytes_up[-1] * 50 == always.bytes_up[-1]


def test_workers_that_drop_out_are_survived():
    setup = with_steps(federation(0, clients=6, model="mlp:16", participation="bernoulli:0.5", partition="iid"), 20)
    run = simulate(setup, DiLoCo(), seed=0, rounds=12)
    assert run.history.present.sum() < 50
    assert run.history.accuracy[-1] > 0.85


def test_settings_that_would_be_a_second_momentum():
    rule = DiLoCo()
    state = rule.init({"w": np.zeros(1)}, 1)
    assert rule.local(state, 0, LocalTraining(lr=0.5)).lr == rule.inner_lr
    assert DiLoCo(inner="sgd").local(state, 0, LocalTraining(lr=0.5, momentum=0.9)).lr == 0.5
    for how in (LocalTraining(momentum=0.9), LocalTraining(max_grad_norm=1.0)):
        with pytest.raises(RuleError, match="momentum and clipping"):
            rule.local(state, 0, how)


@pytest.mark.parametrize(
    "bad",
    [
        {"server_lr": 0},
        {"momentum": 1},
        {"inner": "adam"},
        {"inner_lr": 0},
        {"beta1": 1},
        {"beta2": -1},
        {"weight_decay": -1},
        {"eps": 0},
    ],
)
def test_parameters_that_mean_nothing(bad):
    with pytest.raises(RuleError, match=next(iter(bad))):
        DiLoCo(**bad)
