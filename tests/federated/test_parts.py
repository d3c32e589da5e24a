"""Features and head put together again are the model, and both pull as finite differences say."""

import subprocess
import sys

import numpy as np
import pytest

from pluribus.core.errors import RuleError
from pluribus.federated.models import MLP, Softmax
from pluribus.federated.parts import class_means, head_names, parts_of

MODELS = ["softmax", "relu", "tanh", "torch"]


def made(kind):
    if kind == "softmax":
        return Softmax(5, 3)
    if kind != "torch":
        return MLP(5, 4, 3, activation=kind)
    torch = pytest.importorskip("torch")
    from pluribus.federated.torch_model import TorchModel

    layers = torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)
    return TorchModel(torch.nn.Sequential(*layers).double())


@pytest.fixture(params=MODELS)
def case(request):
    model = made(request.param)
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=value.shape) for name, value in model.init(0).items()}
    return model, parts_of(model), params, rng.normal(size=(7, 5)), rng


def test_the_head_of_the_features_is_the_model(case):
    model, parts, params, x, _ = case
    h = parts.features(params, x)
    np.testing.assert_allclose(parts.head(params, h), model.logits(params, x), rtol=1e-12)
    assert params[parts.weight].shape == (3, h.shape[1])
    assert head_names(params, "it") == (parts.weight, parts.bias)


def difference(function, tree, name, place, step=1e-6):
    ends = []
    for sign in (1, -1):
        moved = {key: value.copy() for key, value in tree.items()}
        moved[name][place] += sign * step
        ends.append(function(moved))
    return (ends[0] - ends[1]) / (2 * step)


def test_slopes_are_those_of_finite_differences(case):
    _, parts, params, x, rng = case
    h = parts.features(params, x)
    slope, above = rng.normal(size=h.shape), rng.normal(size=(7, 3))
    body, top = parts.pull_features(params, x, slope), parts.pull_head(params, h, above)
    assert {*body.params, *top.params} == set(params)
    everything = {**params, "x": x, "h": h}

    def lower(tree):
        return float((slope * parts.features(tree, tree["x"])).sum())

    def upper(tree):
        return float((above * parts.head(tree, tree["h"])).sum())

    for function, found in ((lower, {**body.params, "x": body.samples}), (upper, {**top.params, "h": top.samples})):
        for name, value in found.items():
            place = tuple(int(rng.integers(size)) for size in value.shape)
            assert value[place] == pytest.approx(difference(function, everything, name, place), rel=1e-5, abs=1e-7)


def test_class_means():
    h, y = np.arange(8.0).reshape(4, 2), np.array([2, 0, 2, 2])
    means, counts = class_means(h, y, 4)
    np.testing.assert_array_equal(counts, [1, 0, 3, 0])
    np.testing.assert_allclose(means, [h[1], [0, 0], h[[0, 2, 3]].mean(axis=0), [0, 0]])


def test_what_has_no_known_parts_is_told():
    with pytest.raises(RuleError, match=r"object is no model .*take softmax, mlp:H"):
        parts_of(object())
    with pytest.raises(RuleError, match="fedx needs a linear head"):
        head_names({"w": np.zeros(3)}, "fedx")


def test_it_can_be_imported_first():
    subprocess.run([sys.executable, "-c", "import pluribus.federated.parts"], check=True)
