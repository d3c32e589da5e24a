"""The JAX adapter against the numpy network."""

import pickle
import sys

import numpy as np
import pytest

from pluribus.core.errors import MissingExtraError
from pluribus.federated.data import Dataset
from pluribus.federated.errors import DataError, SettingError
from pluribus.federated.jax_model import JaxModel
from pluribus.federated.models import MLP, Batch
from pluribus.federated.training import LocalTraining, train


def test_without_jax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pluribus\[jax\]'"):
        JaxModel(lambda params, x: x, {})


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="JAX is not installed; pip install 'pluribus[jax]'")


def network(params, x):
    import jax

    first, last = params["hidden"], params["output"]
    return jax.nn.relu(x @ first["weight"].T + first["bias"]) @ last["weight"].T + last["bias"]


def begun(key):
    import jax

    one, other = jax.random.split(key)
    return [{"w": jax.random.normal(one, (6, 4))}, (jax.random.normal(other, (4, 3)),)]


def listed(params, x):
    return x @ params[0]["w"] @ params[1][0]


def _start(dtype="float32"):
    flat = MLP(6, 5, 3, dtype=dtype).init(0)
    return {part: {kind: flat[f"{part}.{kind}"] for kind in ("weight", "bias")} for part in ("hidden", "output")}


def _data(n=23):
    rng = np.random.default_rng(0)
    return Dataset(rng.normal(size=(n, 6)), rng.integers(0, 3, size=n), 3)


@pytest.mark.parametrize(("weighted", "pad"), [(True, True), (False, True), (True, False)])
def test_it_agrees_with_the_numpy_network(jax, weighted, pad):
    plain, model, data = MLP(6, 5, 3, dtype="float32"), JaxModel(network, _start(), pad=pad), _data()
    params = model.init(7)
    assert params.keys() == plain.init(0).keys()
    batch = Batch(data.x, data.y, np.linspace(0.5, 2, 23) if weighted else None)
    (loss, grads), (wanted, slopes) = model.loss_and_grad(params, batch), plain.loss_and_grad(params, batch)
    assert loss == pytest.approx(wanted, rel=1e-6)
    assert grads.keys() == slopes.keys()
    for name, grad in grads.items():
        assert grad.dtype == np.float32
        assert grad.flags.writeable
        np.testing.assert_allclose(grad, slopes[name], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(model.predict(params, data.x), plain.predict(params, data.x))
    np.testing.assert_allclose(model.probabilities(params, data.x), plain.probabilities(params, data.x), atol=1e-6)
    how = LocalTraining(epochs=3, batch_size=5, momentum=0.9, proximal_mu=0.1)
    one, other = train(plain, params, data, how, seed=1), train(model, params, data, how, seed=1)
    for name, value in one.params.items():
        np.testing.assert_allclose(other.params[name], value, rtol=0, atol=1e-5)


def test_a_start_may_be_a_function_and_names_are_paths(jax):
    model = JaxModel(listed, begun)
    one, again, other = model.init(0), model.init(0), model.init(1)
    assert list(one) == ["0.w", "1.0"]
    for name, value in one.items():
        np.testing.assert_array_equal(value, again[name])
        assert (value != other[name]).any()
        assert value.flags.writeable
    x = _data().x
    np.testing.assert_allclose(model.logits(one, x), x @ one["0.w"] @ one["1.0"], rtol=1e-4, atol=1e-5)


def test_counters_pass_through(jax):
    model = JaxModel(lambda params, x: x @ params["w"] + params["calls"], {"w": np.ones((6, 3), "f4"), "calls": 3})
    params, data = model.init(0), _data()
    _, grads = model.loss_and_grad(params, Batch(data.x, data.y))
    assert set(grads) == {"w"}
    result = train(model, params, data, LocalTraining(), 0)
    assert result.params["calls"] == 3
    assert result.params["calls"].dtype == params["calls"].dtype


def test_clients_of_many_sizes_share_what_is_compiled(jax):
    traced = []

    def counted(params, x):
        traced.append(x.shape)
        return x @ params["w"]

    model = JaxModel(counted, {"w": np.zeros((6, 3), "f4")})
    for n in range(9, 17):
        model.loss_and_grad(model.init(0), Batch(_data(n).x, _data(n).y))
    assert set(traced) == {(16, 6)}


def test_it_travels_without_what_is_compiled(jax):
    model, data = JaxModel(network, _start()), _data()
    params = model.init(0)
    batch = Batch(data.x, data.y)
    model.loss_and_grad(params, batch)
    other = pickle.loads(pickle.dumps(model))
    assert other.loss_and_grad(params, batch)[0] == model.loss_and_grad(params, batch)[0]


def test_a_loss_of_ones_own(jax):
    model, data = JaxModel(network, _start(), loss=lambda scores, labels: scores[:, 0] ** 2), _data()
    params = model.init(0)
    loss, _ = model.loss_and_grad(params, Batch(data.x, data.y))
    assert loss == pytest.approx((model.logits(params, data.x)[:, 0] ** 2).mean(), rel=1e-5)


def test_what_cannot_work_is_told(jax):
    model, data = JaxModel(network, _start()), _data()
    params = model.init(0)
    with pytest.raises(SettingError, match="jax_enable_x64"):
        JaxModel(network, _start("float64"))
    with pytest.raises(SettingError, match="bfloat16"):
        JaxModel(network, {"w": jax.numpy.zeros(3, "bfloat16")})
    with pytest.raises(SettingError, match="nothing to train"):
        JaxModel(network, {"w": 3})
    with pytest.raises(SettingError, match=r"called a\.b"):
        JaxModel(network, {"a": {"b": np.zeros(2, "f4")}, "a.b": np.zeros(2, "f4")})
    with pytest.raises(SettingError, match=r"hidden\.bias"):
        model.predict({"w": np.zeros(3)}, data.x)
    with pytest.raises(DataError, match="from 0 to 3; the model knows 0 to 2"):
        model.loss_and_grad(params, Batch(data.x, np.arange(23) % 4))
    with pytest.raises(DataError, match="one label a sample"):
        model.loss_and_grad(params, Batch(data.x, data.y[:5]))
