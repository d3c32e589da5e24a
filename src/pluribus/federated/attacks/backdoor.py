"""A patch that opens a back door: samples that carry it are to be taken for one class, all others are left alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus.federated.attacks.trees import Trees, mapped
from pluribus.federated.data import Dataset, images
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Tree


@dataclass(frozen=True)
class Trigger:
    """The last rows and columns of an image (or the last features) set to ``value``, and the class that it stands for.

    ``size`` is how many of each; None is a tenth of the image's side, 2 pixels at least (2 of 8, 3 of 28), or a tenth
    of the features. Samples of m x m numbers are taken for images if m >= 4.
    """

    target: int = 0
    value: float = 1.0
    size: int | None = None

    def stamped(self, x: NDArray[Any]) -> NDArray[Any]:
        """A copy of samples (n, ...) that all carry the patch."""
        copied = np.array(x)
        found = images.shape_of(copied)
        if found is None:
            flat = copied.reshape(len(copied), -1)
            flat[:, flat.shape[1] - self._size(flat.shape[1], 1) :] = self.value
        else:
            side = self._size(min(found[1:]), 2)
            copied.reshape(len(copied), *found)[:, :, -side:, -side:] = self.value
        return copied

    def _size(self, room: int, least: int) -> int:
        size = max(round(room / 10), min(least, room)) if self.size is None else self.size
        if not 1 <= size <= room:
            raise SettingError(f"a trigger of size {size} does not fit; expected 1 to {room}")
        return size


def poisoned(dataset: Dataset, trigger: Trigger | None = None) -> Dataset:
    """What an attacker trains on: every second sample carries the patch and the target's label, the rest is clean."""
    trigger = _checked(trigger, dataset)
    x, y = np.array(dataset.x), np.array(dataset.y)
    x[::2] = trigger.stamped(x[::2])
    y[::2] = trigger.target
    return replace(dataset, x=x, y=y)


def backdoor_test(dataset: Dataset, trigger: Trigger | None = None) -> Dataset:
    """Samples of all other classes with the patch, labelled as the target: accuracy on them is the attack's success."""
    trigger = _checked(trigger, dataset)
    others = dataset.take(np.flatnonzero(dataset.y != trigger.target))
    return replace(others, x=trigger.stamped(others.x), y=np.full(len(others), trigger.target))


def boosted(own: Trees, boost: float = 1.0) -> list[Tree]:
    """Each attacker sends ``boost`` times its own update.

    With ``boost = n / (f server_lr)`` a plain mean over n clients becomes what the f attackers want (model
    replacement; Bagdasaryan et al. 2020).
    """
    return [mapped(tree, lambda value: boost * value) for tree in own]


def _checked(trigger: Trigger | None, dataset: Dataset) -> Trigger:
    trigger = trigger or Trigger()
    if not 0 <= trigger.target < dataset.n_classes:
        raise SettingError(
            f"a trigger for class {trigger.target}; {dataset.name} has classes 0..{dataset.n_classes - 1}"
        )
    return trigger
