"""torch tensors: leaves that are tensors, and passes over tensors on the device where they lie.

Contributions that all lie on one CUDA device are combined there; tensors on the CPU go through numpy, which shares
their memory, or through this with ``engine="torch"``. What leaves a device are n x n sums, and a flag for each tile.

Bits: on the CPU they are those of numpy. On another device they are that device's: the same from run to run, tile to
tile and block to block, but a device may fuse products and sums, and adds inner products in an order of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pluribus.core import dtypes, kernels, leaves
from pluribus.core.dtypes import Array, DType
from pluribus.core.errors import ContributionError
from pluribus.core.kernels import Kernels, tensors
from pluribus.core.leaves import Leaf, NumpyLeaf
from pluribus.engines import Torch
from pluribus.engines.base import Engine

if TYPE_CHECKING:
    from pluribus.core.contributions import TensorSpec

Tensor = Any


@dataclass(frozen=True, eq=False)
class TensorLeaf:
    """A dense torch tensor, contiguous or not, on any device. Passes read its items as numpy's, or as a tensor's."""

    tensor: Tensor
    dtype: DType

    @classmethod
    def of(cls, tensor: Tensor) -> TensorLeaf:
        """The leaf of a tensor: detached, its data not copied.

        Raises
        ------
        ContributionError
            A sparse or quantised tensor, or one without data.
        """
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ContributionError(
                "a sparse or quantised torch tensor cannot be combined; call .to_dense() or .dequantize() first"
            )
        if tensor.device.type == "meta":
            raise ContributionError("a torch tensor on the meta device holds no data; load it first")
        return cls(tensor.detach().resolve_conj().resolve_neg(), dtypes.of(_name(tensor.dtype)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(self.tensor.shape)

    @property
    def device(self) -> Any:
        """Where it lies."""
        return self.tensor.device

    def items(self, start: int, stop: int) -> Array:
        """Stored items as a numpy array: a view on the CPU if the layout allows, a copy from elsewhere."""
        if self._array is None:
            return stored(self.slice(start, stop))
        return self._array.items(start, stop)

    def slice(self, start: int, stop: int) -> Tensor:
        """Stored items as a tensor where it lies: a view, or a copy of little more than the range."""
        if self._flat is not None:
            return self._flat[start:stop]
        return leaves.read(self.tensor, start, stop, torch.Tensor.is_contiguous, torch.cat)

    def restore(self, values: Any) -> Tensor:
        """A tensor on the same device, of items that are a tensor already or a numpy array."""
        if isinstance(values, torch.Tensor):
            return values
        if self.dtype.name == "bfloat16" and values.dtype == np.uint16:
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16).to(self.device)
        return torch.from_numpy(values).to(self.device)

    def hollow(self) -> TensorLeaf:
        """The same shape, dtype and device over one zero."""
        zero = torch.zeros((), dtype=self.tensor.dtype, device=self.device)
        return TensorLeaf(zero.expand(self.tensor.shape), self.dtype)

    @cached_property
    def _array(self) -> NumpyLeaf | None:
        return NumpyLeaf(stored(self.tensor), self.dtype) if self.device.type == "cpu" else None

    @cached_property
    def _flat(self) -> Tensor | None:
        return self.tensor.reshape(-1) if self.tensor.is_contiguous() or self.tensor.ndim < 2 else None

    def __getstate__(self) -> dict[str, Any]:
        return {"tensor": self.tensor, "dtype": self.dtype}


@dataclass(frozen=True)
class Tensors:
    """Tensors on one device; see `pluribus.core.medium.Medium`."""

    device: Any
    xp = torch

    @property
    def gram_items(self) -> int:
        """As numpy's on the CPU; elsewhere more, so that few sums leave the device."""
        return 1 << 15 if self._on_cpu else 1 << 22

    def kernel(self, values: int) -> Kernels:
        """Those of tensors."""
        return tensors

    def engine(self, values: int) -> Engine:
        """The calling thread, and with it its stream, its modes and its device."""
        return Torch()

    def tile_size(self, n: int) -> int:
        """As numpy's on the CPU; elsewhere so large that launches do not count."""
        return kernels.tile_size(n, 8) if self._on_cpu else tensors.tile_size(n)

    def items(self, leaf: Leaf, start: int, stop: int) -> Tensor:
        """Stored items of a tensor."""
        return leaf.slice(start, stop)  # type: ignore[attr-defined]

    def coordinates(self, items: Any, dtype: DType, compute: np.dtype[Any]) -> Tensor:
        """Of a tensor's items a view where the bits allow it; of numpy's, such as those of a file, a copy."""
        if isinstance(items, np.ndarray):
            return torch.from_numpy(np.array(dtypes.coordinates(items, dtype, compute))).to(self.device)
        if dtype.kind == "complex":
            items = torch.view_as_real(items).reshape(-1)
        return items.to(_kind(compute.name))

    def cleaned(self, view: Tensor) -> Tensor:
        """A copy with zeros for NaN and Inf."""
        return torch.nan_to_num(view, nan=0.0, posinf=0.0, neginf=0.0)

    def wide(self, view: Tensor) -> Tensor:
        """A view in float64."""
        return view.to(torch.float64)

    def host(self, views: Sequence[Tensor]) -> list[Array]:
        """Views as numpy arrays, in one transfer; on the CPU they share memory."""
        if self._on_cpu:
            return [view.numpy() for view in views]
        return list(torch.stack(list(views)).cpu().numpy())

    def bring(self, values: Array, out: Tensor) -> None:
        """Copy a numpy array to the device."""
        out.copy_(torch.from_numpy(values))

    def empty(self, size: int, dtype: np.dtype[Any]) -> Tensor:
        """Uninitialised values."""
        return torch.empty(size, dtype=_kind(dtype.name), device=self.device)

    def room(self, size: int) -> Tensor:
        """Fresh values: torch keeps memory of its own."""
        return self.empty(size, np.dtype(np.float64))

    def rounded(self, values: Tensor, dtype: DType) -> Tensor:
        """Coordinates as new stored items, rounded as `pluribus.core.dtypes.store` rounds them."""
        if dtype.kind == "complex":
            return torch.view_as_complex(values.to(_kind(dtype.compute.name)).view(-1, 2))
        if dtype.discrete:
            return _discrete(values, dtype)
        if dtype.name == "float16":
            return _float16(values)
        if dtype.name == "bfloat16":
            return values.to(torch.float32).to(torch.bfloat16)
        return values.to(_kind(dtype.name))

    def stored(self, items: Any) -> Array:
        """Stored items as a numpy array, as they lie in a file."""
        return stored(items) if isinstance(items, torch.Tensor) else items

    def allocate(self, specs: Sequence[TensorSpec]) -> list[Tensor]:
        """Uninitialised tensors."""
        return [torch.empty(spec.shape, dtype=_kind(spec.dtype.name), device=self.device) for spec in specs]

    @property
    def _on_cpu(self) -> bool:
        return bool(self.device.type == "cpu")


def stored(tensor: Tensor) -> Array:
    """A tensor's items as numpy stores them, bfloat16 as its bits; on the CPU they share memory."""
    tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _kind(name: str) -> Any:
    return getattr(torch, name)


def _float16(values: Tensor) -> Tensor:
    """Round once, to nearest: torch goes through float32, which must not round to a tie that was none.

    So float32 is rounded to odd: where it is inexact and even, to its other neighbour. Source: Boldo and Melquiond,
    Emulation of a FMA and correctly rounded sums, IEEE Transactions on Computers 57, 2008.
    """
    near = values.to(torch.float32)
    gap = values - near
    other = torch.nextafter(near, torch.where(gap > 0, torch.inf, -torch.inf).to(torch.float32))
    even = (near.view(torch.int32) & 1) == 0
    return torch.where((gap != 0) & even & ~torch.isnan(gap), other, near).to(torch.float16)


def _discrete(values: Tensor, dtype: DType) -> Tensor:
    rounded = torch.round(values)  # ties to even
    if dtype.kind == "boolean":
        return rounded > 0
    low, high = dtypes.bounds(dtype)
    return rounded.clamp(low, high).to(_kind(dtype.name))
