"""Units for rows whose squares would leave the range of float64. All are powers of two, so that no digit is lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import NonFiniteError

SHORT = 2.0**-600  # squares all below it: of differences from them nothing may be left
_LOST = 2.0**-900  # squares all below it: nothing is left even of what rules without a unit need
_ORDINARY = 400  # exponents of squares up to which products of two of them are numbers
_LEAST = 2.0**-600  # squares that short beside the longest stay as they are: to shrink them would lose them
_FARTHEST = 1000  # exponents of units: inverses of numbers, too


def unit_of(magnitude: float) -> float:
    """The power of two that brings a greatest magnitude into [1, 2), as far as float64 goes; 1 for zero."""
    if not magnitude > 0:
        return 1.0
    if np.isinf(magnitude):  # has no exponent
        return 2.0**_FARTHEST
    return float(2.0 ** np.clip(np.frexp(magnitude)[1] - 1, -_FARTHEST, _FARTHEST))


def refuse_short(squares: Array, magnitude: float) -> None:
    """Raise `NonFiniteError` where a rule that takes no unit would read zeros instead of squares."""
    if magnitude > 0 and squares.max() < _LOST:
        raise NonFiniteError(
            f"the contributions are too small to be squared in float64 (their largest number is {magnitude:g}), and a "
            "rule that does not declare the law of scale must see them as they are; multiply them, and its parameters"
        )


def ordinary(scale: float, *tables: Array) -> tuple[float, list[Array]]:
    """A scale and tables of squares that make the same of ordinary size, where they are not and it costs no digit.

    The diagonal (or all) of the first table are squared norms; of the others what is positive must stay so.
    """
    squares = np.diag(tables[0]) if tables[0].ndim > 1 else tables[0]
    exponent = int(np.frexp(squares.max())[1])
    positive = [table[table > 0] for table in (squares, *tables[1:])]
    unit = exponent // 2
    least = min((float(values.min()) for values in positive if values.size), default=0.0)
    if abs(exponent) <= _ORDINARY or not least > 0 or np.ldexp(least, -2 * unit) < _LEAST:
        return scale, list(tables)
    return float(np.ldexp(scale, unit)), [np.ldexp(table, -2 * unit) for table in tables]


def divided(views: list[Any], wide: Any, unit: float) -> list[Any]:
    """Views over a unit, in float64; as they are for a unit of one."""
    return views if unit == 1.0 else [wide(view) * (1 / unit) for view in views]
