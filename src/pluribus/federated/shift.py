"""Clients whose samples are of another kind, and not only of other classes: feature skew and concept skew.

A partition says who has which samples; a shift says what becomes of a client's own samples. The same shift goes over
the test samples for whoever asks how good a model is for that client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus.federated import options
from pluribus.federated.data import Dataset, images
from pluribus.federated.errors import SettingError
from pluribus.federated.seeding import generator

EXAMPLES = "none, rotate:90, tilt:15, scale:0.5, noise:0.3 or labels:2"


@dataclass(frozen=True)
class Shift:
    """What becomes of each client's own samples: ``Shift("rotate", 90)``.

    ===========  ==========================================================================================
    ``none``     Nothing.
    ``rotate``   Client i's samples are turned by ``i amount`` degrees: 90 makes four kinds, 180 two.
    ``tilt``     Each client's are turned by an angle of its own, uniform in ``+- amount`` degrees.
    ``scale``    Each client's are multiplied by a number of its own, ``exp(amount N(0, 1))``.
    ``noise``    Each client's get noise ``N(0, s^2)``, with an ``s`` of its own, uniform in [0, amount].
    ``labels``   ``amount`` groups of clients, in turn, who call the same things differently.
    ===========  ==========================================================================================

    Images are turned as `data.images.rotated` does (samples of m x m numbers are taken for images if m >= 4); other
    samples in the planes of their features 0 and 1, 2 and 3, and so on.

    Under ``labels`` group g calls class ``p[c]`` what group 0 calls ``p[c - g mod C]``, with one random order p of
    the C classes: so no two groups agree about any class. Group 0 keeps the labels as they are.

    Rotated groups and permuted labels are the tasks of clustered federated learning (Ghosh et al. 2020, IFCA; Sattler
    et al. 2020); noise of a client's own is the feature skew of Li et al. 2022 (NIID-Bench), there with levels in the
    order of the clients.
    """

    kind: str = "none"
    amount: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingError(
                f"no shift is called {self.kind!r}; there are {EXAMPLES}{options.did_you_mean(self.kind, KINDS)}"
            )
        if not (np.isfinite(self.amount) and KINDS[self.kind].good(self.amount)):
            raise SettingError(f"shift {self.kind} has {self.amount!r}; expected {KINDS[self.kind].expected}")

    def __str__(self) -> str:
        return self.kind if self.kind == "none" else f"{self.kind}:{options.brief(self.amount)}"

    def apply(self, dataset: Dataset, client: int, seed: int, part: int = 0) -> Dataset:
        """A client's samples as it sees them; the data set given is not modified.

        ``part`` numbers a client's data sets (its own samples 0, the test 1), so that they get noise of their own.
        Everything else is the same for all data sets of one client under one seed.
        """
        return KINDS[self.kind].make(self, dataset, client, (seed, part))

    def groups(self, clients: int) -> NDArray[np.int64]:
        """Which clients are of one kind: the number of each one's group, (clients,); all 0 where nothing shifts.

        Where each client is of its own kind these are the clients' numbers.
        """
        each = np.arange(clients)
        if self.kind == "none" or (self.kind != "labels" and self.amount == 0):
            return np.zeros(clients, dtype=np.int64)
        if self.kind == "labels":
            return each % int(self.amount)
        if self.kind == "rotate":
            return np.unique(np.round(each * self.amount % 360, 9) % 360, return_inverse=True)[1].astype(np.int64)
        return each


def parse(text: str) -> Shift:
    """The `Shift` that a text names: ``none``, or one of its kinds with an amount, such as ``rotate:90``."""
    kind, colon, amount = text.strip().partition(":")
    if kind in KINDS and bool(colon) == (kind == "none"):
        raise SettingError(f"shift {text!r} takes {'no' if kind == 'none' else 'one'} number; e.g. {EXAMPLES}")
    return Shift(kind, options.number(lambda x: True, "a number")(amount, f"shift {kind}") if colon else 0.0)


@dataclass(frozen=True)
class _Kind:
    """Which amounts are good, how messages call them, and how samples change under (shift, samples, client, draw)."""

    good: Callable[[float], bool]
    expected: str
    make: Callable[[Shift, Dataset, int, tuple[int, int]], Dataset]


def _rotate(shift: Shift, dataset: Dataset, client: int, draw: tuple[int, int]) -> Dataset:
    del draw
    return _turned(dataset, client * shift.amount % 360)


def _tilt(shift: Shift, dataset: Dataset, client: int, draw: tuple[int, int]) -> Dataset:
    return _turned(dataset, shift.amount * generator(draw[0], "shift.tilt", client).uniform(-1, 1))


def _scale(shift: Shift, dataset: Dataset, client: int, draw: tuple[int, int]) -> Dataset:
    factor = np.exp(shift.amount * generator(draw[0], "shift.scale", client).standard_normal())
    return _with(dataset, dataset.x * factor)


def _noise(shift: Shift, dataset: Dataset, client: int, draw: tuple[int, int]) -> Dataset:
    level = shift.amount * generator(draw[0], "shift.noise.level", client).random()
    rng = generator(draw[0], "shift.noise", client, draw[1])
    return _with(dataset, dataset.x + level * rng.standard_normal(dataset.x.shape))


def _labels(shift: Shift, dataset: Dataset, client: int, draw: tuple[int, int]) -> Dataset:
    classes, groups = dataset.n_classes, int(shift.amount)
    if groups > classes:
        raise SettingError(
            f"{shift}: {groups} groups cannot all disagree about {classes} classes; take {classes} at most"
        )
    order = generator(draw[0], "shift.labels").permutation(classes)
    place = np.argsort(order)
    return dataset.with_labels(order[(place[dataset.y] + client % groups) % classes])


KINDS: dict[str, _Kind] = {
    "none": _Kind(lambda x: x == 0, "no number", lambda shift, dataset, client, draw: dataset),
    "rotate": _Kind(lambda x: 0 <= x < 360, "degrees from 0 to below 360", _rotate),
    "tilt": _Kind(lambda x: 0 <= x <= 180, "degrees from 0 to 180", _tilt),
    "scale": _Kind(lambda x: 0 <= x <= 10, "a number from 0 to 10", _scale),
    "noise": _Kind(lambda x: x >= 0, "a number >= 0", _noise),
    "labels": _Kind(lambda x: x >= 1 and float(x).is_integer(), "a whole number >= 1", _labels),
}


def _with(dataset: Dataset, x: NDArray[Any]) -> Dataset:
    return replace(dataset, x=x.astype(dataset.x.dtype))


def _turned(dataset: Dataset, degrees: float) -> Dataset:
    if images.shape_of(dataset.x) is not None:
        return replace(dataset, x=images.rotated(dataset.x, degrees))
    flat = dataset.x.reshape(len(dataset), -1).astype(np.float64)
    pairs = flat.shape[1] // 2 * 2
    first, second = flat[:, 0:pairs:2].copy(), flat[:, 1:pairs:2].copy()
    cosine, sine = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    flat[:, 0:pairs:2], flat[:, 1:pairs:2] = cosine * first - sine * second, sine * first + cosine * second
    return _with(dataset, flat.reshape(dataset.x.shape))
