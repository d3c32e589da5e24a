import numpy as np
import pytest

from pluribus.core.errors import RuleError
from pluribus.federated.models import MLP, Batch, Softmax, cross_entropy
from pluribus.federated.server.control.pullback import (
    features,
    input_gradient,
    layer_inputs,
    logits,
    pull,
    pull_features,
)

MODELS = [Softmax(4, 3), MLP(4, 5, 3), MLP(4, 5, 3, activation="tanh")]


def made(model, n=6, seed=0):
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=value.shape) for name, value in model.init(0).items()}
    return params, rng.normal(size=(n, 4)), rng.normal(size=(n, 3))


def difference(function, array, step=1e-6):
    found = np.zeros_like(array)
    for place in np.ndindex(array.shape):
        ends = []
        for sign in (1, -1):
            moved = array.copy()
            moved[place] += sign * step
            ends.append(function(moved))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_slopes_against_differences(model):
    params, x, slope = made(model)
    pulled = pull(model, params, x, slope)
    np.testing.assert_allclose(
        pulled.samples, difference(lambda moved: (slope * model.logits(params, moved)).sum(), x), rtol=1e-6, atol=1e-8
    )
    for name in params:
        expected = difference(lambda v, n=name: (slope * model.logits(params | {n: v}, x)).sum(), params[name])
        np.testing.assert_allclose(pulled.params[name], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_models_own_gradient_comes_out_for_its_own_slope(model):
    params, x, _ = made(model)
    batch = Batch(x, np.array([0, 1, 2, 0, 1, 2]))
    _, slope = cross_entropy(np.array(logits(model, params, x)), batch)
    _, grads = model.loss_and_grad(params, batch)
    for name, value in pull(model, params, x, slope).params.items():
        np.testing.assert_allclose(value, grads[name], rtol=1e-10, atol=1e-12)

    def loss(moved):
        return model.loss_and_grad(params, Batch(moved, batch.y))[0]

    np.testing.assert_allclose(input_gradient(model, params, batch), difference(loss, x), rtol=1e-5, atol=1e-8)


def test_features_and_layer_inputs():
    model = MODELS[1]
    params, x, _ = made(model)
    rng = np.random.default_rng(3)
    slope = rng.normal(size=(6, 5))
    pulled = pull_features(model, params, x, slope)
    expected = difference(
        lambda v: (slope * features(model, params | {"hidden.weight": v}, x)).sum(), params["hidden.weight"]
    )
    np.testing.assert_allclose(pulled.params["hidden.weight"], expected, rtol=1e-6, atol=1e-8)
    inputs = layer_inputs(model, params, x)
    np.testing.assert_array_equal(inputs["hidden.weight"], x)
    np.testing.assert_allclose(
        inputs["output.weight"] @ params["output.weight"].T + params["output.bias"], model.logits(params, x)
    )


def test_torch_by_autograd():
    torch = pytest.importorskip("torch")
    from pluribus.federated.torch_model import TorchModel

    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
    theirs = TorchModel(module.double())
    params, x, slope = made(MODELS[1])
    renamed = {
        "0.weight": "hidden.weight",
        "0.bias": "hidden.bias",
        "3.weight": "output.weight",
        "3.bias": "output.bias",
    }
    pulled = pull(theirs, {new: params[old] for new, old in renamed.items()}, x, slope)
    ours = pull(MODELS[1], params, x, slope)
    np.testing.assert_allclose(pulled.samples, ours.samples, rtol=1e-10)
    for new, old in renamed.items():
        np.testing.assert_allclose(pulled.params[new], ours.params[old], rtol=1e-10)
    assert module.training


def test_an_unknown_model_is_told():
    class Other:
        pass

    with pytest.raises(RuleError, match=r"Other is no model that .*; take softmax, mlp:H or a TorchModel"):
        pull(Other(), {}, np.ones((1, 1)), np.ones((1, 2)))
    with pytest.raises(RuleError, match="take mlp:H"):
        features(Softmax(2, 2), {}, np.ones((1, 2)))
