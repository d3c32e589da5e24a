"""What passes compute in: numpy arrays in this process's memory, or torch tensors on the device where they lie.

Passes are written once. All that differs between the two is here, behind `Medium`: how a range of a leaf becomes
coordinates, which kernels see them, how large tiles are, and how results are made and rounded.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pluribus.core import dtypes, kernels, leaves
from pluribus.core.dtypes import Array, DType
from pluribus.core.errors import ContributionError
from pluribus.core.kernels import Kernels
from pluribus.engines import local
from pluribus.engines.base import Engine

if TYPE_CHECKING:
    from pluribus.core.contributions import Contributions, TensorSpec
    from pluribus.core.leaves import Leaf

AUTOMATIC = ("cuda",)
"""Kinds of device whose tensors are combined there without being asked to."""

_BARE = ("uint16", "uint32", "uint64")  # dtypes that torch stores and hardly computes with
_ALIGNED, _LARGE = 64, 1 << 22  # bytes


class Medium(Protocol):
    """Arrays of one kind, and what passes do with them."""

    @property
    def device(self) -> Any:
        """Where torch tensors lie; None for numpy."""

    @property
    def xp(self) -> ModuleType:
        """numpy or torch."""

    @property
    def gram_items(self) -> int:
        """Coordinates of a block of a Gram matrix, which is a sum over blocks: fixed, so that its bits are."""

    def kernel(self, values: int) -> Kernels:
        """The kernels for a pass over so many values."""

    def engine(self, values: int) -> Engine:
        """Where a pass over so many values runs if the caller did not say."""

    def tile_size(self, n: int) -> int:
        """How many coordinates of n contributors make a good tile."""

    def items(self, leaf: Leaf, start: int, stop: int) -> Any:
        """Stored items of a flattened leaf."""

    def coordinates(self, items: Any, dtype: DType, compute: np.dtype[Any]) -> Any:
        """Stored items as coordinates in float32 or float64, of one axis; never to be written to."""

    def cleaned(self, view: Any) -> Any:
        """A copy with zeros for NaN and Inf."""

    def wide(self, view: Any) -> Any:
        """A view in float64."""

    def host(self, views: Sequence[Any]) -> list[Array]:
        """Views as numpy arrays, to be read."""

    def bring(self, values: Array, out: Any) -> None:
        """Copy a numpy array into an array of this kind."""

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Uninitialised values."""

    def room(self, size: int) -> Any:
        """Uninitialised float64 values, good until the calling thread asks for room again."""

    def rounded(self, values: Any, dtype: DType) -> Any:
        """Coordinates as new stored items, rounded once."""

    def stored(self, items: Any) -> Array:
        """Stored items as a numpy array, as they lie in a file."""

    def allocate(self, specs: Sequence[TensorSpec]) -> list[Any]:
        """Uninitialised room for a result: stored items of each tensor, in its shape."""


@dataclass(frozen=True)
class Numpy:
    """Arrays in this process's memory; see `Medium`."""

    device = None
    xp = np
    gram_items = 1 << 15

    def kernel(self, values: int) -> Kernels:
        """Compiled for large problems, where numba is installed."""
        return kernels.select(values)

    def engine(self, values: int) -> Engine:
        """Threads, as many as are worth it."""
        return local.Threads(local.threads_for(values))

    def tile_size(self, n: int) -> int:
        """256 KiB a contributor in float64."""
        return kernels.tile_size(n, 8)

    def items(self, leaf: Leaf, start: int, stop: int) -> Array:
        """A view where the layout allows it; of a tensor on a device, a copy."""
        return leaf.items(start, stop)

    def coordinates(self, items: Array, dtype: DType, compute: np.dtype[Any]) -> Array:
        """A view where the bits allow it."""
        return dtypes.coordinates(items, dtype, compute)

    def cleaned(self, view: Array) -> Array:
        """A copy with zeros for NaN and Inf."""
        return np.nan_to_num(view, nan=0.0, posinf=0.0, neginf=0.0)

    def wide(self, view: Array) -> Array:
        """A copy in float64."""
        return view.astype(np.float64)

    def host(self, views: Sequence[Array]) -> list[Array]:
        """The views themselves."""
        return list(views)

    def bring(self, values: Array, out: Array) -> None:
        """Copy."""
        out[...] = values

    def empty(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Uninitialised values."""
        return np.empty(size, dtype)

    def room(self, size: int) -> Array:
        """Memory of this thread's own: fresh memory would come from the system and be touched for the first time."""
        if len(_memory.buffer) < size:
            _memory.buffer = np.empty(size)
        return _memory.buffer[:size]

    def rounded(self, values: Array, dtype: DType) -> Array:
        """Coordinates as new stored items, rounded once."""
        items = np.empty(len(values) // dtype.per_item, dtype.storage)
        dtypes.store(values, items, dtype)
        return items

    def stored(self, items: Array) -> Array:
        """The items themselves."""
        return items

    def allocate(self, specs: Sequence[TensorSpec]) -> list[Array]:
        """Uninitialised arrays.

        A large model lies in one piece of memory, which the system then hands out in huge pages: touching 100 MB for
        the first time costs a fifth of what it costs in separate arrays.
        """
        sizes = [-(-spec.size * spec.dtype.storage.itemsize // _ALIGNED) * _ALIGNED for spec in specs]
        if sum(sizes) < _LARGE:
            return [np.empty(spec.shape, spec.dtype.storage) for spec in specs]
        buffer = np.empty(sum(sizes), np.uint8)
        starts = itertools.accumulate(sizes, initial=0)
        return [
            buffer[start : start + spec.size * spec.dtype.storage.itemsize].view(spec.dtype.storage).reshape(spec.shape)
            for spec, start in zip(specs, starts, strict=False)
        ]


NUMPY = Numpy()


def choose(data: Contributions, asked: bool) -> Medium:
    """What passes over contributions compute in.

    Tensors on their device where all lie on one, and it is one of `AUTOMATIC` or ``asked`` for; else numpy.

    Raises
    ------
    ContributionError
        It was asked for, and some are no tensors, lie on another device, or are of a dtype or on a device that cannot.
    """
    device = next((leaves.device(leaf) for leaf in data.rows[0] if leaf is not None), None)
    if not asked and (device is None or device.type not in AUTOMATIC):
        return NUMPY
    complaint = _complaint(data)
    if complaint is None:
        from pluribus.core.tensors import Tensors

        return Tensors(device)
    if asked:
        raise ContributionError(f"engine='torch' takes torch tensors that lie on one device: {complaint}")
    return NUMPY


def _complaint(data: Contributions) -> str | None:
    """Why contributions cannot be combined as tensors, if they cannot."""
    seen: dict[Any, str] = {}
    for label, row in zip(data.labels, data.rows, strict=True):
        for spec, leaf in zip(data.specs, row, strict=True):
            if leaf is None:
                continue
            device, what = leaves.device(leaf), f"{label}: {spec.label}"
            if device is None:
                return f"{what} is no torch tensor; convert all with torch.as_tensor, or leave engine out"
            if device.type == "mps":
                return f"{what} lies on {device}, which has no float64; call .cpu() first"
            if spec.dtype.name in _BARE:
                return f"{what} is {spec.dtype.name}, which torch hardly computes with; convert it to int64"
            if seen and device not in seen:
                other, where = next(iter(seen.items()))
                return f"{what} lies on {device}, {where} on {other}; move all to one device"
            seen.setdefault(device, what)
    return None


class _Memory(threading.local):
    buffer = np.empty(0)


_memory = _Memory()
