"""A labelled data set, and its stratified division."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.federated.errors import DataError, SettingError
from pluribus.federated.seeding import generator


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples ``x`` of shape ``(n, ...)``, real and finite, and labels ``y`` in ``0..n_classes-1``.

    ``class_names`` says what the user's file called the classes (default: their numbers). The arrays are
    read-only views of what was given. Raises ``DataError`` for anything that does not fit.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    n_classes: int
    name: str = "data"
    class_names: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        x, y = _real(self.x, self.name), _whole(self.y, self.name)
        if len(x) != len(y):
            raise DataError(f"{self.name}: {len(x)} samples but {len(y)} labels; expected one label a sample")
        if len(y) and (y.min() < 0 or y.max() >= self.n_classes):
            raise DataError(
                f"{self.name}: labels go from {y.min()} to {y.max()}; with n_classes={self.n_classes} "
                f"they must lie in 0..{self.n_classes - 1}"
            )
        names = self.class_names or tuple(str(c) for c in range(self.n_classes))
        if len(names) != self.n_classes:
            raise DataError(f"{self.name}: {len(names)} class names for {self.n_classes} classes")
        for attribute, value in (("x", _frozen(x)), ("y", _frozen(y)), ("class_names", names)):
            object.__setattr__(self, attribute, value)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        shape = self.x.shape[1:]
        return f"Dataset({self.name!r}: {len(self)} samples of shape {shape}, {self.n_classes} classes)"

    @property
    def n_features(self) -> int:
        """Numbers in one sample."""
        return int(np.prod(self.x.shape[1:], dtype=np.int64))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Samples of each class, shape ``(n_classes,)``."""
        return np.bincount(self.y, minlength=self.n_classes)

    def take(self, indices: ArrayLike) -> Dataset:
        """The samples at these positions, in this order (a copy)."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(self, x=self.x[chosen], y=self.y[chosen])

    def with_labels(self, y: ArrayLike) -> Dataset:
        """The same samples under other labels."""
        return replace(self, y=np.asarray(y))


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint parts of one data set: what clients share out, what measures, and the server's own samples."""

    train: Dataset
    test: Dataset
    proxy: Dataset

    def standardized(self) -> Split:
        """Each feature with mean 0 and standard deviation 1 on ``train``; constant features become 0.

        In a real federation the server would have to learn these two numbers a feature from its clients.
        """
        mean, spread = self.train.x.mean(axis=0), self.train.x.std(axis=0)
        spread[spread <= 1e-12 * np.abs(mean)] = np.inf

        def scaled(part: Dataset) -> Dataset:
            return replace(part, x=(part.x - mean) / spread)

        return Split(scaled(self.train), scaled(self.test), scaled(self.proxy))


def split(dataset: Dataset, seed: int, test: float = 0.2, proxy: int = 200) -> Split:
    """Divide a data set into train, test and proxy, each with the class shares of the whole.

    ``test`` is a fraction in (0, 1), or a whole number of samples; ``proxy`` is how many samples the server
    keeps for itself (0 for none), known to be clean. Classes get the nearest whole numbers to their shares
    (largest remainders); ``train`` keeps at least one sample of each class that is there.

    Raises ``SettingError`` when the parts do not leave every class a sample to train on.
    """
    n = len(dataset)
    n_test = round(test * n) if 0 < test < 1 else int(test)
    if n_test != test and not 0 < test < 1:
        raise SettingError(f"test is {test!r}; expected a fraction in (0, 1) or a whole number of samples")
    room = np.maximum(dataset.counts - 1, 0)
    if n_test < 1 or proxy < 0 or n_test + proxy > room.sum():
        raise SettingError(
            f"{dataset.name} has {n} samples in {np.count_nonzero(dataset.counts)} classes: test={test!r} "
            f"({n_test} samples) and proxy={proxy} must be at least 1 and 0, and leave each class one "
            f"sample to train on, so at most {room.sum()} together"
        )
    in_test = _shared_out(n_test, room)
    in_proxy = _shared_out(proxy, room - in_test)
    rng = generator(seed, "data.split")
    parts: tuple[list[NDArray[np.int64]], ...] = ([], [], [])
    for label in range(dataset.n_classes):
        order = rng.permutation(np.flatnonzero(dataset.y == label))
        cuts = np.cumsum([in_test[label], in_proxy[label]])
        for part, piece in zip(parts, np.split(order, cuts), strict=True):
            part.append(piece)
    test_part, proxy_part, train_part = (dataset.take(np.sort(np.concatenate(part))) for part in parts)
    return Split(train_part, test_part, proxy_part)


def _shared_out(total: int, room: NDArray[np.int64]) -> NDArray[np.int64]:
    """``total`` divided in proportion to ``room``, by largest remainders, and nowhere more than ``room``."""
    share, left = np.divmod(total * room, max(int(room.sum()), 1))
    share[np.argsort(-left, kind="stable")[: total - int(share.sum())]] += 1
    return share


def _real(x: ArrayLike, name: str) -> NDArray[Any]:
    array = np.asarray(x)
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise DataError(f"{name}: samples are of dtype {array.dtype}; expected real numbers")
    if array.ndim < 2:
        raise DataError(f"{name}: samples have shape {array.shape}; expected (n, features)")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise DataError(
            f"{name}: sample {where[0]}, feature {', '.join(map(str, where[1:]))} is {array[where]} (both "
            "count from 0); fill or drop such values first"
        )
    return array


def _whole(y: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(y)
    if array.ndim != 1:
        raise DataError(f"{name}: labels have shape {array.shape}; expected (n,)")
    if array.dtype.kind not in "iub":
        raise DataError(f"{name}: labels are of dtype {array.dtype}; expected whole numbers 0..n_classes-1")
    return array.astype(np.int64)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
