"""One run on disk: the server's state, the history so far and the round, in one safetensors file.

The file is written aside and renamed, so a killed run leaves the last whole one. Its header carries a digest of all
the rest and what the run belongs to, so a damaged or a foreign file is known as such.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pluribus.core.errors import FileError
from pluribus.core.files import write_bytes
from pluribus.federated.history import History
from pluribus.federated.models import Array
from pluribus.federated.simulation import Run

FORMAT = 2
PARTS = ("state", "memories", "world")
KEY = "pluribus"  # one key only: safetensors writes several in an order of chance


@dataclass(frozen=True)
class Clock:
    """Seconds that a run has taken so far: by the wall clock, and of the processor."""

    wall: float = 0.0
    cpu: float = 0.0


def save(path: Path, run: Run, belongs_to: str, clock: Clock) -> None:
    """Write a run. ``belongs_to`` names the experiment, the rule and the seed; `load` asks for the same."""
    from safetensors.numpy import save as serialise

    leaves = {(part, *path): value for part in PARTS if (tree := getattr(run, part)) for path, value in _leaves(tree)}
    tensors = {f"state {i}": value for i, value in enumerate(leaves.values())}
    tensors |= {f"history {f.name}": getattr(run.history, f.name) for f in dataclasses.fields(History)}
    tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    facts = {
        "format": FORMAT,
        "belongs_to": belongs_to,
        "round": run.round,
        "clock": [clock.wall, clock.cpu],
        "paths": [list(path) for path in leaves],
    }
    facts["digest"] = _digest(tensors, facts)
    write_bytes(path, serialise(tensors, {KEY: json.dumps(facts)}))


def load(path: Path, belongs_to: str) -> tuple[Run, Clock]:
    """Read a run back.

    Raises
    ------
    FileError
        The file is truncated, damaged, of another format, or of another run.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        digest = facts.pop("digest")
        if facts["format"] != FORMAT:
            raise FileError(f"{path} has format {facts['format']}, not {FORMAT}")
        if digest != _digest(tensors, facts):
            raise FileError(f"{path} is damaged: its contents do not match its digest")
        if facts["belongs_to"] != belongs_to:
            raise FileError(f"{path} belongs to another run")
        parts = _nested(facts["paths"], tensors)
        history = History(**{f.name: tensors[f"history {f.name}"] for f in dataclasses.fields(History)})
        return Run(int(facts["round"]), parts["state"], history, *(parts.get(n, {}) for n in PARTS[1:])), Clock(
            *facts["clock"]
        )
    except FileError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path} is no checkpoint that can be used: {error}") from None


def _leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Array]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and not value:
            raise TypeError(f"the state's {'/'.join((*path, key))!r} is empty; leave it out or fill it")
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        elif isinstance(value, (np.ndarray, np.generic)):
            yield (*path, key), np.asarray(value)
        else:
            name = "/".join((*path, key))
            raise TypeError(f"the state's {name!r} is a {type(value).__name__}; a state is a tree of numpy arrays")


def _nested(paths: list[list[str]], tensors: Mapping[str, Array]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for i, (*branch, leaf) in enumerate(paths):
        at = state
        for key in branch:
            at = at.setdefault(key, {})
        at[leaf] = tensors[f"state {i}"]
    return state


def _digest(tensors: Mapping[str, Array], facts: Mapping[str, Any]) -> str:
    told = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name]
        told.update(f"{name} {value.dtype.str} {value.shape}".encode())
        told.update(np.asarray(value, order="C").tobytes())
    return told.hexdigest()
