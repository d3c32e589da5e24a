"""Pools of scale-and-shift adapters: neutral at first, one adapter as a special case, gradients by differences."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from numpy.testing import assert_allclose

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.adapters import KEYS, SCALE, SHIFT, InstanceAdapters
from pluribus.federated.data import Dataset
from pluribus.federated.models import MLP, Batch, Softmax
from pluribus.federated.seeding import derived
from pluribus.federated.server import FedAvg
from pluribus.federated.training import LocalTraining, train


def drawn(model, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=value.shape) for name, value in model.init(0).items()}


RNG = np.random.default_rng(4)
BATCH = Batch(RNG.normal(size=(9, 5)), RNG.integers(3, size=9))


def test_neutral_adapters_are_the_frozen_model():
    inner = MLP(5, 6, 3)
    model = InstanceAdapters(inner)
    params = model.init(2)
    assert_allclose(model.logits(params, BATCH.x), inner.logits(inner.init(2), BATCH.x), rtol=1e-12)


def test_the_mixture_written_out():
    model = InstanceAdapters(Softmax(5, 3), pool=4, top=2, temperature=0.3)
    params = drawn(model)
    for h, shares, after in zip(
        BATCH.x, model.mixture(params, BATCH.x).shares, model.adapted(params, BATCH.x), strict=True
    ):
        cosines = [h @ key / np.linalg.norm(h) / np.linalg.norm(key) for key in params[KEYS]]
        best = sorted(range(4), key=lambda m: -cosines[m])[:2]
        total = sum(np.exp(cosines[m] / 0.3) for m in best)
        expected = [np.exp(cosines[m] / 0.3) / total if m in best else 0.0 for m in range(4)]
        assert_allclose(shares, expected, rtol=1e-10)
        scale = sum(expected[m] * params[SCALE][m] for m in range(4))
        shift = sum(expected[m] * params[SHIFT][m] for m in range(4))
        assert_allclose(after, scale * h + shift, rtol=1e-10)


def test_all_of_the_pool_is_the_full_softmax_and_one_is_one_adapter():
    model = InstanceAdapters(Softmax(5, 3), pool=3, top=3)
    mixture = model.mixture(drawn(model), BATCH.x)
    powers = np.exp(mixture.cosines / 0.1)
    assert_allclose(mixture.shares, powers / powers.sum(axis=1, keepdims=True), rtol=1e-10)
    one = InstanceAdapters(Softmax(5, 3), pool=1, top=1)
    params = drawn(one)
    assert_allclose(one.adapted(params, BATCH.x), params[SCALE] * BATCH.x + params[SHIFT], rtol=1e-12)


@pytest.mark.parametrize("top", [1, 2, 3])
def test_gradients_are_those_of_differences(top):
    model = InstanceAdapters(MLP(5, 6, 3), pool=3, top=top, temperature=0.5)
    params = drawn(model)
    _, grads = model.loss_and_grad(params, BATCH)
    assert set(grads) == {KEYS, SCALE, SHIFT, "output.weight", "output.bias"}
    rng = np.random.default_rng(1)
    for name, value in grads.items():
        place = tuple(int(rng.integers(size)) for size in value.shape)
        ends = []
        for sign in (1e-6, -1e-6):
            moved = {key: array.copy() for key, array in params.items()}
            moved[name][place] += sign
            ends.append(model.loss_and_grad(moved, BATCH)[0])
        assert value[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-8)


def test_a_server_averages_pools_adapter_by_adapter_and_the_body_stays():
    setup = federation(clients=3)
    setup = replace(setup, model=InstanceAdapters(setup.model))
    start = setup.model.init(derived(0, "simulation.init"))
    run = simulate(setup, FedAvg(), seed=0, rounds=1)
    seeds = [derived(0, "simulation.training", 0, i) for i in range(3)]
    local = [
        train(setup.model, start, c, setup.training, seed).params for c, seed in zip(setup.clients, seeds, strict=True)
    ]
    for name, value in run.state["params"].items():
        expected = np.average([tree[name] for tree in local], axis=0, weights=setup.sizes)
        assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
        assert np.array_equal(value, start[name]) == name.startswith("hidden")


def two_domains(seed):
    """Labels by the sign of the third number; domain B, told by the first two, has it turned around."""
    rng = np.random.default_rng(seed)
    domain, y = rng.integers(2, size=400), rng.integers(2, size=400)
    x = np.zeros((400, 3))
    x[:, 0], x[:, 1] = 2.0 * (domain == 0), 2.0 * (domain == 1)
    x[:, 2] = np.where(domain == 0, 1, -1) * (2 * y - 1)
    return Dataset(x + 0.1 * rng.normal(size=x.shape), y, 2)


def test_on_two_mixed_domains_instance_mixing_beats_one_adapter():
    gaps = []
    for seed in range(3):
        data = two_domains(seed)
        found = []
        for pool in (1, 2):
            model = InstanceAdapters(Softmax(3, 2), pool=pool, top=1)
            params = model.init(seed)
            params[KEYS] = np.eye(3)[:pool] + 0.0
            params["output.weight"] = 0.1 * np.array([[0.0, 0.0, -1.0], [0.0, 0.0, 1.0]])
            clients = [data.take(np.arange(400)[k::4]) for k in range(4)]
            for number in range(10):
                trees = [train(model, params, c, LocalTraining(epochs=2, lr=0.5), number).params for c in clients]
                params = {name: np.mean([tree[name] for tree in trees], axis=0) for name in params}
            found.append(float((model.predict(params, data.x) == data.y).mean()))
        gaps.append(found)
    assert min(mixed for _, mixed in gaps) > 0.95
    assert all(mixed > one + 0.2 for one, mixed in gaps)


def test_too_few_adapters_are_told():
    with pytest.raises(RuleError, match="top is 3, and the pool has 2"):
        InstanceAdapters(Softmax(3, 2), pool=2, top=3)
