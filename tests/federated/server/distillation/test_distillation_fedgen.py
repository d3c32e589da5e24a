"""FedGen: its losses written out, what weight 0 is, what is generated, and rounds to FedAvg's accuracy."""

import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.distillation import Generator, class_shares
from pluribus.federated.models import MLP, Batch, softmax
from pluribus.federated.seeding import generator
from pluribus.federated.server import FedAvg, FedGen
from pluribus.federated.server.distillation.fedgen import head_loss
from pluribus.federated.training import LocalTraining


def test_the_ensembles_loss_and_its_slope():
    rng = np.random.default_rng(0)
    matrices, biases = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 4))
    shares, h, y = class_shares(rng.integers(0, 9, size=(3, 4))), rng.normal(size=(6, 5)), rng.integers(4, size=6)

    def loss(at):
        total = 0.0
        for b in range(6):
            scores = sum(shares[k, y[b]] * (matrices[k] @ at[b] + biases[k]) for k in range(3))
            total -= np.log(np.exp(scores[y[b]]) / np.exp(scores).sum())
        return total / 6

    found, slope = head_loss(matrices, biases, shares, h, y)
    assert found == pytest.approx(loss(h))
    for place in np.ndindex(h.shape):
        up, down = h.copy(), h.copy()
        up[place] += 1e-6
        down[place] -= 1e-6
        assert slope[place] == pytest.approx((loss(up) - loss(down)) / 2e-6, abs=1e-7)


@pytest.mark.parametrize("model", ["mlp:8", "softmax"])
def test_weight_zero_is_fedavg(model):
    setup = federation(clients=4, partition="dirichlet:0.5", model=model)
    plainly, rule = (simulate(setup, rule, seed=1, rounds=3) for rule in (FedAvg(), FedGen(weight=0.0)))
    for name, value in plainly.state["params"].items():
        assert rule.state["params"][name].tobytes() == value.tobytes()


def test_a_local_step_written_out():
    setup = federation(clients=2, model="mlp:8")
    model, rule = setup.model, FedGen(weight=0.7, decay=0.5, batch=5)
    assert isinstance(model, MLP)
    params = model.init(0)
    state = rule.init(params, 2)
    state["prior"] = np.full(10, 0.1)
    data = setup.clients[0].take(np.arange(16))
    offered = rule.offer(state, 0)
    how = LocalTraining(steps=1, batch_size=16, lr=0.1)
    job = Job(model, params, offered.told, data, how, {}, seed=3, round=2, client=0)
    after = rule.client.train(job).params
    made = Generator(16, 64, 10, 8)
    z, y = made.draw(generator(3, "fedgen.batch", 0), state["prior"], 5)
    h = made.make(state["generator"], z, y).astype(params["output.weight"].dtype)
    slope = softmax(h @ params["output.weight"].T + params["output.bias"]) - np.eye(10)[y]
    grads = model.loss_and_grad(params, Batch(data.x, data.y))[1]
    grads["output.weight"] += 0.7 * 0.25 * slope.T @ h / 5
    grads["output.bias"] += 0.7 * 0.25 * slope.mean(axis=0)
    for name, value in after.items():
        np.testing.assert_allclose(value, params[name] - 0.1 * grads[name], atol=1e-5)


def test_generated_features_are_of_their_class_and_fedavg_is_overtaken():
    rounds, ahead = 21, []
    for seed in range(3):
        setup = federation(seed=seed, clients=10, partition="dirichlet:0.1", model="mlp:32", epochs=2, rounds=rounds)
        plainly, run = (simulate(setup, rule, seed=seed, rounds=rounds) for rule in (FedAvg(), FedGen()))
        state = run.state
        made = Generator(16, 64, 10, 32)
        z, y = made.draw(np.random.default_rng(0), state["prior"], 400)
        h = made.make(state["generator"], z, y)
        scores = h @ state["params"]["output.weight"].T + state["params"]["output.bias"]
        assert (scores.argmax(axis=1) == y).mean() > 0.95  # of the averaged head, that of the ensemble of equals
        assert state["generator_loss"] < 0.05  # of the ensemble weighted by class
        goal = plainly.history.accuracy[-1]
        ahead.append(
            rounds - 1 - int(np.argmax(run.history.accuracy >= goal)) if (run.history.accuracy >= goal).any() else -1
        )
    assert min(ahead) >= 0
    assert np.mean(ahead) >= 2, ahead


def test_what_it_needs():
    params = {"output.weight": np.zeros((3, 2)), "output.bias": np.zeros(3)}
    rule = FedGen()
    state = rule.init(params, 2)
    told = plain([[0.0], [0.0]])
    updates = [{name: np.zeros_like(value) for name, value in params.items()}] * 2
    with pytest.raises(RuleError, match="label counts"):
        rule.step(state, type(told)(0, (0, 1), updates, np.ones(2), 2, 2.0))
    with pytest.raises(RuleError, match="label counts are all zero"):
        rule.step(state, type(told)(0, (0, 1), updates, np.ones(2), 2, 2.0, label_counts=np.zeros((2, 3))))
    with pytest.raises(RuleError, match="linear head"):
        rule.init({"w": np.zeros(3)}, 2)
    for options in ({"weight": -1}, {"decay": 2.0}, {"steps": -1}, {"batch": 0}, {"lr": 0}):
        with pytest.raises(RuleError):
            FedGen(**options)


def test_torch_modules_that_end_in_a_linear_layer():
    torch = pytest.importorskip("torch")
    from dataclasses import replace

    from pluribus.federated import TorchModel

    net = torch.nn.Sequential(torch.nn.Linear(64, 12), torch.nn.ReLU(), torch.nn.Linear(12, 10))
    setup = replace(federation(clients=3), model=TorchModel(net))
    run = simulate(setup, FedGen(steps=10), seed=0, rounds=3)
    flat = simulate(setup, FedAvg(), seed=0, rounds=3)
    assert run.state["generator"]["output.bias"].shape == (12,)
    assert (run.state["params"]["2.weight"] != flat.state["params"]["2.weight"]).any()
    assert np.isfinite(run.history.accuracy).all()
