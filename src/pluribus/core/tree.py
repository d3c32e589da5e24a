"""The structure of one contribution: arrays in mappings and sequences, each with a name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from pluribus.core.errors import ContributionError

SEPARATOR = "/"


@dataclass(frozen=True)
class _Mapping:
    """Makes a mapping of values; a class and not a closure, so that structures can be pickled."""

    kind: type
    keys: tuple[Any, ...]

    def __call__(self, children: list[Any]) -> Any:
        return self.kind(zip(self.keys, children, strict=True))


@dataclass(frozen=True)
class Structure:
    """How leaves were nested; ``build`` nests new leaves the same way.

    ``kind`` is ``"leaf"``, ``"mapping"`` or ``"sequence"``; ``name`` is the leaf's full name.
    """

    kind: str
    name: str = ""
    make: Callable[[list[Any]], Any] | None = None
    children: tuple[Structure, ...] = ()

    def build(self, leaves: Mapping[str, Any]) -> Any:
        """The nested value whose leaves are ``leaves[name]``."""
        if self.make is None:
            return leaves[self.name]
        return self.make([child.build(leaves) for child in self.children])


def flatten(value: Any) -> tuple[dict[str, Any], Structure]:
    """Leaves by name, in order, and the structure that holds them.

    A mapping's keys are names; nested names are joined by ``/``; a sequence's names are its positions; a bare
    array has the name ``""``. A list of plain numbers is one array of float64, and so is a number that is a whole
    contribution; a plain int or bool inside of a tree is a counter or a flag.
    """
    leaves: dict[str, Any] = {}
    structure = _walk(value, "", leaves)
    return leaves, structure


def flat(names: Sequence[str]) -> Structure:
    """The structure of a mapping from names to leaves."""
    keys = tuple(names)
    children = tuple(Structure("leaf", name) for name in keys)
    return Structure("mapping", "", _Mapping(dict, tuple(keys)), children)


def _walk(value: Any, name: str, leaves: dict[str, Any]) -> Structure:
    if not isinstance(value, np.ndarray):  # most leaves are: to ask first is cheap, to ask for a Mapping is not
        if isinstance(value, Mapping):
            return _branch("mapping", list(value.items()), _mapping_maker(value), name, leaves)
        if is_sequence(value) and not _plain_numbers(value):
            return _branch("sequence", list(enumerate(value)), _sequence_maker(value), name, leaves)
    if name in leaves:
        raise ContributionError(f"two tensors have the name {name!r}; nested names are joined by {SEPARATOR!r}")
    leaves[name] = value if isinstance(value, np.ndarray) else _leaf(value, name)
    return Structure("leaf", name)


def _branch(
    kind: str,
    items: Sequence[tuple[Any, Any]],
    make: Callable[[list[Any]], Any],
    prefix: str,
    leaves: dict[str, Any],
) -> Structure:
    children = tuple(_walk(child, f"{prefix}{SEPARATOR}{key}" if prefix else str(key), leaves) for key, child in items)
    return Structure(kind, prefix, make, children)


def _mapping_maker(value: Mapping[Any, Any]) -> Callable[[list[Any]], Any]:
    keys = tuple(value)
    kind = OrderedDict if isinstance(value, OrderedDict) else dict
    return _Mapping(kind, keys)


def _sequence_maker(value: Any) -> Callable[[list[Any]], Any]:
    if hasattr(type(value), "_make"):
        return type(value)._make
    return tuple if isinstance(value, tuple) else list


def is_sequence(value: Any) -> bool:
    """Whether a value is a list or tuple (or the like) of things, and not an array or text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def _plain_numbers(value: Sequence[Any]) -> bool:
    return len(value) > 0 and all(isinstance(v, Number) and not isinstance(v, np.generic) for v in value)


def _leaf(value: Any, name: str) -> Any:
    if name and isinstance(value, int):  # a counter or a flag of a tree, as a numpy integer would be
        return np.asarray(value)
    if is_sequence(value) or isinstance(value, (int, float, complex)):
        kind = complex if np.iscomplexobj(value) else float
        try:
            return np.asarray(value, dtype=kind)
        except OverflowError:
            raise ContributionError(f"tensor {name!r} holds a number that float64 cannot") from None
    if isinstance(value, np.generic):
        return np.asarray(value)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        where = f"tensor {name!r}" if name else "the contribution"
        raise ContributionError(
            f"{where} is a {type(value).__name__}; expected an array, or a mapping or sequence of arrays"
        )
    return value


def names(structure: Structure) -> Iterator[str]:
    """The leaf names of a structure, in order."""
    if structure.make is None:
        yield structure.name
    for child in structure.children:
        yield from names(child)
