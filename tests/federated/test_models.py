"""Gradients against finite differences, softmax against its definition, and purity."""

import numpy as np
import pytest

from pluribus.federated.errors import DataError, SettingError
from pluribus.federated.models import MLP, Batch, Softmax, softmax

MODELS = [
    Softmax(5, 3),
    Softmax(5, 3, l2=0.1),
    MLP(5, 4, 3),
    MLP(5, 4, 3, activation="tanh", l2=0.1),
]


def _problem(model, n=7, weighted=False, seed=0):
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=value.shape) for name, value in model.init(0).items()}
    weight = rng.uniform(0.1, 2, size=n) if weighted else None
    return params, Batch(rng.normal(size=(n, 5)), rng.integers(0, 3, size=n), weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_gradient_is_that_of_finite_differences(model, weighted):
    params, batch = _problem(model, weighted=weighted)
    _, grads = model.loss_and_grad(params, batch)
    assert grads.keys() == params.keys()
    step = 1e-6
    for name, value in params.items():
        for where in np.ndindex(value.shape):
            ends = []
            for sign in (1, -1):
                moved = value.copy()
                moved[where] += sign * step
                ends.append(model.loss_and_grad(params | {name: moved}, batch)[0])
            assert grads[name][where] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_loss_is_the_mean_of_minus_log_probability(model):
    params, batch = _problem(model)
    each = -np.log(model.probabilities(params, batch.x)[np.arange(7), batch.y])
    decay = model.l2 / 2 * sum((value**2).sum() for value in params.values() if value.ndim == 2)
    assert model.loss_and_grad(params, batch)[0] == pytest.approx(each.mean() + decay, rel=1e-12)
    weight = np.arange(7.0)
    weighted = model.loss_and_grad(params, Batch(batch.x, batch.y, weight))[0]
    assert weighted == pytest.approx(each @ weight / weight.sum() + decay, rel=1e-12)


def test_a_sample_of_weight_zero_is_absent_and_of_weight_two_is_two():
    model = MODELS[2]
    params, batch = _problem(model)
    pick = [1, 2, 2, 3, 4, 5, 6]
    _, counted = model.loss_and_grad(params, Batch(batch.x, batch.y, np.array([0, 1, 2, 1, 1, 1, 1])))
    _, copied = model.loss_and_grad(params, Batch(batch.x[pick], batch.y[pick]))
    for name, grad in copied.items():
        np.testing.assert_allclose(counted[name], grad, rtol=0, atol=1e-14)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_nothing_given_is_modified_and_nothing_returned_is_shared(model):
    params, batch = _problem(model)
    kept = {name: value.copy() for name, value in params.items()}, batch.x.copy(), batch.y.copy()
    for array in (*params.values(), batch.x, batch.y):
        array.flags.writeable = False
    _, grads = model.loss_and_grad(params, batch)
    model.predict(params, batch.x)
    for grad in grads.values():
        grad[...] = 1
    for name, value in params.items():
        np.testing.assert_array_equal(value, kept[0][name])
    np.testing.assert_array_equal(batch.x, kept[1])
    np.testing.assert_array_equal(batch.y, kept[2])


def test_huge_scores_neither_overflow_nor_lose_the_answer():
    model = Softmax(2, 3)
    params = {"output.weight": np.array([[1e4, 0], [0, 1e4], [-1e4, 0]]), "output.bias": np.zeros(3)}
    loss, grads = model.loss_and_grad(params, Batch(np.array([[1.0, 0.0]]), np.array([2])))
    assert loss == pytest.approx(2e4)
    assert all(np.isfinite(grad).all() for grad in grads.values())
    np.testing.assert_array_equal(softmax(np.array([[1e4, 0.0], [-1e4, -1e4]])), [[1, 0], [0.5, 0.5]])


def test_parameters_that_diverged_give_nan_without_a_warning():
    model = MLP(5, 4, 3)
    params, batch = _problem(model)
    params["hidden.weight"][:] = np.inf
    loss, _ = model.loss_and_grad(params, batch)
    assert np.isnan(loss)
    assert model.predict(params, batch.x).shape == (7,)


def test_predict_is_the_most_probable_class():
    for model in MODELS:
        params, batch = _problem(model, n=50)
        share = model.probabilities(params, batch.x)
        np.testing.assert_allclose(share.sum(axis=1), 1, atol=1e-15)
        np.testing.assert_array_equal(model.predict(params, batch.x), share.argmax(axis=1))


def test_init_depends_on_the_seed_alone():
    model = MLP(40, 300, 10)
    one, again, other = model.init(1), model.init(1), model.init(2)
    for name in one:
        np.testing.assert_array_equal(one[name], again[name])
    assert (one["hidden.weight"] != other["hidden.weight"]).all()
    assert one["hidden.weight"].std() == pytest.approx(np.sqrt(2 / 40), rel=0.05)
    assert one["output.weight"].std() == pytest.approx(np.sqrt(1 / 300), rel=0.05)
    assert not any(value.any() for value in Softmax(3, 2).init(7).values())


def test_float32_models_stay_float32_on_float64_samples():
    for model in (Softmax(5, 3, dtype="float32"), MLP(5, 4, 3, dtype="float32")):
        params, batch = model.init(0), _problem(model)[1]
        _, grads = model.loss_and_grad(params, batch)
        assert {value.dtype.name for value in (*params.values(), *grads.values())} == {"float32"}
        assert model.probabilities(params, batch.x).dtype == np.float32


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (Batch(np.zeros((2, 4)), np.zeros(2, dtype=int)), r"\(2, 4\).*\(n, 5\)"),
        (Batch(np.zeros((2, 5)), np.zeros(3, dtype=int)), "2 samples"),
        (Batch(np.zeros((0, 5)), np.zeros(0, dtype=int)), "0 samples"),
        (Batch(np.zeros((2, 5)), np.array([0, 3])), "from 0 to 3.*0 to 2"),
        (Batch(np.zeros((2, 5)), np.array([-1, 1])), "from -1 to 1"),
        (Batch(np.zeros((2, 5)), np.array([0, 1]), np.array([1.0, -1.0])), "weight"),
        (Batch(np.zeros((2, 5)), np.array([0, 1]), np.zeros(2)), "weight"),
        (Batch(np.zeros((2, 5)), np.array([0, 1]), np.ones(3)), "weight"),
    ],
)
def test_bad_batches_are_told(batch, words):
    model = MLP(5, 4, 3)
    with pytest.raises(DataError, match=words):
        model.loss_and_grad(model.init(0), batch)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Softmax(0, 3), "n_features is 0"),
        (lambda: Softmax(5, 1), "n_classes is 1"),
        (lambda: MLP(5, 0, 3), "hidden is 0"),
        (lambda: MLP(5, 4, 3, activation="gelu"), "relu, tanh"),
        (lambda: MLP(5, 4, 3, l2=-1), "l2"),
        (lambda: Softmax(5, 3, dtype="float16"), "float32, float64"),
        (lambda: MLP(5, 4, 3).init(-1), "seed"),
        (lambda: MLP(5, 4, 3).init(0.5), "seed"),
    ],
)
def test_bad_settings_are_told(make, words):
    with pytest.raises(SettingError, match=words):
        make()
