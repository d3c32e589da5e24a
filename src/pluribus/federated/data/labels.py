"""Wrong labels, by accident or on purpose."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.federated.errors import SettingError
from pluribus.federated.seeding import generator


def noisy_labels(y: ArrayLike, fraction: float, n_classes: int, seed: int) -> NDArray[np.int64]:
    """Labels of which ``round(fraction * n)`` are wrong: each of these is drawn among the other classes.

    So with ``fraction = 0.7`` exactly 70 % of the labels are wrong (symmetric noise). Needs two classes or
    more.
    """
    labels = np.array(y, dtype=np.int64)
    if not 0 <= fraction <= 1:
        raise SettingError(f"the fraction of noisy labels is {fraction!r}; expected a number in [0, 1]")
    if n_classes < 2:
        raise SettingError(f"a label can only be wrong among two classes or more; n_classes is {n_classes}")
    rng = generator(seed, "data.noisy_labels")
    chosen = rng.permutation(len(labels))[: round(fraction * len(labels))]
    labels[chosen] = (labels[chosen] + rng.integers(1, n_classes, size=len(chosen))) % n_classes
    return labels


def flip_labels(y: ArrayLike, n_classes: int) -> NDArray[np.int64]:
    """The label-flipping attack: ``y -> n_classes - 1 - y``."""
    return n_classes - 1 - np.asarray(y, dtype=np.int64)
