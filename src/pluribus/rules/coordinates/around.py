"""The mean of the values nearest to a centre, at each coordinate: shared by Meamed, Phocas and Bulyan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.kernels import plain
from pluribus.core.kernels.around import NEAR, weighted_around, window_shares
from pluribus.core.passes import TileRule, shares_in_order
from pluribus.core.rule import CoordinateRule
from pluribus.core.weights import uniform

_CACHE = 1 << 20  # bytes of the sorted rows of one piece: they stay in the second-level cache


def mean_around(
    views: Sequence[Array], weights: Array, centre: Array, keep: int, out: Array, *, kernel: Any = plain
) -> bool:
    """Mean of the ``keep`` values nearest to ``centre`` at each coordinate; of two as near, half of each.

    With unequal weights the share ``keep / n`` of the weight that lies nearest is averaged (a contributor may be kept
    in part), so ``keep`` counts contributors of mean weight.

    Parameters
    ----------
    views
        n one-dimensional arrays of T values, of one dtype (float32 or float64); never written.
    weights
        n positive weights of sum one.
    centre
        T numbers.
    keep
        How many values are averaged, 1 to n.
    out
        T numbers, float32 or float64, written.
    kernel
        Whose sorting is used (`pluribus.core.kernels`).

    Returns
    -------
    bool
        Whether all values were finite; if False, what ``out`` holds is unspecified.

    Notes
    -----
    The nearest values are a window of the sorted ones. The window may move from rank i to i + 1 while x_(i) is farther
    off than x_(i + keep), which is then taken in its stead: n - keep choices after sorting, and no second sorting.
    Distances that differ by some units in the last place of the values tie: so far off is a centre that was computed.
    """
    n = len(views)
    if not 1 <= keep <= n:
        raise RuleError(f"keep must lie in 1..n = {n}, the number of contributors, not {keep}")
    if not uniform(weights):
        return weighted_around(views, weights, centre, keep / n, out, kernel=kernel)
    size, dtype = len(views[0]), views[0].dtype
    length = max(_CACHE // (n * dtype.itemsize), 1 << 11)
    room = np.empty((n, min(size, length)), dtype)
    for start in range(0, size, length):
        piece = slice(start, start + length)
        rows = list(room[:, : len(out[piece])])
        if not kernel.ranks([view[piece] for view in views], range(n), rows):
            return False
        window_mean(rows, centre[piece], keep, out[piece], kernel)
    return True


def window_mean(rows: list[Array], centre: Array, keep: int, out: Array, kernel: Any = plain) -> None:
    """`mean_around` for values sorted along the first axis, n arrays (T,), which it overwrites."""
    half, stopped = np.empty(len(centre)), np.zeros(len(centre), dtype=bool)
    for i in range(len(rows) - keep):
        # Halved before they are added, so that no sum overflows.
        np.multiply(rows[i], 0.5, out=half)
        half += rows[i + keep] * 0.5
        slack = NEAR * np.abs(rows[i], dtype=np.float64) + NEAR * np.abs(centre)
        with np.errstate(over="ignore"):
            stopped |= half > centre + slack
            level = half >= centre - slack
        # x_(i) and x_(i + keep) take turns in one slot of the window; where it has stopped, who is there stays.
        tied = level & ~stopped
        if tied.any():
            np.copyto(rows[i + keep], half, where=tied, casting="same_kind")
        np.copyto(rows[i + keep], rows[i], where=stopped)
    kernel.middle(rows[len(rows) - keep :], 0, keep, out)


def around_shares(tile: Array, weights: Array, centre: Array, keep: int) -> Array:
    """What each value of a tile, shape (n, T), counts for in `mean_around`; equal values share by weight."""
    share = keep / len(tile)
    return shares_in_order(tile, weights, lambda values, held: window_shares(values, held, centre, share))


class MeanAround(CoordinateRule):
    """Rules that average the values nearest to what another rule of coordinates gives."""

    laws = frozenset({
        "anonymity", "anonymity at ties", "unanimity", "null", "translation", "scale", "betweenness", "breakdown",
        "deterministic",
    })  # fmt: skip

    @abstractmethod
    def centre(self) -> CoordinateRule:
        """The rule that gives the centre."""

    @abstractmethod
    def kept(self, n: int) -> int:
        """How many of n values are averaged."""

    def tile_rule(self, weights: Array) -> TileRule:
        """The centre, then the mean around it."""
        n = len(weights)
        self.check(n)
        middle, keep = self.centre().tile_rule(weights), self.kept(n)

        def combine(kernel: Any, views: Sequence[Array], out: Array) -> bool:
            centre = np.empty(len(out))
            return middle(kernel, views, centre) and mean_around(views, weights, centre, keep, out, kernel=kernel)

        return combine

    def tile_shares(self, tile: Array, weights: Array) -> Array:
        """By weight to the values that are averaged."""
        centre = np.empty(tile.shape[1])
        self.centre().tile_rule(weights)(plain, list(tile), centre)
        return around_shares(tile, weights, centre, self.kept(len(tile)))

    def breakdown_factor(self, n: int, d: int) -> float:
        """The centre lies among the honest values, and no value is kept that is farther off than all of these."""
        return 2 * float(np.sqrt(d))
