"""Models by one line of text: ``softmax``, ``mlp:64``, ``cnn:8``."""

from __future__ import annotations

import math

from pluribus.federated.data import Dataset
from pluribus.federated.errors import SettingError
from pluribus.federated.models import MLP, Model, Softmax
from pluribus.federated.options import did_you_mean

SIZES = {"softmax": 0, "mlp": 64, "cnn": 8}
"""What there is, and its size unless told: hidden units, channels of the first convolution."""

EXPECTED = "softmax, mlp or mlp:HIDDEN (mlp:64), cnn or cnn:CHANNELS (cnn:8, needs torch)"


def parse_model(text: str) -> tuple[str, int]:
    """``"mlp:64"`` as ``("mlp", 64)``, ``"softmax"`` as ``("softmax", 0)``."""
    kind, colon, size = text.strip().partition(":")
    if kind in SIZES and not colon:
        return kind, SIZES[kind]
    if SIZES.get(kind) and size.isdecimal() and int(size) >= 1:
        return kind, int(size)
    raise SettingError(f"{text!r} is no model; expected {EXPECTED}{did_you_mean(kind, SIZES)}")


def model_text(kind: str, size: int) -> str:
    """The text that `parse_model` reads."""
    return f"{kind}:{size}" if size else kind


def make_model(text: str, dataset: Dataset, dtype: str = "float32") -> Model:
    """The model that a text names, for samples like the data set's.

    Raises ``SettingError`` for a text that names none and for a ``cnn`` of samples that are no square images, and
    ``MissingExtraError`` for a ``cnn`` where torch is not installed.
    """
    kind, size = parse_model(text)
    if kind == "softmax":
        return Softmax(dataset.n_features, dataset.n_classes, dtype=dtype)
    if kind == "mlp":
        return MLP(dataset.n_features, size, dataset.n_classes, dtype=dtype)
    side = math.isqrt(dataset.n_features)
    if side * side != dataset.n_features or side < 4:
        raise SettingError(
            f"cnn takes square grey images of 4 x 4 pixels or more; samples of {dataset.name} have "
            f"{dataset.n_features} numbers. Take mlp:HIDDEN"
        )
    from pluribus.core.errors import require

    torch = require("torch", "torch")
    from pluribus.federated.torch_model import TorchModel
    from pluribus.federated.torch_networks import SmallCNN

    return TorchModel(SmallCNN(side, dataset.n_classes, size).to(getattr(torch, dtype)))
