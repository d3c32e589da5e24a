"""Means of the values nearest to the median, at each coordinate."""

from __future__ import annotations

from dataclasses import dataclass

from pluribus.core.errors import RuleError
from pluribus.core.rule import CoordinateRule, register, whole_number
from pluribus.rules.coordinates.around import MeanAround
from pluribus.rules.coordinates.median import Median


@register
@dataclass(frozen=True)
class Meamed(MeanAround):
    """Coordinate-wise mean of the n - f values nearest to the median; of two as near, half of each.

    With unequal weights the weighted median, and the share (n - f)/n of the weight that lies nearest to it, so f counts
    contributors of mean weight. Up to f < n/2 contributors, whatever they send, move a coordinate no farther than twice
    the range of the others. Compared with byzfl 0.0.11 (``Meamed``) on random rows.

    Parameters
    ----------
    f
        How many to leave out at each coordinate, at least 1; n >= 2f + 1.
    """

    f: int

    name = "meamed"
    formula = "z_k = mean of the n-f of x_1k ... x_nk nearest to their median"
    source = "Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018"
    example = (("f", 1),)

    def __post_init__(self) -> None:
        if isinstance(self.f, int) and self.f == 0:
            raise RuleError("Meamed(f=0) would leave nothing out; use Mean, or leave out at least one")
        whole_number("Meamed", "f", self.f, 1)

    @property
    def least(self) -> int:
        """An honest majority."""
        return 2 * self.f + 1

    def centre(self) -> CoordinateRule:
        """The median."""
        return Median()

    def kept(self, n: int) -> int:
        """All but f."""
        return n - self.f

    def tolerates(self, n: int) -> int:
        """As many as it leaves out."""
        return self.f


@register
@dataclass(frozen=True)
class MeanAroundMedian(MeanAround):
    """Coordinate-wise mean of the ``keep`` values nearest to the median; of two as near, half of each.

    `Meamed` with the number that is kept instead of the number that is left out. With unequal weights the share
    ``keep / n`` of the weight is averaged.

    Parameters
    ----------
    keep
        How many values are averaged, 1 to n.
    """

    keep: int

    name = "mean_around_median"
    formula = "z_k = mean of the keep of x_1k ... x_nk nearest to their median"
    source = "El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018 (second stage)"
    example = (("keep", 2),)

    def __post_init__(self) -> None:
        whole_number("MeanAroundMedian", "keep", self.keep, 1)

    @property
    def least(self) -> int:
        """As many as are kept."""
        return self.keep

    def centre(self) -> CoordinateRule:
        """The median."""
        return Median()

    def kept(self, n: int) -> int:
        """``keep`` of them."""
        return self.keep

    def tolerates(self, n: int) -> int:
        """Those that are not kept, while they are fewer than half."""
        return min(n - self.keep, (n - 1) // 2)
