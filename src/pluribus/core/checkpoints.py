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
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pluribus.core import dtypes, lent
from pluribus.core.dtypes import Array, DType
from pluribus.core.errors import FileError
from pluribus.core.files import told
from pluribus.core.leaves import NumpyLeaf

_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "C128": "complex128",
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # the library's own limit
_MOST_AXES = 32 if np.lib.NumpyVersion(np.__version__) < "2.0.0" else 64  # of a numpy array
INDEX = ".safetensors.index.json"
METADATA = "__metadata__"  # the one name in a header that is no tensor's

Stamp = tuple[int, int, int]


def stamp(found: os.stat_result) -> Stamp:
    """What tells whether a file is still the same: inode, time of the last change in nanoseconds, size."""
    return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True)
class FileLeaf:
    """A tensor inside a safetensors file, whose data begin at byte ``begin``. Small, and picklable.

    ``stamp`` is that of the file whose header was read; None where the file is still being written.
    """

    path: str
    begin: int
    shape: tuple[int, ...]
    dtype: DType
    stamp: Stamp | None = None

    def items(self, start: int, stop: int) -> Array:
        """Read a range; the array is read-only.

        Raises
        ------
        FileError
            The file cannot be read, or is not the one any more whose header was read.
        """
        storage = self.dtype.storage
        size = (stop - start) * storage.itemsize
        with told(self.path, "be read"):
            file = _opened(self.path, self.stamp or stamp(os.stat(self.path)), os.getpid())
            raw = _bytes_at(file.number, size, self.begin + start * storage.itemsize)
            # After reading: what was read before a change is what the header told of.
            changed = self.stamp is not None and stamp(os.stat(self.path)) != self.stamp
        if changed or len(raw) < size:
            raise FileError(
                f"{self.path} was changed while it was read, or before more was asked of a result; "
                "give each writer a file name of its own, and start again"
            )
        return raw.view(storage.newbyteorder("<"))

    def restore(self, values: Array) -> Any:
        """A numpy array; of bfloat16, which numpy lacks, float32, or ml_dtypes' bfloat16 where it is installed."""
        return values if self.dtype.name != "bfloat16" else _bfloat16(values)

    def hollow(self) -> NumpyLeaf:
        """The same shape and dtype over one zero."""
        return NumpyLeaf(np.broadcast_to(np.zeros((), self.dtype.storage), self.shape), self.dtype, self.restore)


class _Descriptor:
    """A file that stays open for reading while it is remembered."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@functools.lru_cache(maxsize=256)
def _opened(path: str, stamp: Stamp, process: int) -> _Descriptor:
    """An open descriptor of the file that is at the path now, in this process."""
    return _Descriptor(path)


def _bytes_at(number: int, size: int, position: int) -> Array:
    """Up to ``size`` bytes from a position on, read-only: one read gives at most 2 GB on Linux."""
    raw, done = lent.room(size), 0
    while done < size and (part := os.preadv(number, [raw.data[done:]], position + done)):
        done += part
    raw.flags.writeable = False
    return raw[:done]


def paths(leaves: Iterable[Any]) -> set[str]:
    """The files that leaves are read from."""
    return {leaf.path for leaf in (getattr(leaf, "leaf", leaf) for leaf in leaves) if isinstance(leaf, FileLeaf)}


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
        The file is missing, no regular file, truncated, or its header does not describe it.
    """
    if not os.fspath(path):
        raise FileError("a contribution's path is empty; the current folder is '.'")
    path = Path(path)
    with told(path, "be read"):
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
    number, found = _open_regular(path)
    with os.fdopen(number, "rb") as stream, told(path, "be read"):
        raw = stream.read(_LONGEST_HEADER + 1)
    if len(raw) > _LONGEST_HEADER:
        raise FileError(f"{path} has {found.st_size} bytes, too many for an index of shards")
    index = _parsed(path, "is no index of shards", raw)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(file, str) for file in shards.values()):
        raise FileError(f"{path} is no index of shards: it needs 'weight_map', a mapping from tensors to file names")
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
    number, found = _open_regular(path)
    size = found.st_size
    with os.fdopen(number, "rb") as stream, told(path, "be read"):
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise FileError(f"{path} is truncated or no safetensors file: {size} bytes, header of {length}")
        raw = stream.read(length)
    header = _parsed(path, "has a header that cannot be used", raw)
    header.pop(METADATA, None)
    where = path.absolute()
    leaves = {name: _leaf(where, name, entry, 8 + length, found) for name, entry in header.items()}
    _check_layout(path, leaves, 8 + length, size)
    return leaves


def _open_regular(path: Path) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file. Others are not even opened: a pipe would block, a device may act."""
    with told(path, "be read"):
        for look in (False, True):
            if look:
                number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            found = os.fstat(number) if look else os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                if look:
                    os.close(number)
                raise FileError(f"{path} cannot be read: it is a folder, a pipe, a socket or a device, and no file")
        return number, found


def _parsed(path: Path, complaint: str, raw: bytes) -> dict[str, Any]:
    """JSON that is a mapping, in UTF-8, no name twice."""
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except RecursionError:
        raise FileError(f"{path} {complaint}: it is nested too deep") from None
    except ValueError as error:
        reason = "" if isinstance(error, _Twice) else "it is not JSON: "
        raise FileError(f"{path} {complaint}: {reason}{error}") from None
    if not isinstance(found, dict):
        raise FileError(f"{path} {complaint}: it is no mapping")
    return found


class _Twice(ValueError):
    """A name that comes twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Twice(f"{name!r} comes twice")
            seen.add(name)
    return made


def _leaf(path: Path, name: str, entry: Any, begin: int, found: os.stat_result) -> FileLeaf:
    try:
        dtype, shape, (first, last) = _NAMES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if not isinstance(shape, list) or not all(type(number) is int for number in (*shape, first, last)):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        shown = repr(entry)[:200]
        raise FileError(f"{path}: tensor {name!r} has an entry that cannot be used: {shown}") from None
    kind = dtypes.of(dtype)
    width, size = kind.storage.itemsize, found.st_size
    # An array of no items may still have too many axes, or axes too long, for there to be one.
    if len(shape) > _MOST_AXES or math.prod(max(axis, 1) for axis in shape) > sys.maxsize // width:
        raise FileError(f"{path}: tensor {name!r} has a shape that no array can have: {repr(shape)[:200]}")
    expected = math.prod(shape) * width
    if first < 0 or min(shape, default=0) < 0 or last - first != expected:
        raise FileError(f"{path}: tensor {name!r} {dtype}{shape} needs {expected} bytes, has {last - first}")
    if begin + last > size:
        raise FileError(f"{path} is truncated: tensor {name!r} ends at byte {begin + last} of {size}")
    return FileLeaf(str(path), begin + first, tuple(shape), kind, stamp(found))


def _check_layout(path: Path, leaves: dict[str, FileLeaf], begin: int, size: int) -> None:
    """Tensors fill the file from the header to the end, as the format has it: no byte is two tensors', or none's."""
    spans = sorted((f.begin, f.begin + math.prod(f.shape) * f.dtype.storage.itemsize, n) for n, f in leaves.items())
    everything = [(0, begin, "the header"), *spans, (size, size, "the end")]
    for (_, end, first), (start, _, second) in itertools.pairwise(everything):
        if start < end:
            raise FileError(f"{path}: tensors {first!r} and {second!r} overlap")
        if start > end:
            raise FileError(f"{path}: {start - end} bytes between {first!r} and {second!r} are no tensor's")
