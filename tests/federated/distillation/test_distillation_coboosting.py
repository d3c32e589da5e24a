"""Co-Boosting: the sign step, what mu = 0 is, the loop's losses by differences, and noisy clients on digits."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation

from pluribus.core.errors import RuleError, WeightError
from pluribus.federated.distillation import CoBoosting, ensemble_scores, signed_step
from pluribus.federated.distillation.coboosting import _Teacher, scores_of
from pluribus.federated.models import MLP
from pluribus.federated.topology import devices


def cross_entropy_of(weights, scores, y):
    total = ensemble_scores(scores, weights)
    top = total - total.max(axis=1, keepdims=True)
    return float(-(top[np.arange(len(y)), y] - np.log(np.exp(top).sum(axis=1))).mean())


def test_the_sign_step_written_out():
    rng = np.random.default_rng(0)
    scores, y, w = rng.normal(size=(4, 9, 3)), rng.integers(3, size=9), np.array([0.4, 0.005, 0.295, 0.3])
    slope = np.zeros(4)
    for k in range(4):
        for sign in (1, -1):
            moved = w.copy()
            moved[k] += sign * 1e-6
            slope[k] += sign * cross_entropy_of(moved, scores, y) / 2e-6
    wanted = np.clip(w - 0.02 * np.sign(slope), 0, 1)
    found = signed_step(w, scores, y, 0.02)
    np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=1e-12)
    np.testing.assert_allclose(signed_step(w, scores, y, 0.0), w)
    assert cross_entropy_of(signed_step(w, scores, y, 1e-3), scores, y) < cross_entropy_of(w, scores, y)


def test_weights_stay_on_the_simplex():
    rng = np.random.default_rng(1)
    w = np.full(5, 0.2)
    for _ in range(50):
        w = signed_step(w, rng.normal(size=(5, 6, 3)), rng.integers(3, size=6), 0.1)
        assert w.sum() == pytest.approx(1)
        assert w.min() >= 0


def small(seed=0, k=3):
    model = MLP(5, 4, 3)
    return model, [model.init(seed + i) for i in range(k)], model.init(99)


def test_mu_zero_is_the_given_ensemble_and_runs_repeat():
    model, clients, start = small()
    still = CoBoosting(epochs=2, count=8, mu=0.0)
    run = still(model, clients, start, 0, classes=3, shape=(5,))
    np.testing.assert_allclose(run.weights, np.full(3, 1 / 3))
    given = still(model, clients, start, 0, classes=3, shape=(5,), weights=np.array([1.0, 2.0, 1.0]))
    np.testing.assert_allclose(given.weights, [0.25, 0.5, 0.25])
    moving = [CoBoosting(epochs=3, count=8)(model, clients, start, 0, classes=3, shape=(5,)) for _ in range(2)]
    np.testing.assert_array_equal(moving[0].history, moving[1].history)
    assert (moving[0].history[-1] != moving[0].history[0]).any()
    assert moving[0].pool.shape == (24, 5)
    assert moving[0].pool.min() >= 0
    assert moving[0].pool.max() <= 1


def test_the_generators_slope():
    model, clients, student = small()
    rng = np.random.default_rng(3)
    x, y, w = rng.random((4, 5)), np.array([0, 1, 2, 1]), np.array([0.5, 0.3, 0.2])
    rule = CoBoosting()
    _, slope = rule._losses(_Teacher(model, clients, w), student, x, y)
    held = np.exp(ensemble_scores(scores_of(model, clients, x), w))
    held /= held.sum(axis=1, keepdims=True)

    def loss(at):  # difficulty and the teacher in KL are held, as in the authors' code
        scores = ensemble_scores(scores_of(model, clients, at), w)
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        pupil = model.probabilities(student, at)
        rows = np.arange(4)
        hard = (1 - held[rows, y]) * -np.log(p[rows, y])
        return (hard - (held * (np.log(held) - np.log(pupil))).sum(axis=1)).mean()

    for place in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[place] += 1e-6
        down[place] -= 1e-6
        assert slope[place] == pytest.approx((loss(up) - loss(down)) / 2e-6, abs=1e-6)


def trained_clients(seed, partition, noisy=None):
    setup = federation(seed=seed, clients=6, partition=partition, model="mlp:16", epochs=20, lr=0.2)
    if noisy is not None:
        sets = list(setup.clients)
        labels = np.random.default_rng(0).integers(10, size=len(sets[noisy]))
        sets[noisy] = sets[noisy].with_labels(labels)
        setup = replace(setup, clients=tuple(sets))
    start = devices.start(setup, seed)
    ends = devices.trained(setup, dict.fromkeys(range(6), start), seed, 0)
    return setup, start, [ends[i] for i in range(6)]


def test_a_client_with_random_labels_ends_with_the_least_weight_and_the_model_learns():
    gains = []
    for seed in range(3):
        setup, start, models = trained_clients(seed, "dirichlet:1", noisy=2)
        run = CoBoosting(epochs=12)(setup.model, models, start, seed, classes=10, shape=(64,))
        assert run.weights.argmin() == 2
        scores = scores_of(setup.model, models, setup.test.x)
        right = [
            (ensemble_scores(scores, w).argmax(axis=1) == setup.test.y).mean() for w in (run.weights, np.full(6, 1 / 6))
        ]
        gains.append(right[0] - right[1])
        assert devices.accuracy(setup, run.model) > devices.accuracy(setup, start) + 0.2
    assert np.mean(gains) > 0  # on Dirichlet(0.1) the two are within the spread: .379 .582 .529 to .376 .552 .565


def test_bad_parameters():
    for options in (
        {"epochs": 0},
        {"mu": -1},
        {"mu": 2},
        {"decay": 0},
        {"low": 1.0},
        {"low": "0"},
        {"high": True},
        {"count": 1.5},
    ):
        with pytest.raises(RuleError):
            CoBoosting(**options)
    model, clients, start = small()
    with pytest.raises(RuleError, match="at least one"):
        CoBoosting()(model, [], start, 0, classes=3, shape=(5,))
    with pytest.raises(WeightError):
        CoBoosting()(model, clients, start, 0, classes=3, shape=(5,), weights=np.zeros(3))
