"""GradDrop: at each coordinate one sign wins, by lot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import SYMMETRIC
from pluribus.core.parameters import flag
from pluribus.core.passes import Placed, TileRule
from pluribus.core.rule import CoordinateRule, positive, register, whole_number

_DRAWS = 4  # numbers that one step of Philox's counter gives
_UNIT = 2.0**-53


def lots(seed: int, first: int, count: int) -> Array:
    """Uniform numbers in [0, 1) of coordinates ``first`` to ``first + count``: the same whatever tile they lie in.

    Philox is a function of a counter, so the number of a coordinate is found without drawing those before it.
    """
    skip = first % _DRAWS
    raw = np.random.Philox(key=seed, counter=first // _DRAWS).random_raw(skip + count)[skip:]
    return np.asarray((raw >> np.uint64(11)) * _UNIT)


@register
@dataclass(frozen=True)
class GradDrop(CoordinateRule):
    """At each coordinate the SUM of the positive values, or of the negative ones, one of the two drawn by lot.

    The positive ones win with probability ``P = (1 + sum x / sum |x|) / 2``. A sum, as published: n equal contributions
    give n times that; ``mean=True`` divides by n. Given weights scale the values (relative to their mean) before signs
    are counted, so with ``mean=True`` a weight of two equals two copies. ``result.weights`` are expected shares.

    The lot of a coordinate depends on the seed and on its place alone, not on tiles, threads or engines. Compared with
    torchjd 0.18 on the same lots.

    Parameters
    ----------
    seed
        Of the lots, non-negative, below 2^128. The same seed gives the same lots; change it every step.
    leak
        In [0, 1]: this share of the losing values stays, of all contributors alike.
    mean
        Divide the sum by n.
    """

    seed: int = 0
    leak: float = 0.0
    mean: bool = False

    name = "graddrop"
    laws = SYMMETRIC | {"scale"}
    formula = "z_k = sum of the x_ik of one sign; positive with probability (1 + sum_i x_ik / sum_i |x_ik|) / 2"
    source = "Chen et al., Just Pick a Sign: Gradient Sign Dropout, NeurIPS 2020"

    def __post_init__(self) -> None:
        whole_number("GradDrop", "seed", self.seed, 0)
        flag("GradDrop", "mean", self.mean)
        if self.seed >= 1 << 128:
            raise RuleError("GradDrop: seed must be below 2^128")
        positive("GradDrop", "leak", self.leak, zero=True)
        if self.leak > 1:
            raise RuleError(f"GradDrop: leak must lie in [0, 1], not {self.leak!r}")

    def tile_rule(self, weights: Array) -> Placed:
        """Sums of either sign in float64, then one of them."""
        scales = self._scales(weights)

        def at(first: int) -> TileRule:
            def rule(kernel: Any, views: Sequence[Array], out: Array) -> bool:
                up, down = np.zeros(out.size), np.zeros(out.size)
                with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told at the end
                    for view, scale in zip(views, scales, strict=True):
                        value = np.multiply(view, scale, dtype=np.float64)
                        up += np.maximum(value, 0.0)
                        down += np.minimum(value, 0.0)
                    size = up - down
                    chance = np.divide(up, size, out=np.zeros(out.size), where=size > 0)
                    wins = chance > lots(self.seed, first, out.size)
                    kept = np.where(wins, up, down)
                    out[...] = kept + self.leak * np.where(wins, down, up) if self.leak else kept
                return bool(kernel.finite(size))

            return rule

        return Placed(at)

    def tile_shares(self, tile: Array, weights: Array) -> Array:
        """What each value counts for on average over lots, shape (n, T)."""
        up, down = weights @ np.maximum(tile, 0.0), weights @ np.minimum(tile, 0.0)
        size = up - down
        chance = np.divide(up, size, out=np.full(size.shape, 0.5), where=size > 0)
        kept = np.where(tile > 0, chance, np.where(tile < 0, 1.0 - chance, 0.5))
        return np.asarray((self.leak + (1 - self.leak) * kept) * self._scales(weights)[:, None])

    def _scales(self, weights: Array) -> Array:
        return weights if self.mean else weights * len(weights)
