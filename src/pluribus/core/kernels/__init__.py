"""The few loops that see every value: order statistics, sums and inner products of a tile of coordinates.

Two modules offer the same functions with the same bits: `plain` (numpy alone) and `compiled` (numba, the ``fast``
extra).  `select` picks one; nothing imports numba before a problem is large enough to repay it.  A third, `tensors`,
offers them for torch tensors on any device, with the same bits on the CPU; `pluribus.core.medium` picks it.

One loop is apart, as its sums have an order of their own: `products`, inner products of few rows. So a Gram matrix of
`WORTH_COMPILING` values and more may differ in its last bits with numba and without; nothing else does.

The environment variable ``PLURIBUS_KERNELS`` overrides the choice: ``plain``, ``compiled`` or ``auto`` (the default).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.core.errors import MissingExtraError, RuleError, install
from pluribus.core.kernels import plain
from pluribus.core.kernels.tiles import Floats

__all__ = ["Kernels", "backend", "select", "tile_size"]

WORTH_COMPILING = 1 << 25
"""Values (n times the coordinates) from which numba is used.

Importing it and loading its cache takes 0.5 s (3 s the first time ever); at this size one pass then takes some 20 ms
less, so a job of some tens of rounds repays it.
"""


class Kernels(Protocol):
    """What `plain`, `compiled` and `tensors` offer; the functions are described in `plain`."""

    NAME: str

    def middle(self, views: Sequence[Floats], low: int, high: int, out: Floats) -> bool:
        """Mean of the ranks low..high-1 at every coordinate."""

    def ranks(self, views: Sequence[Floats], wanted_ranks: Sequence[int], outs: Sequence[Floats]) -> bool:
        """One order statistic an output."""

    def weighted_sum(self, views: Sequence[Floats], weights: ArrayLike, out: Floats) -> bool:
        """Sum of weights[i] * views[i] in float64, rounded once."""

    def weighted_middle(self, views: Sequence[Floats], weights: Any, low: float, high: float, out: Floats) -> bool:
        """Mean of the values between two levels of cumulative weight, at every coordinate."""

    def gram(self, views: Sequence[Floats]) -> NDArray[np.float64]:
        """Inner products of the views."""

    def cross(self, views_a: Sequence[Floats], views_b: Sequence[Floats]) -> NDArray[np.float64]:
        """Inner products of two sets of views."""

    def norms(self, views: Sequence[Floats]) -> NDArray[np.float64]:
        """Squared norms of the views."""

    def finite(self, view: Floats) -> bool:
        """Whether all values of one view are finite."""


def select(n_values: int) -> Kernels:
    """Return the kernels for a whole problem of ``n_values`` values.

    Raises
    ------
    MissingExtraError
        ``PLURIBUS_KERNELS=compiled`` and numba cannot be imported.
    RuleError
        ``PLURIBUS_KERNELS`` is none of ``auto``, ``plain``, ``compiled``.

    """
    wanted = os.environ.get("PLURIBUS_KERNELS") or "auto"
    if wanted not in ("auto", "plain", "compiled"):
        raise RuleError(f"PLURIBUS_KERNELS is auto, plain or compiled, not {wanted!r}")
    if wanted == "plain" or (wanted == "auto" and n_values < WORTH_COMPILING):
        return plain
    kernels = _compiled()
    if kernels is None and wanted == "compiled":
        raise MissingExtraError(f"PLURIBUS_KERNELS=compiled needs numba, which cannot be imported: {install('fast')}")
    return kernels or plain


def backend() -> str:
    """Return the name of the kernels that a large problem gets: ``compiled`` or ``plain``."""
    return select(WORTH_COMPILING).NAME


def tile_size(n: int, itemsize: int) -> int:
    """Return how many coordinates of ``n`` contributors make a good tile, a power of two.

    Long enough (1 MiB a view) that the cost of a call does not show; short enough that a caller who must convert the
    views holds at most 32 MiB.  The kernels themselves walk through a tile of any length in pieces that fit the cache.
    """
    longest = min((1 << 20) // itemsize, (1 << 25) // (max(n, 1) * itemsize))
    return max(1 << 11, 1 << max(longest, 1).bit_length() - 1)


@lru_cache(maxsize=1)
def _compiled() -> Kernels | None:
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        from pluribus.core.kernels import compiled
    except ImportError:  # numba is there but not for this numpy
        return None
    return compiled
