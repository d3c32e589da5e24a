"""Results beyond the range of their dtype, of contributions that are inside of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pluribus.core.contributions import TensorSpec
from pluribus.core.dtypes import Array, DType
from pluribus.core.errors import UndefinedError
from pluribus.core.kernels.tiles import SHRINK
from pluribus.core.passes.active import Active

_LIMITS = {"float16": 65520.0, "bfloat16": 2.0**128 * (1 - 2.0**-9), "complex64": 2.0**128 * (1 - 2.0**-25)}
"""Least magnitudes that round to infinity, for dtypes that kernels do not write themselves."""
_MEAN = 1 + 1e-9  # magnitudes of coefficients that sum up to this make means, which stay inside


def overflows(spec: TensorSpec) -> UndefinedError:
    """The error for a result that is not finite, of contributions that are."""
    return UndefinedError(
        f"{spec.label}: the result overflows {spec.dtype.name}, though all contributions are finite; scale them down, "
        "take a mean instead of a sum (mean=True) where the rule has both, or convert to a wider dtype"
    )


def sum_into(active: Active, views: list[Any], coefficients: Array, out: Any, spec: TensorSpec) -> bool:
    """Write the weighted sum of views; whether all that was read is finite.

    A mean of numbers at the end of float64, which rounding pushes beyond it, stays there.

    Raises
    ------
    UndefinedError
        A sum that is no mean is beyond the range of the tensor's dtype.
    """
    if not active.kernel.weighted_sum(views, coefficients, out):
        return False
    mean = bool(np.abs(coefficients).sum() <= _MEAN)
    if (not mean or spec.dtype.compute.itemsize == 8) and not fits(active, out, spec.dtype):
        _mend(active, views, coefficients, out, None if mean else overflows(spec))
        if not fits(active, out, spec.dtype):
            raise overflows(spec)
    return True


def fits(active: Active, out: Any, dtype: DType) -> bool:
    """Whether coordinates are finite, and stay so when they are rounded to a dtype."""
    if not active.kernel.finite(out):
        return False
    limit = _LIMITS.get(dtype.name)
    return limit is None or not len(out) or bool(active.data.medium.xp.abs(out).max() < limit)


def _mend(active: Active, views: list[Any], coefficients: Array, out: Any, beyond: UndefinedError | None) -> None:
    """Sum shrunken values where the sum overflowed: under way only, or else raise ``beyond``, if that is given."""
    xp = active.data.medium.xp
    most = float(np.finfo(np.float64 if out.itemsize == 8 else np.float32).max) * SHRINK
    small = active.data.medium.empty(len(out), np.dtype(np.float64))
    active.kernel.weighted_sum(views, coefficients * SHRINK, small)
    over = ~xp.isfinite(out)
    kept = xp.clip(small, -most, most)
    if beyond is not None and bool((over & (kept != small)).any()):
        raise beyond
    out[...] = xp.where(over, kept / SHRINK, out)
