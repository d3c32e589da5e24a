"""The mean of the values nearest to the trimmed mean, at each coordinate."""

from __future__ import annotations

from dataclasses import dataclass

from pluribus.core.errors import RuleError
from pluribus.core.rule import CoordinateRule, register, whole_number
from pluribus.rules.coordinates.around import MeanAround
from pluribus.rules.coordinates.trimmed_mean import TrimmedMean


@register
@dataclass(frozen=True)
class Phocas(MeanAround):
    """Coordinate-wise mean of the n - f values nearest to the f-trimmed mean; of two as near, half of each.

    With unequal weights the weighted trimmed mean, and the share (n - f)/n of the weight that lies nearest to it, so f
    counts contributors of mean weight.

    Parameters
    ----------
    f
        How many to trim at either end, and then to leave out, at least 1; n >= 2f + 1.
    """

    f: int

    name = "phocas"
    formula = "z_k = mean of the n-f of x_1k ... x_nk nearest to the mean of x_(f+1)k ... x_(n-f)k"
    source = "Xie, Koyejo and Gupta, Phocas: dimensional Byzantine-resilient stochastic gradient descent, 2018"
    example = (("f", 1),)

    def __post_init__(self) -> None:
        if isinstance(self.f, int) and self.f == 0:
            raise RuleError("Phocas(f=0) would leave nothing out; use Mean, or leave out at least one")
        whole_number("Phocas", "f", self.f, 1)

    @property
    def least(self) -> int:
        """Room for one that is not trimmed."""
        return 2 * self.f + 1

    def centre(self) -> CoordinateRule:
        """The trimmed mean."""
        return TrimmedMean(self.f)

    def kept(self, n: int) -> int:
        """All but f."""
        return n - self.f

    def tolerates(self, n: int) -> int:
        """As many as it leaves out."""
        return self.f
