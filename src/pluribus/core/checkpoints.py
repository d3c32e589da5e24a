"""Tensors in ``.safetensors`` files, read by ranges and never loaded whole.

Ranges are read, not mapped: a map of files larger than memory counts against an address-space limit, and a file that
is cut short while it is mapped kills the process instead of raising an error.

The format: eight bytes with the header's length, a JSON header ``{name: {dtype, shape, data_offsets}}``, the
bytes. The headers are read here because ranges of flattened tensors and bfloat16 without torch are what this
project needs; files are written by the safetensors library.
Source: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pluribus.core import dtypes
from pluribus.core.dtypes import Array, DType
from pluribus.core.errors import FileError
from pluribus.core.leaves import NumpyLeaf

_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "C128": "complex128",
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # the library's own limit
INDEX = ".safetensors.index.json"


@dataclass(frozen=True)
class FileLeaf:
    """A tensor inside a safetensors file, whose data begin at byte ``begin``. Small, and picklable."""

    path: str
    begin: int
    shape: tuple[int, ...]
    dtype: DType

    def items(self, start: int, stop: int) -> Array:
        """Read a range; the array is read-only."""
        storage = self.dtype.storage
        size = (stop - start) * storage.itemsize
        file = _descriptor(self.path)
        raw = os.pread(file.number, size, self.begin + start * storage.itemsize)
        if len(raw) < size:
            raise FileError(f"{self.path} became shorter while it was read")
        return np.frombuffer(raw, dtype=storage.newbyteorder("<"))

    def restore(self, values: Array) -> Any:
        """A numpy array; of bfloat16, which numpy lacks, float32, or ml_dtypes' bfloat16 where it is installed."""
        return values if self.dtype.name != "bfloat16" else _bfloat16(values)

    def hollow(self) -> NumpyLeaf:
        """The same shape and dtype over one zero."""
        return NumpyLeaf(np.broadcast_to(np.zeros((), self.dtype.storage), self.shape), self.dtype, self.restore)


class _Descriptor:
    """A file that stays open for reading while it is remembered."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@functools.lru_cache(maxsize=256)
def _opened(path: str, inode: int, changed: int, process: int) -> _Descriptor:
    return _Descriptor(path)


def _descriptor(path: str) -> _Descriptor:
    """An open descriptor of the file that is at the path now, in this process."""
    try:
        now = os.stat(path)
        return _opened(path, now.st_ino, now.st_mtime_ns, os.getpid())
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None


def _bfloat16(values: Array) -> Array:
    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.view(ml_dtypes.bfloat16)  # type: ignore[no-any-return,unused-ignore]


def code(dtype: DType) -> str:
    """The format's name of a dtype."""
    return next(code for code, name in _NAMES.items() if name == dtype.name)


def is_checkpoint(value: Any) -> bool:
    """Whether a contribution is a path."""
    return isinstance(value, (str, Path))


def read(path: str | Path) -> dict[str, FileLeaf]:
    """The tensors of a ``.safetensors`` file, of a ``.safetensors.index.json`` or of a folder with one of these.

    Raises
    ------
    FileError
        The file is missing, truncated, or its header does not describe it.
    """
    path = Path(path)
    if path.is_dir():
        path = _inside(path)
    if path.name.endswith(INDEX):
        return _read_sharded(path)
    if path.suffix != ".safetensors":
        raise FileError(f"{path}: expected a .safetensors file, a {INDEX} or a folder that holds one")
    return _read_file(path)


def _inside(folder: Path) -> Path:
    for pattern in (f"*{INDEX}", "*.safetensors"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(f.name for f in found[:5])
            raise FileError(f"{folder} holds {len(found)} checkpoints ({names}); name one")
    raise FileError(f"{folder} holds no .safetensors file")


def _read_sharded(path: Path) -> dict[str, FileLeaf]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        shards = {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise FileError(f"{path} is no index of shards (it needs 'weight_map'): {error}") from None
    opened: dict[str, dict[str, FileLeaf]] = {}
    leaves = {}
    for name, file in shards.items():
        if Path(file).name != file:
            raise FileError(f"{path}: shard {file!r} must be a file name in the same folder")
        if file not in opened:
            opened[file] = _read_file(path.parent / file)
        if name not in opened[file]:
            raise FileError(f"{path} says that {file} holds {name!r}, and it does not")
        leaves[name] = opened[file][name]
    return leaves


def _read_file(path: Path) -> dict[str, FileLeaf]:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise FileError(f"{path} is truncated or no safetensors file: {size} bytes, header of {length}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} has a header that is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FileError(f"{path} has a header that is no mapping")
    where = path.absolute()
    leaves = {
        name: _leaf(where, name, entry, 8 + length, size) for name, entry in header.items() if name != "__metadata__"
    }
    _check_layout(path, leaves)
    return leaves


def _leaf(path: Path, name: str, entry: Any, begin: int, size: int) -> FileLeaf:
    try:
        dtype = _NAMES[entry["dtype"]]
        shape = tuple(int(d) for d in entry["shape"])
        first, last = (int(o) for o in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise FileError(f"{path}: tensor {name!r} has an entry that cannot be used: {entry!r}") from None
    kind = dtypes.of(dtype)
    expected = math.prod(shape) * kind.storage.itemsize
    if first < 0 or min(shape, default=0) < 0 or last - first != expected:
        raise FileError(f"{path}: tensor {name!r} {dtype}{list(shape)} needs {expected} bytes, has {last - first}")
    if begin + last > size:
        raise FileError(f"{path} is truncated: tensor {name!r} ends at byte {begin + last} of {size}")
    return FileLeaf(str(path), begin + first, shape, kind)


def _check_layout(path: Path, leaves: dict[str, FileLeaf]) -> None:
    spans = sorted((f.begin, f.begin + math.prod(f.shape) * f.dtype.storage.itemsize, n) for n, f in leaves.items())
    for (_, end, first), (begin, _, second) in itertools.pairwise(spans):
        if begin < end:
            raise FileError(f"{path}: tensors {first!r} and {second!r} overlap")
