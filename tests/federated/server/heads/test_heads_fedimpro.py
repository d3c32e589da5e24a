"""FedImpro: pooled moments are the union's, and drawn features bring the heads' gradients together."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.models import Batch, cross_entropy
from pluribus.federated.parts import parts_of
from pluribus.federated.seeding import generator
from pluribus.federated.server import FedAvg, FedImpro
from pluribus.federated.server.base import Round
from pluribus.federated.server.heads.fedimpro import moments, pool_moments


def test_pooled_moments_are_those_of_the_union():
    rng = np.random.default_rng(0)
    h, y = rng.normal(size=(200, 5)) * 3 + 1, rng.integers(4, size=200)
    owner = rng.integers(6, size=200)
    owner[y == 2] = 1  # one client has a class alone
    parts = [moments(h[owner == i], y[owner == i], 5) for i in range(6)]
    means, variances, counts = pool_moments(*(np.stack(values) for values in zip(*parts, strict=True)))
    for c in range(4):
        np.testing.assert_allclose(means[c], h[y == c].mean(axis=0), atol=1e-10)
        np.testing.assert_allclose(variances[c], h[y == c].var(axis=0), atol=1e-10)
    np.testing.assert_array_equal(counts, np.bincount(y, minlength=5))
    assert not means[4].any()
    assert not variances[4].any()


def test_the_server_has_the_moments_of_all_samples_under_the_model_it_sent():
    setup = federation(clients=4, partition="dirichlet:0.5")
    rule = FedImpro()
    one = simulate(setup, rule, seed=0, rounds=1)
    two = simulate(setup, rule, seed=0, rounds=2)
    x, y = (np.concatenate([getattr(c, part) for c in setup.clients]) for part in ("x", "y"))
    h = np.float64(parts_of(setup.model).features(one.state["params"], x))
    for c in range(10):
        np.testing.assert_allclose(two.state["means"][c], h[y == c].mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(two.state["variances"][c], h[y == c].var(axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("off", [{"share": 0.0}, {"weight": 0.0}])
def test_without_drawn_features_it_is_fedavg_to_the_bit(off):
    setup = federation(clients=3)
    run = simulate(setup, FedImpro(**off), seed=0, rounds=3)
    same_bits(run.state["params"], simulate(setup, FedAvg(), seed=0, rounds=3).state["params"])


def test_a_step_moves_the_head_along_the_drawn_features():
    setup = federation(clients=3)
    model, data = setup.model, setup.clients[0].take(np.arange(8))
    params = model.init(0)
    rng = np.random.default_rng(0)
    told = {
        "means": rng.normal(size=(10, 8)),
        "variances": rng.random((10, 8)),
        "counts": np.array([1.0] * 3 + [0] * 7),
    }
    job = Job(model, params, told, data, setup.training, {}, 5, 0, 0)
    moved, plain = (FedImpro(weight=weight).client.train(job).params for weight in (2.0, 0.0))
    draw = generator(5, "fedimpro.features", 0)
    y = draw.integers(3, size=8)
    h = told["means"][y] + np.sqrt(told["variances"][y]) * draw.standard_normal((8, 8))
    slope = cross_entropy(h @ params["output.weight"].T + params["output.bias"], Batch(h, y))[1]
    expected = plain["output.weight"] - setup.training.lr * 2.0 * slope.T @ h
    np.testing.assert_allclose(moved["output.weight"], expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(moved["hidden.weight"], plain["hidden.weight"])


def dissimilarity(grads):
    """``mean |g_i - g|^2 / |g|^2``."""
    mean = np.mean(grads, axis=0)
    return np.mean([((g - mean) ** 2).sum() for g in grads]) / (mean**2).sum()


def test_on_skewed_digits_it_is_ahead_and_head_gradients_are_nearer():
    for seed in range(3):
        setup = federation(seed=seed, clients=8, model="mlp:32", partition="dirichlet:0.1")
        run = simulate(setup, FedImpro(), seed=seed, rounds=10, eval_every=10)
        average = simulate(setup, FedAvg(), seed=seed, rounds=10, eval_every=10)
        assert run.history.accuracy[-1] > average.history.accuracy[-1] + 0.02
        parts, params = parts_of(setup.model), run.state["params"]
        rng = np.random.default_rng(seed)
        alone, together = [], []
        for client in setup.clients:
            h = parts.features(params, client.x)
            _, slope = cross_entropy(parts.head(params, h), Batch(h, client.y))
            alone.append(slope.T @ h)
            y = rng.integers(10, size=len(client))
            h = run.state["means"][y] + np.sqrt(run.state["variances"][y]) * rng.standard_normal((len(y), 32))
            _, slope = cross_entropy(parts.head(params, h), Batch(h, y))
            together.append(alone[-1] + slope.T @ h)
        assert dissimilarity(together) < dissimilarity(alone)


def test_noise_and_what_was_not_sent():
    setup = federation(clients=3)
    clear, noisy = (simulate(setup, FedImpro(noise=noise), seed=0, rounds=1).state["means"] for noise in (0.0, 0.5))
    assert 0.1 < (noisy - clear).std() < 0.5
    rule = FedImpro()
    run = simulate(setup, FedAvg(), seed=0, rounds=1)
    state = rule.init(run.state["params"], 3)
    zeros = {name: np.zeros_like(value) for name, value in run.state["params"].items()}
    told = Round(number=0, clients=(0,), updates=[zeros], sizes=np.ones(1), n_clients=3, total_size=3)
    with pytest.raises(RuleError, match=r"client 0; .*FedImpro\(\).client"):
        rule.step(state, told)
    shape = state["means"].shape
    bad = {"means": np.zeros(shape), "variances": -np.ones(shape), "counts": np.ones(10)}
    with pytest.raises(RuleError, match="client 0 told a negative variance"):
        rule.step(state, replace(told, messages=[bad]))
