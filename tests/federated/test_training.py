"""Local training against a plain loop that is written another way, and its limits."""

import numpy as np
import pytest

from pluribus.federated.data import Dataset, digits, split
from pluribus.federated.errors import DataError, SettingError
from pluribus.federated.models import MLP, Batch, Softmax
from pluribus.federated.seeding import derived, generator
from pluribus.federated.training import LocalTraining, train

MODEL = MLP(6, 5, 3)


def _data(n=23, seed=0):
    rng = np.random.default_rng(seed)
    return Dataset(rng.normal(size=(n, 6)), rng.integers(0, 3, size=n), 3)


def _naive(model, params, data, how, seed):
    """SGD on one flat vector, as the formulas in LocalTraining's page say."""
    names, shapes = list(params), [value.shape for value in params.values()]

    def tree(flat):
        pieces = np.split(flat, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        return {name: piece.reshape(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}

    def flat(values):
        return np.concatenate([values[name].ravel() for name in names])

    rng = generator(seed, "training")
    start = flat(params)
    w, v, losses, step = start.copy(), np.zeros_like(start), [], 0
    while True:
        order = rng.permutation(len(data))
        for at in range(0, len(data), how.batch_size):
            pick = order[at : at + how.batch_size]
            loss, grads = model.loss_and_grad(tree(w), Batch(data.x[pick], data.y[pick]))
            losses += [loss] * len(pick)
            g = flat(grads) + how.proximal_mu * (w - start)
            norm = np.linalg.norm(g)
            if how.max_grad_norm is not None and norm > how.max_grad_norm:
                g *= how.max_grad_norm / norm
            v = how.momentum * v + g
            w = w - how.lr * v
            step += 1
            if step == how.steps:
                return tree(w), np.mean(losses), step
        if how.steps is None and step >= how.epochs * -(-len(data) // how.batch_size):
            return tree(w), np.mean(losses), step


@pytest.mark.parametrize(
    "how",
    [
        LocalTraining(),
        LocalTraining(epochs=3, batch_size=5),
        LocalTraining(epochs=2, batch_size=7, momentum=0.9, lr=0.05),
        LocalTraining(epochs=4, batch_size=4, proximal_mu=0.7),
        LocalTraining(epochs=2, batch_size=4, momentum=0.5, proximal_mu=0.3, max_grad_norm=0.2),
        LocalTraining(batch_size=10, steps=7, momentum=0.9),
        LocalTraining(batch_size=100, steps=1, lr=1.0),
    ],
    ids=str,
)
def test_training_equals_a_plain_loop(how):
    params, data = MODEL.init(3), _data()
    got = train(MODEL, params, data, how, seed=11)
    params_want, loss, steps = _naive(MODEL, params, data, how, seed=11)
    assert got.steps == steps
    assert got.loss == pytest.approx(loss, rel=1e-12)
    for name, value in params_want.items():
        np.testing.assert_allclose(got.params[name], value, rtol=0, atol=1e-13)


def test_inputs_stay_as_they_are_and_the_result_is_new():
    params, data = MODEL.init(0), _data()
    kept = {name: value.copy() for name, value in params.items()}
    for value in params.values():
        value.flags.writeable = False
    result = train(MODEL, params, data, LocalTraining(epochs=2, momentum=0.9, proximal_mu=0.1), seed=0)
    for name, value in params.items():
        np.testing.assert_array_equal(value, kept[name])
        assert not np.shares_memory(value, result.params[name])
        assert result.params[name].flags.writeable
        assert (result.params[name] != value).any()


def test_the_seed_fixes_the_order_of_samples():
    params, data, how = MODEL.init(0), _data(), LocalTraining(batch_size=4)
    one, again, other = (train(MODEL, params, data, how, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.params["hidden.weight"], again.params["hidden.weight"])
    assert (one.params["hidden.weight"] != other.params["hidden.weight"]).any()
    seeds = {derived(s, "local", r, c) for s in range(4) for r in range(4) for c in range(4)}
    assert len(seeds) == 64


def test_a_strong_proximal_term_holds_the_client_back():
    params, data = MODEL.init(0), _data()

    def moved(mu):
        how = LocalTraining(epochs=20, batch_size=23, proximal_mu=mu)
        new = train(MODEL, params, data, how, seed=0).params
        return np.sqrt(sum(((new[name] - params[name]) ** 2).sum() for name in params))

    assert moved(5.0) < 0.5 * moved(0.5) < 0.5 * moved(0.0)


def test_tensors_without_gradient_are_copied_through():
    class Counting:
        def loss_and_grad(self, params, batch):
            return 1.0, {"w": np.ones(2)}

    params = {"w": np.zeros(2), "counter": np.array(400_000), "frozen": np.arange(3.0)}
    result = train(Counting(), params, _data(), LocalTraining(lr=0.5, batch_size=23), seed=0)
    np.testing.assert_array_equal(result.params["w"], [-0.5, -0.5])
    assert result.params["counter"] == 400_000
    assert result.params["counter"].dtype == params["counter"].dtype
    assert not np.shares_memory(result.params["frozen"], params["frozen"])


def test_a_run_that_diverges_returns_without_a_warning():
    data = Dataset(_data().x * 1e200, _data().y, 3)
    result = train(Softmax(6, 3), Softmax(6, 3).init(0), data, LocalTraining(lr=1e200, epochs=3), seed=0)
    assert not np.isfinite(result.params["output.weight"]).all()


def test_both_models_learn_digits():
    parts = split(digits(), seed=0)
    for model, lr, least in ((Softmax(64, 10), 0.5, 0.93), (MLP(64, 32, 10), 0.2, 0.95)):
        how = LocalTraining(epochs=15, lr=lr, momentum=0.5)
        first = train(model, model.init(0), parts.train, LocalTraining(), seed=0)
        result = train(model, model.init(0), parts.train, how, seed=0)
        assert (model.predict(result.params, parts.test.x) == parts.test.y).mean() > least
        assert result.loss < first.loss


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"steps": 0}, "steps is 0"),
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"lr": float("inf")}, "lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"proximal_mu": -1.0}, "proximal_mu"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
    ],
)
def test_bad_settings_are_told(settings, words):
    with pytest.raises(SettingError, match=words):
        LocalTraining(**settings)


def test_a_client_without_samples_is_told():
    with pytest.raises(DataError, match="no samples"):
        train(MODEL, MODEL.init(0), _data().take([]), LocalTraining(), seed=0)
