"""FED-PUB: weights written out, functions and not weights compared, masks by hand, and two groups of digits."""

from dataclasses import replace

import numpy as np
import pytest
from personal_digits import SAME, finish, two_groups
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated.clients.base import Job
from pluribus.federated.models import MLP, Batch
from pluribus.federated.server import FedPUB
from pluribus.federated.server.personal.embedding import cosines, functional_embedding
from pluribus.federated.server.personal.fedpub import MaskedClient, like_minded
from pluribus.federated.training import LocalTraining, batches


def step(rule, deltas, embeddings):
    deltas = np.asarray(deltas, dtype=float)
    messages = [{"embedding": {"outputs": np.asarray(e, dtype=float)}} for e in embeddings]
    return rule.step(rule.init({"w": np.ones(deltas.shape[1])}, len(deltas)), plain(deltas, messages=messages))


def test_the_weights_written_out():
    rng = np.random.default_rng(0)
    deltas, h = rng.normal(size=(3, 4)), rng.normal(size=(3, 5))
    state = step(FedPUB(tau=2.0, l1=0), deltas, h)
    for i in range(3):
        powers = [np.exp(2.0 * h[i] @ h[j] / np.linalg.norm(h[i]) / np.linalg.norm(h[j])) for j in range(3)]
        alpha = np.array(powers) / sum(powers)
        np.testing.assert_allclose(state["mixing"][i], alpha, rtol=1e-10)
        np.testing.assert_allclose(state["personal"]["w"][i], 1 + alpha @ deltas, rtol=1e-10)


def test_the_ends_of_tau():
    rng = np.random.default_rng(1)
    deltas, h = rng.normal(size=(4, 3)), rng.normal(size=(4, 5))
    even = step(FedPUB(tau=0, l1=0), deltas, h)
    np.testing.assert_allclose(even["personal"]["w"], np.tile(1 + deltas.mean(axis=0), (4, 1)), rtol=1e-12)
    alone = step(FedPUB(tau=1e6, l1=0), deltas, h)
    np.testing.assert_allclose(alone["personal"]["w"], 1 + deltas, rtol=1e-12)
    np.testing.assert_allclose(alone["mixing"].sum(axis=1), 1.0)
    nothing = step(FedPUB(l1=0), deltas, np.zeros((4, 5)))
    assert np.isfinite(nothing["mixing"]).all()


@pytest.mark.parametrize("kind", ["all", "mean"])
def test_hidden_units_in_another_order_are_the_same_function(kind):
    model = MLP(6, 7, 3)
    one, other = model.init(0), model.init(1)
    order = np.random.default_rng(2).permutation(7)
    turned = {
        "hidden.weight": one["hidden.weight"][order],
        "hidden.bias": one["hidden.bias"][order],
        "output.weight": one["output.weight"][:, order],
        "output.bias": one["output.bias"],
    }
    x = np.random.default_rng(3).normal(size=(10, 6))

    def alpha(first):
        return like_minded(cosines([functional_embedding(model, p, x, kind) for p in (first, other)]), 5.0)

    np.testing.assert_allclose(alpha(turned), alpha(one), rtol=1e-12)
    same = np.vdot(one["hidden.weight"], turned["hidden.weight"]) / np.vdot(one["hidden.weight"], one["hidden.weight"])
    assert same < 0.9


def test_the_mask_by_hand():
    setup = two_groups(0)
    data, l1, lr = setup.clients[0].take(np.arange(20)), 0.02, 0.5
    how = LocalTraining(epochs=3, batch_size=10, lr=lr)
    params = {name: value + 0.1 for name, value in setup.model.init(0).items()}
    job = Job(setup.model, params, {}, data, how, {}, 5, 0, 0)
    report = MaskedClient(l1, 4, "all", 0).train(job)
    w = {name: value.copy() for name, value in params.items()}
    m = np.ones_like(w["output.weight"])
    for batch in batches(data, how, 5):
        shown = w | {"output.weight": m * w["output.weight"]}
        _, g = setup.model.loss_and_grad(shown, Batch(batch.x, batch.y))
        slope = g["output.weight"]
        stepped = m - lr * (slope * w["output.weight"] + l1 * np.sign(m))
        w["output.weight"] = w["output.weight"] - lr * slope * m
        w["output.bias"] = w["output.bias"] - lr * g["output.bias"]
        m = stepped
    np.testing.assert_allclose(report.params["output.weight"], w["output.weight"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(report.memory["mask"]["output.weight"], m, rtol=1e-4, atol=1e-6)


def test_a_model_is_used_under_its_mask_and_mixed_without_it():
    rule = FedPUB(l1=0.1)
    state = rule.init({"w": np.full((2, 2), 3.0), "b": np.full(2, 3.0)}, 2)
    mask = np.array([[2.0, 0.05], [-0.5, 1.0]])
    messages = [{"embedding": {"outputs": np.ones(2)}, "mask": {"w": mask}}] * 2
    updates = [{"w": np.ones((2, 2)), "b": np.ones(2)}] * 2
    state = rule.step(state, replace(plain([[0.0], [0.0]], messages=messages), updates=updates))
    np.testing.assert_allclose(rule.offer(state, 1).params["w"], 4.0)
    np.testing.assert_allclose(rule.model_of(state, 1)["w"], [[8.0, 0.0], [-2.0, 4.0]])
    np.testing.assert_allclose(rule.model_of(state, 1)["b"], 4.0)


@pytest.mark.parametrize("model", ["softmax", "mlp:16"])
def test_two_groups_find_each_other(model):
    for seed in range(3):
        setup = two_groups(seed, model)
        run, accuracy = finish(setup, FedPUB(), seed, rounds=12)
        assert (run.state["mixing"] * SAME).sum(axis=1).min() > 0.9
        assert accuracy > finish(setup, "fedavg", seed, rounds=12)[1] + 0.2


def test_masks_get_sparse():
    run, _ = finish(two_groups(0), FedPUB(l1=0.05), 0, rounds=12)
    share = (np.abs(run.state["mask"]["output.weight"]) < 0.05).mean()
    assert 0.02 < share < 0.98


def test_bad_parameters_and_clients():
    for bad in ({"tau": -1}, {"l1": -1}, {"probes": 0}, {"embedding": "x"}, {"seed": -1}):
        with pytest.raises(RuleError, match="FedPUB"):
            FedPUB(**bad)
    rule = FedPUB()
    with pytest.raises(RuleError, match="client 0, client 1 did not send it"):
        rule.step(rule.init({"w": np.zeros(1)}, 2), plain([[1.0], [2.0]]))
    with pytest.raises(RuleError, match="cannot be compared"):
        cosines([np.ones(2), np.ones(3)])
