"""Models by one line of text."""

import sys

import numpy as np
import pytest

from pluribus.core.errors import MissingExtraError
from pluribus.federated.data import Dataset, digits, split
from pluribus.federated.errors import SettingError
from pluribus.federated.model_text import make_model, model_text, parse_model
from pluribus.federated.models import MLP, Softmax
from pluribus.federated.training import LocalTraining

DATA = Dataset(np.zeros((6, 8, 8)), np.arange(6) % 3, 3)


@pytest.mark.parametrize(
    ("text", "kind", "size", "back"),
    [
        ("softmax", "softmax", 0, "softmax"),
        (" mlp ", "mlp", 64, "mlp:64"),
        ("mlp:7", "mlp", 7, "mlp:7"),
        ("cnn", "cnn", 8, "cnn:8"),
        ("cnn:4", "cnn", 4, "cnn:4"),
    ],
)
def test_texts_are_read_and_written(text, kind, size, back):
    assert parse_model(text) == (kind, size)
    assert model_text(kind, size) == back
    assert parse_model(back) == (kind, size)


@pytest.mark.parametrize("text", ["", "mlp:", "mlp:0", "mlp:-1", "mlp:1.5", "softmax:3", "softmax:", "cnn:x", "resnet"])
def test_what_is_no_model_is_told(text):
    with pytest.raises(SettingError, match=r"is no model; expected softmax, mlp or mlp:HIDDEN"):
        parse_model(text)


def test_a_near_word_is_offered():
    with pytest.raises(SettingError, match=r"did you mean cnn\?"):
        parse_model("cmn")


def test_models_are_made_for_the_data():
    assert make_model("softmax", DATA) == Softmax(64, 3, dtype="float32")
    assert make_model("mlp:5", DATA, "float64") == MLP(64, 5, 3)
    with pytest.raises(SettingError, match=r"cnn takes square grey images.*have 65 numbers. Take mlp:HIDDEN"):
        make_model("cnn", Dataset(np.zeros((6, 65)), np.arange(6) % 3, 3))


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pluribus\[torch\]"):
        make_model("cnn", DATA)


def test_the_cnn_learns_digits():
    pytest.importorskip("torch", reason="torch is not installed; pip install 'pluribus[torch]'")
    parts = split(digits(), seed=0)
    model = make_model("cnn:4", parts.train)
    params = model.init(0)
    assert {name: value.shape for name, value in params.items()} == {
        "first.weight": (4, 1, 5, 5),
        "first.bias": (4,),
        "second.weight": (8, 4, 3, 3),
        "second.bias": (8,),
        "output.weight": (10, 32),
        "output.bias": (10,),
    }
    result = model.fit(params, parts.train, LocalTraining(epochs=8, lr=0.1, momentum=0.5), 0)
    assert (model.predict(result.params, parts.test.x) == parts.test.y).mean() > 0.9


def test_the_cnn_is_what_its_page_says():
    """By numpy alone, without a convolution of anybody's."""
    pytest.importorskip("torch", reason="torch is not installed; pip install 'pluribus[torch]'")
    data = digits()
    model = make_model("cnn:2", data, "float64")
    params, x = model.init(1), data.x[:5]

    def layer(maps, name, pad):
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        wide = np.pad(maps, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(wide, weight.shape[2:], axis=(2, 3))
        made = np.maximum(np.einsum("nchwij,ocij->nohw", windows, weight) + bias[:, None, None], 0)
        n, c, h, w = made.shape
        return made.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))

    maps = layer(layer(x.reshape(5, 1, 8, 8), "first", 2), "second", 1)
    scores = maps.reshape(5, -1) @ params["output.weight"].T + params["output.bias"]
    np.testing.assert_allclose(model.logits(params, x), scores, rtol=0, atol=1e-12)
