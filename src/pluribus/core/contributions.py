"""Contributions: n things of one shape, checked once, read by blocks of coordinates as n views.

The container hides whether a contribution is an array, a tree of arrays, a torch ``state_dict`` or a file. It
copies nothing whole: `Contributions.views` gives the n one-dimensional views of a block.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from pluribus.core import checkpoints, dtypes, leaves, tree
from pluribus.core.dtypes import Array, DType
from pluribus.core.errors import ContributionError, listing
from pluribus.core.leaves import Leaf
from pluribus.core.medium import NUMPY, Medium

Missing = Literal["error", "absent"]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that the contributions share. ``dtype`` is that of the result."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of items."""
        return math.prod(self.shape)

    @property
    def coordinates(self) -> int:
        """Number of real coordinates; zero for counters and masks, which take no part in distances."""
        return 0 if self.dtype.discrete else self.size * self.dtype.per_item

    @property
    def label(self) -> str:
        """How errors name it."""
        return f"tensor {self.name!r}" if self.name else "the array"


@dataclass(frozen=True)
class Block:
    """Items ``start:stop`` of tensor number ``tensor``."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True)
class Blocks(Sequence[Block]):
    """All blocks of a size, by number, without a list of them."""

    size: int
    tensors: tuple[int, ...]
    sizes: tuple[int, ...]
    ends: tuple[int, ...]  # numbers of blocks up to and with each tensor

    @classmethod
    def of(cls, specs: Sequence[TensorSpec], size: int, discrete: bool) -> Blocks:
        """Cut tensors of one kind, in the order of their names: sums over blocks must not depend on a file's order."""
        named = sorted(enumerate(specs), key=lambda item: item[1].name)
        kept = [(index, spec.size) for index, spec in named if spec.dtype.discrete == discrete and spec.size]
        ends = itertools.accumulate(-(-items // size) for _, items in kept)
        return cls(size, tuple(i for i, _ in kept), tuple(items for _, items in kept), tuple(ends))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[k] for k in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        at = bisect.bisect_right(self.ends, number)
        start = (number - (self.ends[at - 1] if at else 0)) * self.size
        return Block(self.tensors[at], start, min(start + self.size, self.sizes[at]))


@dataclass(frozen=True, eq=False)
class Contributions:
    """n contributions, then any extra rows (a previous result, a trusted reference, a base model).

    Attributes
    ----------
    specs
        The tensors, in the order of the first contribution.
    n
        Number of contributions; rows ``n`` and above are the extra rows named in ``extras``.
    labels
        How each row is named in errors and reports.
    medium
        What passes read it as: numpy arrays, or tensors on one device (see `within`).
    """

    specs: tuple[TensorSpec, ...]
    n: int
    labels: tuple[str, ...]
    extras: tuple[str, ...]
    rows: tuple[tuple[Leaf | None, ...], ...] = field(repr=False)
    structure: tree.Structure = field(repr=False)
    medium: Medium = field(default=NUMPY, repr=False)

    @property
    def device(self) -> Any:
        """Where the tensors lie that passes read; None where they read numpy arrays."""
        return self.medium.device

    @cached_property
    def coordinates(self) -> int:
        """Real coordinates of one contribution (d)."""
        return sum(spec.coordinates for spec in self.specs)

    @cached_property
    def incomplete(self) -> bool:
        """Whether some contributor lacks some tensor."""
        return any(leaf is None for row in self.rows for leaf in row)

    def blocks(self, size: int, *, discrete: bool) -> Blocks:
        """Ranges of at most ``size`` items, in order; over counters and masks, or over all else."""
        return Blocks.of(self.specs, size, discrete)

    def first_coordinate(self, block: Block) -> int:
        """Number of the block's first coordinate, counted over all tensors; counters and masks are counted apart.

        Tensors come in the order of their names: what is drawn by place must not depend on a file's order.
        """
        own = self.specs[block.tensor]
        before = (
            s.size * s.dtype.per_item
            for s in self.specs
            if s.dtype.discrete == own.dtype.discrete and s.name < own.name
        )
        return sum(before) + block.start * own.dtype.per_item

    def views(self, block: Block, rows: Sequence[int], cleaned: frozenset[int] = frozenset()) -> list[Any]:
        """The block's coordinates of each row: float32 or float64, all of one dtype, never to be written to.

        Arrays, or tensors, as the medium has it.
        Rows in ``cleaned`` have NaN and Inf replaced by zero (in a copy of the block).
        """
        compute, medium = self.specs[block.tensor].dtype.compute, self.medium
        found = []
        for row in rows:
            leaf = self.rows[row][block.tensor]
            assert leaf is not None, "rows without the tensor are left out by the caller"
            view = medium.coordinates(medium.items(leaf, block.start, block.stop), leaf.dtype, compute)
            found.append(medium.cleaned(view) if row in cleaned else view)
        return found

    def present(self, tensor: int, rows: Sequence[int]) -> list[int]:
        """Positions in ``rows`` of the contributors that have the tensor."""
        return [k for k, row in enumerate(rows) if self.rows[row][tensor] is not None]

    def allocate(self) -> list[Any]:
        """Room for a result: one uninitialised array (or tensor) of stored items a tensor."""
        return self.medium.allocate(self.specs)

    def rebuild(self, arrays: Sequence[Array]) -> Any:
        """The result in the structure, and of the array kind, of one contribution."""
        made = {}
        for index, (spec, array) in enumerate(zip(self.specs, arrays, strict=True)):
            held = [leaf for row in self.rows if (leaf := row[index]) is not None]
            kin = next((leaf for leaf in held if leaf.dtype == spec.dtype or leaves.device(leaf)), None)
            made[spec.name] = array if kin is None else kin.restore(array)
        return self.structure.build(made)

    def subset(self, tensors: Sequence[int]) -> Contributions:
        """Some of the tensors, by number; a flat mapping of their names. Nothing is copied."""
        specs = tuple(self.specs[k] for k in tensors)
        rows = tuple(tuple(row[k] for k in tensors) for row in self.rows)
        return replace(self, specs=specs, rows=rows, structure=tree.flat([spec.name for spec in specs]))

    def ranges(self, blocks: Sequence[Block]) -> Contributions:
        """Ranges of tensors as tensors of their own, each of one axis. Nothing is copied."""
        named = [f"{self.specs[b.tensor].name}[{b.start}:{b.stop}]" for b in blocks]
        specs = [
            TensorSpec(n, (b.stop - b.start,), self.specs[b.tensor].dtype) for n, b in zip(named, blocks, strict=True)
        ]
        rows = [[_range(row[b.tensor], b) for b in blocks] for row in self.rows]
        return replace(self, specs=tuple(specs), rows=tuple(map(tuple, rows)), structure=tree.flat(named))

    def portable(self) -> Contributions:
        """The same for another process, which opens files itself; raises where a contribution lies in memory."""
        for label, row in zip(self.labels, self.rows, strict=True):
            if not all(leaf is None or isinstance(leaf, checkpoints.FileLeaf) for leaf in row):
                raise ContributionError(
                    f"{label} lies in this process's memory, where other processes cannot read it: "
                    "save it as a .safetensors file and give its path, or use engine='threads'"
                )
        return replace(self, structure=tree.Structure("leaf"))

    def template(self) -> Contributions:
        """Names, shapes, dtypes and array kinds of the first contribution, without its data."""
        return Contributions(
            self.specs,
            1,
            self.labels[:1],
            (),
            (tuple(leaf and leaf.hollow() for leaf in self.rows[0]),),
            self.structure,
        )

    def with_extras(self, extras: Mapping[str, Any]) -> Contributions:
        """These contributions and further rows, checked against them."""
        rows, labels = list(self.rows), list(self.labels)
        for name, value in extras.items():
            found, _ = _open(value, name)
            _check_row(found, self.specs, name, self.labels[0], "error", whole=True)
            rows.append(tuple(found[spec.name] for spec in self.specs))
            labels.append(name)
        return replace(self, labels=tuple(labels), extras=self.extras + tuple(extras), rows=tuple(rows))

    def within(self, medium: Medium) -> Contributions:
        """The same, read as arrays of another kind. Nothing is copied."""
        return self if medium == self.medium else replace(self, medium=medium)


def gather(contributions: Any, missing: Missing = "error") -> Contributions:
    """Check contributions and put them into one container.

    Parameters
    ----------
    contributions
        A sequence of contributions (or an array whose rows they are), or a mapping from contributors' names to
        contributions. Each is an array, a mapping or sequence of arrays, a torch tensor or ``state_dict``, or a
        path to a ``.safetensors`` file or a sharded checkpoint.
    missing
        ``"error"``: all must have the same tensors. ``"absent"``: a tensor that a contributor lacks is combined
        from those that have it.

    Raises
    ------
    ContributionError
        No contributions; other names, shapes or kinds of number than the first; a dtype that cannot be combined.
    """
    if missing not in ("error", "absent"):
        raise ContributionError(f"missing must be 'error' or 'absent', not {missing!r}")
    labels, values = _contributors(contributions)
    if not values:
        raise ContributionError("no contributions: at least one is needed")
    opened = [_open(value, label) for label, value in zip(labels, values, strict=True)]
    first, structure = opened[0]
    shapes: dict[str, tuple[str, Leaf]] = {}
    for label, (found, _) in zip(labels, opened, strict=True):
        for name, leaf in found.items():
            shapes.setdefault(name, (label, leaf))
    if missing == "absent" and len(shapes) > len(first):
        structure = _union(structure, list(shapes))
    names = list(tree.names(structure))
    specs = tuple(
        TensorSpec(name, shapes[name][1].shape, _result_dtype(name, labels, [o[0] for o in opened]))
        for name in (names if missing == "absent" else first)
    )
    if not specs:
        raise ContributionError(f"{labels[0]} holds no tensors")
    for label, (found, _) in zip(labels, opened, strict=True):
        _check_row(found, specs, label, labels[0], missing)
    rows = tuple(tuple(found.get(spec.name) for spec in specs) for found, _ in opened)
    return Contributions(specs, len(values), tuple(labels), (), rows, structure)


def _range(leaf: Leaf | None, block: Block) -> Leaf | None:
    return leaf and leaves.Range(leaf, block.start, block.stop)


def _contributors(contributions: Any) -> tuple[list[str], list[Any]]:
    if isinstance(contributions, Mapping):
        return [f"contributor {name!r}" for name in contributions], list(contributions.values())
    if checkpoints.is_checkpoint(contributions):
        raise ContributionError("one path is one contribution: give a list of paths")
    if isinstance(contributions, (bytes, bytearray, memoryview)):
        raise ContributionError(f"a {type(contributions).__name__} is no sequence of contributions")
    if getattr(contributions, "shape", None) == ():
        raise ContributionError("one number is one contribution: give a list of contributions")
    try:
        values = list(contributions)
    except TypeError:
        kind = type(contributions).__name__
        raise ContributionError(f"expected a sequence or mapping of contributions, not a {kind}") from None
    return [f"contributor {i}" for i in range(len(values))], values


def _open(value: Any, label: str) -> tuple[dict[str, Leaf], tree.Structure]:
    if checkpoints.is_checkpoint(value):
        value = checkpoints.read(value)
    try:
        found, structure = tree.flatten(value)
        return {name: leaves.of(leaf, name) for name, leaf in found.items()}, structure
    except RecursionError:
        raise ContributionError(f"{label} is nested without end, or too deep") from None
    except ContributionError as error:
        raise ContributionError(f"{label}: {error}") from None


def _union(structure: tree.Structure, names: list[str]) -> tree.Structure:
    """The structure of a mapping that also has the names that only later contributors bring."""
    if structure.kind != "mapping" or any(tree.SEPARATOR in name for name in names):
        raise ContributionError("missing='absent' needs contributions that are flat mappings of names to arrays")
    return tree.flat(names)


def _result_dtype(name: str, labels: Sequence[str], opened: Sequence[Mapping[str, Leaf]]) -> DType:
    by_dtype: dict[str, str] = {}
    for label, found in zip(labels, opened, strict=True):
        if name in found:
            by_dtype.setdefault(found[name].dtype.name, label)
    dtype = dtypes.common(set(by_dtype))
    if dtype is None:
        told = listing([f"{dtype} in {label}" for dtype, label in by_dtype.items()])
        raise ContributionError(f"tensor {name!r} is of different kinds: {told}; convert all to one kind of number")
    return dtype


def _check_row(
    found: Mapping[str, Leaf],
    specs: Sequence[TensorSpec],
    label: str,
    first: str,
    missing: Missing,
    *,
    whole: bool = False,
) -> None:
    """Raise `ContributionError` where a row is unlike the first; ``whole``: it must be so, whatever others lack."""
    if missing == "error":
        lacking = [spec.name for spec in specs if spec.name not in found]
        extra = sorted(set(found) - {spec.name for spec in specs})
        if lacking or extra:
            parts = [
                f"{what} {listing([repr(n) for n in names])}"
                for what, names in (("lacks", lacking), ("has", extra))
                if names
            ]
            raise ContributionError(
                f"{label} {' and '.join(parts)}, unlike {first}; give all the same tensors"
                + (", or missing='absent'" if lacking and not extra and not whole else "")
            )
    for spec in specs:
        leaf = found.get(spec.name)
        if leaf is None:
            continue
        if tuple(leaf.shape) != spec.shape:
            raise ContributionError(
                f"{label}: {spec.label} has shape {tuple(leaf.shape)}, expected {spec.shape} as in {first}"
            )
        if leaf.dtype.kind != spec.dtype.kind:
            raise ContributionError(
                f"{label}: {spec.label} is {leaf.dtype.name}, expected {spec.dtype.name} as in {first}"
            )
