"""Quasi-arithmetic means with any monotone function, at each coordinate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.law_groups import AVERAGE
from pluribus.core.passes import TileRule
from pluribus.core.rule import CoordinateRule, register
from pluribus.rules.coordinates.generalised import Function, transformed
from pluribus.rules.coordinates.log_sum_exp import LogSumExp
from pluribus.rules.coordinates.power_mean import PowerMean


def _logit(x: Array) -> Array:
    return np.asarray(np.log(x) - np.log1p(-x))


def _expit(y: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-y)))


# Functions that have an accurate form of their own, and the others with where they are finite.
_AS_RULES: dict[str, CoordinateRule] = {
    "identity": PowerMean(1),
    "square": PowerMean(2),
    "cube": PowerMean(3),
    "sqrt": PowerMean(0.5),
    "log": PowerMean(0),
    "reciprocal": PowerMean(-1),
    "exp": LogSumExp(1),
}
_PAIRS: dict[str, tuple[Function, Function, str]] = {
    "asinh": (np.arcsinh, np.sinh, ""),
    "cbrt": (np.cbrt, lambda y: y**3, ""),
    "logit": (_logit, _expit, "the logit takes numbers between 0 and 1"),
}
NAMES = (*_AS_RULES, *_PAIRS)


@register
@dataclass(frozen=True)
class QuasiArithmetic(CoordinateRule):
    """Coordinate-wise ``f^-1(sum_i w_i f(x_i))`` for a continuous, strictly monotone f (Kolmogorov's mean).

    Parameters
    ----------
    f
        A name: ``identity``, ``square``, ``cube``, ``sqrt``, ``cbrt``, ``log``, ``reciprocal``, ``exp``, ``asinh``,
        ``logit``; the rule can then be pickled. Or a function from float64 arrays to arrays of their shape, finite
        wherever it has a meaning: a value at which it is not is an error that names who sent it.
    inverse
        The inverse of a function f; with a name, leave it out. A result outside of the values' range shows that it is
        none, and is an error.
    """

    f: str | Callable[[Array], Array]
    inverse: Callable[[Array], Array] | None = None

    name = "quasi_arithmetic"
    formula = "z_k = f^-1(sum_i w_i f(x_ik))"
    source = "Kolmogorov, Sur la notion de la moyenne, 1930"
    example = (("f", "asinh"),)

    def __post_init__(self) -> None:
        named = isinstance(self.f, str)
        if named and self.f not in NAMES:
            raise RuleError(f"QuasiArithmetic: f must be one of {', '.join(NAMES)} or a function, not {self.f!r}")
        if not named and not (callable(self.f) and callable(self.inverse)):
            raise RuleError("QuasiArithmetic: a function f needs inverse=, the function that undoes it")
        if named and self.inverse is not None:
            raise RuleError(f"QuasiArithmetic: {self.f!r} knows its inverse; give inverse= with a function f only")

    @property
    def laws(self) -> frozenset[str]:  # type: ignore[override]
        """Those of means in an order; a smooth f on the whole line, with a slope everywhere, gives no kinks."""
        smooth = self.f in ("identity", "exp", "asinh")
        return AVERAGE | {"betweenness", "monotone weight", *(["differentiable"] if smooth else [])}

    @property
    def _rule(self) -> CoordinateRule | None:
        return _AS_RULES.get(self.f) if isinstance(self.f, str) else None

    @property
    def any_vectors(self) -> bool:  # type: ignore[override]
        """Whether all numbers are welcome; of a function nobody knows."""
        return self._rule.any_vectors if self._rule else self.f in ("asinh", "cbrt")

    @property
    def precision(self) -> float:  # type: ignore[override]
        """That of the power mean, where it is one."""
        return self._rule.precision if self._rule else 0.0

    def draw(self, x: Array) -> Array:
        """Numbers between 0 and 1 for the logit, and else as the power mean draws them."""
        return _expit(x / 2) if self.f == "logit" else self._rule.draw(x) if self._rule else x

    def tile_rule(self, weights: Array) -> TileRule:
        """The accurate form where there is one; else f, a weighted sum, and back."""
        if self._rule:
            return self._rule.tile_rule(weights)
        if isinstance(self.f, str):
            return transformed(weights, *_PAIRS[self.f])
        inverse: Any = self.inverse
        return transformed(weights, self.f, inverse, "f is not finite there")
