"""Order statistics at each coordinate: a quantile, the least and the greatest value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import COORDINATEWISE
from pluribus.core.passes import TileRule, by_kernel
from pluribus.core.rule import RankRule, register
from pluribus.core.weights import uniform

_LAWS = COORDINATEWISE | {"replication", "monotone weight"}


def unit_interval(rule: str, name: str, value: Any) -> None:
    """Raise `RuleError` unless a parameter is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)) or not 0 <= value <= 1:
        raise RuleError(f"{rule}: {name} must be a number from 0 to 1, not {value!r}")


@register
@dataclass(frozen=True)
class Quantile(RankRule):
    """Coordinate-wise quantile: the value at which the share q of the weight lies at or below it.

    Where the share is reached exactly between two values, their mean; so q = 1/2 is the median, and a weight of two
    equals two copies (numpy's method ``averaged_inverted_cdf``). q = 0 is the least value and q = 1 the greatest.

    Parameters
    ----------
    q
        Level from 0 to 1.
    """

    q: float

    name = "quantile"
    laws = _LAWS | {"breakdown"}
    formula = "z_k = x_(j)k, the least with w_(1) + ... + w_(j) > q; the mean of it and its forerunner where that is q"
    source = "Hyndman and Fan, Sample Quantiles in Statistical Packages, The American Statistician 1996 (definition 2)"
    example = (("q", 0.25),)

    def __post_init__(self) -> None:
        unit_interval("Quantile", "q", self.q)

    def tile_rule(self, weights: Array) -> TileRule:
        """One rank or the mean of two; by weight where weights differ."""
        if uniform(weights):
            low, high = self._ranks(len(weights))
            return by_kernel(lambda kernel, views, out: kernel.middle(views, low, high, out))
        return by_kernel(lambda kernel, views, out: kernel.weighted_middle(views, weights, self.q, self.q, out))

    def _ranks(self, n: int) -> tuple[int, int]:
        """The ranks low..high-1 of n that are averaged."""
        level = self.q * n
        near = round(level)
        if abs(level - near) > 1e-12 * n:
            near = math.floor(level)
            return near, near + 1
        return max(near - 1, 0), min(near + 1, n)

    def levels(self, n: int) -> tuple[float, float]:
        """The quantile."""
        return self.q, self.q

    def tolerates(self, n: int) -> int:
        """As many as there are ranks beyond it, at the nearer end."""
        low, high = self._ranks(n)
        return min(low, n - high)


class _Extreme(RankRule):
    """A rule that sees no weights but those of zero."""

    laws = _LAWS

    def _rank(self, n: int) -> int:
        raise NotImplementedError

    def tile_rule(self, weights: Array) -> TileRule:
        """One rank."""
        rank = self._rank(len(weights))
        return by_kernel(lambda kernel, views, out: kernel.ranks(views, [rank], [out]))

    def levels(self, n: int) -> tuple[float, float]:
        """The middle of the stretch of one rank, where all weigh alike."""
        level = (self._rank(n) + 0.5) / n
        return level, level

    def tile_shares(self, tile: Array, weights: Array) -> Array:
        """All to one rank, whatever its weight; values that tie share alike."""
        return super().tile_shares(tile, np.full(len(tile), 1 / len(tile)))


@register
@dataclass(frozen=True)
class Maximum(_Extreme):
    """Coordinate-wise greatest value. Weights of zero leave contributors out; other weights make no difference."""

    name = "maximum"
    formula = "z_k = max_i x_ik"
    source = "folklore (max pooling)"

    def _rank(self, n: int) -> int:
        return n - 1


@register
@dataclass(frozen=True)
class Minimum(_Extreme):
    """Coordinate-wise least value. Weights of zero leave contributors out; other weights make no difference."""

    name = "minimum"
    formula = "z_k = min_i x_ik"
    source = "folklore (min pooling)"

    def _rank(self, n: int) -> int:
        return 0
