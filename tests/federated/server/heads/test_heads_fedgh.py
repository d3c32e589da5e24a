"""FedGH: the head is trained on class means of unequal extractors."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from federations import federation
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.measuring import measure
from pluribus.federated.models import MLP, Batch, Softmax
from pluribus.federated.server import FedGH, FedTGP
from pluribus.federated.server.base import Round


@dataclass(frozen=True)
class TwoKinds:
    """An engine whose odd clients have tanh where the even ones have relu."""

    def __call__(self, method, jobs):
        return [method.train(replace(job, model=kind(job.model, job.client))) for job in jobs]


def kind(model, client):
    return replace(model, activation=("relu", "tanh")[client % 2])


def own_accuracy(setup, rule, state):
    """Mean accuracy of the clients' models on test samples of their own classes, in their shares."""
    found = []
    for i, counts in enumerate(setup.true_counts):
        by_class, _, _ = measure(kind(setup.model, i), rule.model_of(state, i), setup.test)
        found.append(np.nansum(by_class * counts) / counts.sum())
    return float(np.mean(found))


def a_round(rule, messages, clients=(0, 1), n=3):
    params = MLP(4, 3, 2).init(0)
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    k = len(clients)
    told = Round(number=0, clients=clients, updates=[zeros] * k, sizes=np.ones(k), n_clients=n, total_size=n)
    return rule.init(params, n), replace(told, messages=messages)


RNG = np.random.default_rng(0)
MESSAGES = [
    {"means": RNG.normal(size=(2, 3)), "counts": np.array([3.0, 0.0])},
    {"means": RNG.normal(size=(2, 3)), "counts": np.array([1.0, 5.0])},
]


def test_the_head_is_trained_on_the_means():
    rule = FedGH(steps=3, lr=0.5)
    state, told = a_round(rule, MESSAGES)
    after = rule.step(state, told)["params"]
    model = Softmax(3, 2)
    means = np.stack([MESSAGES[0]["means"][0], *MESSAGES[1]["means"]])
    params = {name: state["params"][name].copy() for name in ("output.weight", "output.bias")}
    for _ in range(3):
        _, grads = model.loss_and_grad(params, Batch(means, np.array([0, 0, 1])))
        params = {name: params[name] - 0.5 * grads[name] for name in params}
    for name, value in params.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-10)
    np.testing.assert_array_equal(after["hidden.weight"], state["params"]["hidden.weight"])


def test_one_client_of_one_class_learns_that_mean():
    rule = FedGH(steps=200, lr=1.0)
    state, told = a_round(rule, MESSAGES[:1], clients=(2,))
    params = rule.step(state, told)["params"]
    scores = params["output.weight"] @ MESSAGES[0]["means"][0] + params["output.bias"]
    assert scores[0] - scores[1] > 4


def test_the_order_of_clients_does_not_matter():
    rule = FedGH()
    state, told = a_round(rule, MESSAGES)
    same_bits(rule.step(state, told), rule.step(state, told.take([1, 0])))


def test_what_a_client_sends_is_classes_times_features():
    setup = federation(clients=3)
    job = Job(setup.model, setup.model.init(0), {}, setup.clients[0], setup.training, {}, 0, 0, 0)
    message = FedGH().client.train(job).message
    assert message["means"].shape == (10, 8)
    assert message["counts"].sum() == len(setup.clients[0])


def test_two_architectures_beat_local_training():
    for seed in range(3):
        setup = federation(seed=seed, clients=6, model="mlp:32", partition="dirichlet:0.3", rounds=10)
        setup = replace(setup, engine=TwoKinds())
        found = [
            own_accuracy(setup, rule, simulate(setup, rule, seed=seed, rounds=10, eval_every=10).state)
            for rule in (FedGH(), FedTGP(pull=0.0))
        ]
        assert found[0] > found[1]


def test_everybody_has_the_head_and_a_body_of_its_own():
    setup = federation(clients=3)
    rule = FedGH()
    state = simulate(setup, rule, seed=0, rounds=2).state
    models = [rule.model_of(state, i) for i in range(3)]
    np.testing.assert_array_equal(models[0]["output.weight"], models[1]["output.weight"])
    assert not np.array_equal(models[0]["hidden.weight"], models[1]["hidden.weight"])
    assert "output.weight" not in state["personal"]


def test_what_does_not_fit_is_told():
    rule = FedGH()
    with pytest.raises(RuleError, match=r"of client 0, and got nothing; .*FedGH\(\).client"):
        rule.step(*a_round(rule, [{}, {}]))
    with pytest.raises(RuleError, match=r"client 1, and got means of shape \(2, 7\); .* features of one size"):
        rule.step(*a_round(rule, [MESSAGES[0], {"means": np.zeros((2, 7)), "counts": np.ones(2)}]))
    with pytest.raises(RuleError, match="client 1 told a negative count"):
        rule.step(*a_round(rule, [MESSAGES[0], {"means": np.zeros((2, 3)), "counts": np.array([-1, 2])}]))
    with pytest.raises(RuleError, match="fedgh needs a model with features of its own"):
        rule.init(Softmax(3, 2).init(0), 2)


def test_running_means_belong_to_a_clients_body():
    torch = pytest.importorskip("torch")
    from pluribus.federated.torch_model import TorchModel

    layers = torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 10)
    setup = replace(federation(clients=3), model=TorchModel(torch.nn.Sequential(*layers)))
    rule = FedGH()
    state = simulate(setup, rule, seed=0, rounds=1).state
    means = [rule.model_of(state, i)["1.running_mean"] for i in range(3)]
    assert all(mean.any() for mean in means)
    assert not np.array_equal(means[0], means[1])
    np.testing.assert_array_equal(rule.model_of(state, 0)["3.weight"], rule.model_of(state, 1)["3.weight"])
