"""Votes on labels, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError, UndefinedError
from pluribus.core.law_groups import AVERAGE
from pluribus.core.rule import PointRule, register

_TIE = 1e-12
TIES = ("smallest", "largest")


class _Vote(PointRule):
    """Rules on whole-number labels; every element of a tensor is a question of its own."""

    axes = 0
    whole = True
    laws = AVERAGE

    def complaint(self, points: Array, rounding: float) -> tuple[int, str] | None:
        """Any whole number is a label."""
        return None

    def squared_distances(self, points: Array, others: Array) -> Array:
        """One where labels differ, and zero where they agree."""
        return np.asarray((points != others).astype(np.float64))

    def draw(self, x: Array) -> Array:
        """Labels 0 to 2."""
        return np.asarray(np.mod(np.rint(x), 3).astype(np.int64))


@register
@dataclass(frozen=True)
class Plurality(_Vote):
    """The label with the most weight, at each element of tensors of integers or booleans.

    Counts are compared up to rounding, so that a tie is a tie in whatever order votes are added.

    Parameters
    ----------
    ties
        Which of tied labels: the ``"smallest"``, the ``"largest"``, or a number to give instead (an abstention, as -1).
    """

    ties: Any = "smallest"

    name = "plurality"
    formula = "argmax_c sum_i w_i [x_i = c]"
    source = "folklore (plurality vote)"

    def __post_init__(self) -> None:
        if not _whole(self.ties) and not (isinstance(self.ties, str) and self.ties in TIES):
            raise RuleError(f"Plurality: ties must be 'smallest', 'largest' or a whole number, not {self.ties!r}")

    def combine(self, points: Array, weights: Array) -> Array:
        """The most voted, and among ties the one that is asked for."""
        support = supports(points, weights)
        leading = support >= support.max(axis=0) - _TIE
        limits = np.iinfo(points.dtype)
        low = np.where(leading, points, limits.max).min(axis=0)
        high = np.where(leading, points, limits.min).max(axis=0)
        if self.ties == "smallest":
            return np.asarray(low)
        if self.ties == "largest":
            return np.asarray(high)
        return _or_else(low, np.asarray(low == high), self.ties)


@register
@dataclass(frozen=True)
class Majority(_Vote):
    """The label with more than half of the weight, at each element; where there is none, another number.

    Fewer than half of the contributors by weight cannot turn a unanimous majority.

    Parameters
    ----------
    otherwise
        What stands where no label has more than half of the weight.
    """

    otherwise: int = -1

    name = "majority"
    formula = "the c with sum_i w_i [x_i = c] > 1/2, or else a number that says that there is none"
    source = "folklore (majority vote); Condorcet 1785"

    def __post_init__(self) -> None:
        if not _whole(self.otherwise):
            raise RuleError(f"Majority: otherwise must be a whole number, not {self.otherwise!r}")

    def combine(self, points: Array, weights: Array) -> Array:
        """The label that more than half give, or the number."""
        winning = supports(points, weights) > 0.5 + _TIE
        most = np.take_along_axis(points, winning.argmax(axis=0)[None], axis=0)[0]
        return _or_else(most, np.asarray(winning.any(axis=0)), self.otherwise)


def supports(labels: Array, weights: Array) -> Array:
    """For each vote the weight of all votes for the same label, shape (n, m)."""
    support = np.zeros(labels.shape)
    for label, weight in zip(labels, weights, strict=True):
        support += weight * (labels == label)
    return support


def _or_else(labels: Array, clear: Array, number: int) -> Array:
    """Labels where the vote is clear, and elsewhere a number, for which their dtype must have room."""
    if clear.all():
        return labels
    limits = np.iinfo(labels.dtype)
    if not limits.min <= number <= limits.max:
        raise UndefinedError(
            f"a vote is not clear, and {labels.dtype} has no room for {number}, which is to say so; give another "
            "number, or convert the labels to wider integers"
        )
    return np.where(clear, labels, labels.dtype.type(number))


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
