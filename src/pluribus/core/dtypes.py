"""Kinds of number: how each dtype is read into float32 or float64 coordinates, and written back.

Coordinates are always float32 or float64, one-dimensional. float16 and bfloat16 are widened to float32, a
complex number is two coordinates (so the inner product is ``Re <x, y>``), integers and booleans are read as
float64 and rounded when they are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus.core.errors import ContributionError

Array = NDArray[Any]

FLOATS = ("bfloat16", "float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")


@dataclass(frozen=True)
class DType:
    """A dtype by name, with what is needed to read and to write it."""

    name: str
    kind: str  # "float" | "complex" | "integer" | "boolean"
    storage: np.dtype[Any]  # what lies in memory; uint16 for bfloat16
    compute: np.dtype[Any]  # float32 or float64

    @property
    def discrete(self) -> bool:
        """Whether values are counters or masks, which take no part in distances."""
        return self.kind in ("integer", "boolean")

    @property
    def per_item(self) -> int:
        """Coordinates that one item makes: two for a complex number."""
        return 2 if self.kind == "complex" else 1


@lru_cache(maxsize=256)  # asked for every leaf of every contributor
def of(dtype: Any) -> DType:
    """The `DType` of a numpy dtype, an ml_dtypes dtype or a name such as ``"bfloat16"``."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name == "bfloat16":
        return DType(name, "float", np.dtype(np.uint16), np.dtype(np.float32))
    try:
        numpy_dtype = np.dtype(dtype)
    except TypeError:
        raise _unsupported(name) from None
    if name in ("float16", "float32"):
        return DType(name, "float", numpy_dtype, np.dtype(np.float32))
    if name == "float64":
        return DType(name, "float", numpy_dtype, np.dtype(np.float64))
    if name in COMPLEX:
        compute = np.float32 if name == "complex64" else np.float64
        return DType(name, "complex", numpy_dtype, np.dtype(compute))
    if numpy_dtype.kind in "iu":
        return DType(name, "integer", numpy_dtype, np.dtype(np.float64))
    if numpy_dtype.kind == "b":
        return DType(name, "boolean", numpy_dtype, np.dtype(np.float64))
    raise _unsupported(name)


def _unsupported(name: str) -> ContributionError:
    return ContributionError(
        f"dtype {name} cannot be combined; convert to one of {', '.join(FLOATS + COMPLEX)}, an integer or bool"
    )


def rounding(dtype: DType) -> float:
    """Relative spacing of the floating-point numbers of a dtype; zero for whole numbers."""
    if dtype.discrete:
        return 0.0
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype.storage).eps)


def common(names: set[str]) -> DType | None:
    """The dtype of the result when contributors differ: the widest of one kind, or None if kinds differ."""
    if len(names) == 1:
        return of(next(iter(names)))
    kinds = {of(name).kind for name in names}
    if len(kinds) > 1:
        return None
    if names == {"bfloat16", "float16"}:
        return of("float32")
    widest = of(np.result_type(*(np.dtype(name) for name in names if name != "bfloat16")))
    return widest if widest.kind in kinds else None  # uint64 and int64 have no common integer


def coordinates(items: Array, dtype: DType, compute: np.dtype[Any]) -> Array:
    """One-dimensional stored items as coordinates in ``compute``: a view where the bits allow it."""
    if dtype.name == "bfloat16":
        widened = items.astype(np.uint32)
        widened <<= 16
        items = widened.view(np.float32)
    elif dtype.kind == "complex":
        native = items.astype(dtype.storage.newbyteorder("="), copy=False)
        items = np.ascontiguousarray(native).view(dtype.compute)
    if items.dtype == compute and items.dtype.isnative and items.flags.aligned:
        return items
    with np.errstate(over="ignore"):
        return items.astype(compute)


def store(values: Array, out: Array, dtype: DType) -> None:
    """Write coordinates into ``out``, a contiguous one-dimensional range of stored items, rounding once."""
    if dtype.name == "bfloat16":
        out[...] = _to_bfloat16(values)
    elif dtype.kind == "complex":
        out.view(dtype.compute)[...] = values
    elif dtype.discrete:
        out[...] = _to_discrete(values, dtype)
    else:
        with np.errstate(over="ignore"):
            out[...] = values


def _to_bfloat16(values: Array) -> Array:
    """Round to nearest, ties to even; NaN stays NaN."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def _to_discrete(values: Array, dtype: DType) -> Array:
    rounded = np.rint(values)
    if dtype.kind == "boolean":
        return rounded > 0
    return np.clip(rounded, *bounds(dtype)).astype(dtype.storage)


def bounds(dtype: DType) -> tuple[float, float]:
    """The least and the greatest float64 that an integer dtype holds."""
    limits = np.iinfo(dtype.storage)
    # float(2**63 - 1) rounds up to 2**63, which does not fit: keep below it.
    top = np.nextafter(float(limits.max), 0) if limits.max > 2**53 else float(limits.max)
    return float(limits.min), float(top)
