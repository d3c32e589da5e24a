"""FedFTG: class weights, the losses by differences, zero rounds, and the tuned model against the average."""

import numpy as np
import pytest
from federations import federation

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.distillation import class_shares
from pluribus.federated.models import MLP, Softmax
from pluribus.federated.server import FedAvg, FedFTG
from pluribus.federated.server.base import Round
from pluribus.federated.server.distillation.fedftg import divergence, probabilities, taught
from pluribus.federated.topology import devices


def test_class_weights_sum_to_one_and_are_sizes_for_like_clients():
    counts = np.random.default_rng(0).integers(0, 9, size=(4, 6))
    np.testing.assert_allclose(class_shares(counts).sum(axis=0), 1)
    sizes = np.array([1.0, 2.0, 5.0])
    np.testing.assert_allclose(class_shares(np.outer(sizes, [3, 1, 4])), np.outer(sizes / 8, np.ones(3)))


def test_the_teacher_and_the_generators_slope():
    model = MLP(5, 4, 3)
    clients, student = [model.init(i) for i in range(3)], model.init(9)
    rng = np.random.default_rng(1)
    x, y, shares = rng.random((6, 5)), rng.integers(3, size=6), class_shares(rng.integers(1, 9, size=(3, 3)))
    held = np.array(
        [
            sum(shares[k, y[i]] * model.probabilities(c, x[i : i + 1])[0] for k, c in enumerate(clients))
            for i in range(6)
        ]
    )
    np.testing.assert_allclose(
        taught([probabilities(model, client, x) for client in clients], y, shares), held, rtol=1e-12
    )
    rule = FedFTG(hard=0.6)

    def loss(at):
        sure = sum(
            shares[k, y] * -np.log(model.probabilities(c, at)[np.arange(6), y]) for k, c in enumerate(clients)
        ).mean()
        return sure - 0.6 * divergence(held, model.probabilities(student, at))

    slope = rule.hard_slope(model, clients, student, x=x, y=y, shares=shares)
    for place in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[place] += 1e-6
        down[place] -= 1e-6
        assert slope[place] == pytest.approx((loss(up) - loss(down)) / 2e-6, abs=1e-6)


def test_zero_rounds_are_fedavg():
    setup = federation(clients=4, partition="dirichlet:0.5")
    flat, rule = (simulate(setup, rule, seed=1, rounds=2) for rule in (FedAvg(), FedFTG(rounds=0)))
    for name, value in flat.state["params"].items():
        assert rule.state["params"][name].tobytes() == value.tobytes()


def test_the_tuned_model_beats_the_average_of_the_same_clients():
    gains = []
    for seed in range(3):
        setup = federation(seed=seed, clients=10, partition="dirichlet:0.1", model="mlp:32", epochs=2)
        rule, flat = FedFTG(), FedAvg()
        state = rule.init(devices.start(setup, seed), 10)
        for number in range(8):
            ends = devices.trained(setup, dict.fromkeys(range(10), state["params"]), seed, number)
            told = Round(
                number=number,
                clients=tuple(range(10)),
                updates=[{n: v - state["params"][n] for n, v in ends[i].items()} for i in range(10)],
                sizes=setup.sizes.astype(float),
                n_clients=10,
                total_size=float(setup.sizes.sum()),
                label_counts=setup.label_counts,
                seed=seed,
            )
            average = flat.step(flat.init(state["params"], 10), told)["params"]
            state = rule.step(state, told)
            tuned = devices.accuracy(setup, state["params"])
            gains.append(tuned - devices.accuracy(setup, average))
            before, after = state["distilled"]
            assert after < before
    assert np.mean(gains) > 0.01  # by seed .040 .024 -.007


def test_the_model_is_told_by_its_tensors():
    rule = FedFTG(activation="tanh")
    model = rule.served(MLP(6, 5, 3, dtype="float32").init(0))
    assert model == MLP(6, 5, 3, "tanh", dtype="float32")
    assert rule.served(Softmax(6, 3).init(0)) == Softmax(6, 3)
    with pytest.raises(RuleError, match="tell none"):
        rule.init({"w": np.zeros((2, 2))}, 3)


def test_softmax_and_what_it_needs():
    setup = federation(clients=3, model="softmax")
    run = simulate(setup, FedFTG(), seed=0, rounds=2)
    assert run.history.accuracy[-1] > 0.3
    state = run.state
    zero = {name: np.zeros_like(value) for name, value in state["params"].items()}
    with pytest.raises(RuleError, match="label counts"):
        FedFTG().step(state, Round(2, (0,), [zero], np.ones(1), 3, 3.0))
    with pytest.raises(RuleError, match="label counts are all zero"):
        FedFTG().step(state, Round(2, (0,), [zero], np.ones(1), 3, 3.0, label_counts=np.zeros((1, 10))))
    for options in (
        {"rounds": -1},
        {"inner": 0},
        {"lr": 0},
        {"hard": -1},
        {"low": 2.0},
        {"low": "0"},
        {"high": None},
        {"high": True},
        {"activation": "sine"},
        {"model": "cnn"},
    ):
        with pytest.raises(RuleError):
            FedFTG(**options)


def test_a_torch_model_is_given():
    torch = pytest.importorskip("torch")
    from dataclasses import replace

    from pluribus.federated import TorchModel

    net = torch.nn.Sequential(torch.nn.Linear(64, 12), torch.nn.ReLU(), torch.nn.Linear(12, 10))
    setup = replace(federation(clients=3), model=TorchModel(net))
    with pytest.raises(RuleError, match="shape"):
        FedFTG(model=setup.model)
    rule = FedFTG(model=setup.model, shape=(64,), rounds=2)
    run, flat = (simulate(setup, r, seed=0, rounds=2) for r in (rule, FedAvg()))
    assert rule.name == "fedftg:rounds=2"
    assert (run.state["params"]["2.weight"] != flat.state["params"]["2.weight"]).any()
    assert np.isfinite(run.history.accuracy).all()
