"""Leaves: the tensors of a contribution, read as ranges of coordinates, wherever they lie."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pluribus.core import dtypes
from pluribus.core.dtypes import Array, DType
from pluribus.core.errors import ContributionError


class Leaf(Protocol):
    """One tensor of one contribution."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""

    @property
    def dtype(self) -> DType:
        """What its items are."""

    def items(self, start: int, stop: int) -> Array:
        """Stored items ``start:stop`` of the flattened tensor, one-dimensional; a view if the layout allows."""

    def restore(self, values: Array) -> Any:
        """A result of the leaf's own kind from stored items of the tensor's shape."""

    def hollow(self) -> Leaf:
        """The same leaf without its data: all items are one zero."""


@dataclass(frozen=True, eq=False)
class NumpyLeaf:
    """A numpy array in memory: contiguous or not, writable or not, of any byte order."""

    array: Array
    dtype: DType
    wrap: Callable[[Array], Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.array.shape

    def items(self, start: int, stop: int) -> Array:
        """A view of a contiguous array; of another, a copy of just the rows that the range touches."""
        array = self.array
        if array.flags.c_contiguous or array.ndim < 2:
            return array.reshape(-1)[start:stop]
        return read(array, start, stop, _contiguous, np.concatenate)

    def restore(self, values: Array) -> Any:
        """The array itself, or what ``wrap`` makes of it."""
        return values if self.wrap is None else self.wrap(values)

    def hollow(self) -> NumpyLeaf:
        """The same shape and dtype over one zero."""
        return NumpyLeaf(np.broadcast_to(np.zeros((), self.array.dtype), self.shape), self.dtype, self.wrap)


@dataclass(frozen=True, eq=False)
class Range:
    """Items ``start:stop`` of another leaf, as a tensor of one axis."""

    leaf: Leaf
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """One axis."""
        return (self.stop - self.start,)

    @property
    def dtype(self) -> DType:
        """That of the other leaf."""
        return self.leaf.dtype

    def items(self, start: int, stop: int) -> Array:
        """The other leaf's items."""
        return self.leaf.items(self.start + start, self.start + stop)

    @property
    def device(self) -> Any:
        """Where the other leaf's tensor lies; None if it is none."""
        return device(self.leaf)

    def slice(self, start: int, stop: int) -> Any:
        """The other leaf's items as a tensor where it lies, if it is one."""
        return self.leaf.slice(self.start + start, self.start + stop)  # type: ignore[attr-defined]

    def restore(self, values: Array) -> Any:
        """The kind of the other leaf."""
        return self.leaf.restore(values)

    def hollow(self) -> Range:
        """A range of a leaf without data."""
        return Range(self.leaf.hollow(), self.start, self.stop)


def read(array: Any, start: int, stop: int, contiguous: Callable[[Any], bool], join: Callable[[list[Any]], Any]) -> Any:
    """Items of an array (or tensor), flattened; not contiguous, what is copied is little more than the range.

    Whole rows where the range is longer than a row, else parts of one or two.
    """
    if array.ndim < 2 or contiguous(array):
        return array.reshape(-1)[start:stop]
    if start == stop:
        return array[:0].reshape(-1)
    row = math.prod(array.shape[1:])
    first, last = start // row, -(-stop // row)
    if last - first == 1:
        return read(array[first], start - first * row, stop - first * row, contiguous, join)
    if stop - start < row:
        parts = (start - first * row, row), (0, stop - row * (first + 1))
        return join([read(array[first + k], *part, contiguous, join) for k, part in enumerate(parts)])
    return array[first:last].reshape(-1)[start - first * row : stop - first * row]


def _contiguous(array: Array) -> bool:
    return bool(array.flags.c_contiguous)


def device(leaf: Leaf) -> Any:
    """Where the tensor of a leaf lies; None if it is no torch tensor."""
    return getattr(leaf, "device", None)


def of(value: Any, name: str) -> Leaf:
    """The leaf of an array, a torch tensor, or anything with ``shape``, ``dtype`` and ``__array__``."""
    if isinstance(value, NumpyLeaf) or hasattr(value, "restore"):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from pluribus.core.tensors import TensorLeaf

        try:
            return TensorLeaf.of(value)
        except ContributionError as error:
            raise ContributionError(f"{_where(name)}: {error}") from None
    if isinstance(value, np.ma.MaskedArray):
        raise ContributionError(f"{_where(name)} is a masked array, and masks would be lost; fill it first")
    try:
        array = np.asarray(value)
        dtype = dtypes.of(array.dtype)
    except ContributionError as error:
        raise ContributionError(f"{_where(name)}: {error}") from None
    if dtype.name == "bfloat16":  # the numpy extension type of ml_dtypes
        extension = array.dtype
        return NumpyLeaf(array.view(np.uint16), dtype, functools.partial(_as, extension))
    return NumpyLeaf(array, dtype)


def _as(extension: np.dtype[Any], out: Array) -> Array:
    return out.view(extension)


def _where(name: str) -> str:
    return f"tensor {name!r}" if name else "the contribution"
