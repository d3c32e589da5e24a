"""Where results are written, block by block: into memory, or straight into a ``.safetensors`` file.

A file is written aside under a temporary name, in ranges, by whoever computes them, and renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pluribus.core import checkpoints, files
from pluribus.core.contributions import Block, Contributions, TensorSpec
from pluribus.core.dtypes import Array
from pluribus.core.errors import FileError

STRAIGHT = ("float32", "float64")  # results that kernels may write in place


Result = Sequence[Any]  # an array, or a leaf of a file, for each tensor


class Store(Protocol):
    """Room for one result."""

    def place(self, block: Block) -> Any:
        """Memory that a kernel may write a block into, or None: then `write` it."""

    def write(self, block: Block, items: Any) -> None:
        """Put stored items of a block into their place; numpy's, where that is no memory."""

    @property
    def arrays(self) -> Result:
        """What was written."""


@dataclass(frozen=True, eq=False)
class MemoryStore:
    """Arrays in memory, or tensors on a device."""

    arrays: Sequence[Any]

    def place(self, block: Block) -> Any:
        """The block's range of its array."""
        return self.arrays[block.tensor].reshape(-1)[block.start : block.stop]

    def write(self, block: Block, items: Any) -> None:
        """Copy into the array."""
        self.place(block)[...] = items


@dataclass(frozen=True)
class FileStore:
    """A safetensors file under its temporary name. Small, and picklable: any process may write its ranges."""

    path: str
    target: str
    begins: tuple[int, ...]
    specs: tuple[TensorSpec, ...]
    aside: files.Aside | None = None  # where the file was begun; it does not travel

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "aside": None}

    def place(self, block: Block) -> None:
        """None: ranges of a file are written."""
        return None

    def write(self, block: Block, items: Array) -> None:
        """Write the block's bytes; the same bytes when a task is run again."""
        width = items.dtype.itemsize
        raw = np.ascontiguousarray(items).astype(items.dtype.newbyteorder("<"), copy=False).view(np.uint8)
        position = self.begins[block.tensor] + block.start * width
        with files.told(self.target, "be written"), open(self.path, "r+b", buffering=0) as file:
            while raw.size:
                done = os.pwrite(file.fileno(), raw.data, position)
                raw, position = raw[done:], position + done

    @property
    def arrays(self) -> list[checkpoints.FileLeaf]:
        """Leaves of the temporary file; see `finished`."""
        return self._leaves(self.path, None)

    def finished(self) -> list[checkpoints.FileLeaf]:
        """Flush, rename, and give the leaves of the file under its own name."""
        assert self.aside is not None
        with files.told(self.target, "be written"):
            with open(self.path, "r+b") as file:
                os.fsync(file.fileno())
            self.aside.replace()
            return self._leaves(self.target, checkpoints.stamp(os.stat(self.target)))

    def _leaves(self, path: str, stamp: checkpoints.Stamp | None) -> list[checkpoints.FileLeaf]:
        return [
            checkpoints.FileLeaf(path, begin, spec.shape, spec.dtype, stamp)
            for begin, spec in zip(self.begins, self.specs, strict=True)
        ]


def in_memory(data: Contributions) -> MemoryStore:
    """Uninitialised arrays for a result."""
    return MemoryStore(data.allocate())


def target_of(data: Contributions, path: Path) -> Path:
    """The file that a result goes to: a path, with symbolic links followed.

    Raises
    ------
    FileError
        The path is a folder, a device or a pipe, or one of the files that are combined, which are read again when more
        is asked of the result; or a tensor has no name, or one that a file cannot hold.
    """
    if path.suffix != ".safetensors":
        raise FileError(f"out must be the path of a .safetensors file, not {path}")
    target = files.target_of(path)
    for spec in data.specs:
        _check_name(spec.name)
        if spec.dtype.name == "complex128":
            raise FileError(f"{spec.label} is complex128, which the format does not have; convert it to complex64")
    with files.told(path, "be written"):
        if not target.exists():
            return target
        there = os.stat(target)
    for label, row in zip(data.labels, data.rows, strict=True):
        for read in checkpoints.paths(row):
            with files.told(read, "be read"):
                same = os.path.samestat(there, os.stat(read))
            if same:
                raise FileError(f"out={str(path)!r} is {read}, which {label} is read from; give another name")
    return target


def _check_name(name: str) -> None:
    if not name:
        raise FileError("a file needs named tensors: give contributions as mappings of names to arrays")
    if name == checkpoints.METADATA:
        raise FileError(f"a file cannot hold a tensor named {name!r}: the format keeps that name; rename the tensor")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FileError(f"a file cannot hold a tensor named {name!r}, which is no UTF-8; rename the tensor") from None


def _begun(data: Contributions, aside: files.Aside) -> FileStore:
    """A file of the right length, whose data are still zeros."""
    header, begins, end = {}, [], 0
    for spec in data.specs:
        size = spec.size * spec.dtype.storage.itemsize
        header[spec.name] = {
            "dtype": checkpoints.code(spec.dtype), "shape": list(spec.shape), "data_offsets": [end, end + size]
        }  # fmt: skip
        begins.append(end)
        end += size
    raw = json.dumps(header, ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    base = 8 + len(raw)
    with files.told(aside.target, "be written"), aside.path.open("r+b") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(base + end)
    return FileStore(
        str(aside.path.absolute()), str(aside.target), tuple(base + begin for begin in begins), data.specs, aside
    )


@contextlib.contextmanager
def opened(data: Contributions, out: Path | None, count: int) -> Iterator[list[Store]]:
    """Room for results: in memory, or one in a file, which goes when something fails."""
    if out is None:
        yield [in_memory(data) for _ in range(count)]
        return
    if count != 1:
        raise FileError(f"out is one file, and this gives {count} results")
    with files.aside(target_of(data, out)) as aside:
        yield [_begun(data, aside)]


def finished(made: Sequence[Store], out: Path | None) -> list[Result]:
    """The results, whole; a file under its own name."""
    return [store.finished() if out and isinstance(store, FileStore) else store.arrays for store in made]


def save(data: Contributions, result: Result, out: Path) -> Result:
    """Write a result that is in memory into a file."""
    with opened(data, out, 1) as made:
        for discrete in (False, True):
            for block in data.blocks(1 << 20, discrete=discrete):
                made[0].write(block, data.medium.stored(items(result[block.tensor], block)))
        return finished(made, out)[0]


def items(tensor: Any, block: Block) -> Any:
    """The stored items of a block of one tensor of a result, one-dimensional."""
    if isinstance(tensor, checkpoints.FileLeaf):
        return tensor.items(block.start, block.stop)
    return tensor.reshape(-1)[block.start : block.stop]
