"""The folder of an experiment: what is in it, who works on it, and what may be written over.

::

    report.html rounds.csv weights.csv clients.csv config.toml timing.json models/  the results
    summary.json   written last: where it is, the experiment is finished
    checkpoints/   only while it is not: run.json says of what experiment, one file a run
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pluribus.core.errors import PluribusError
from pluribus.core.files import write_text

SUMMARY = "summary.json"
RESULTS = ("report.html", "rounds.csv", "weights.csv", "clients.csv", "config.toml", "timing.json", SUMMARY)
MODELS = "models"
CHECKPOINTS = "checkpoints"
BINDING = "run.json"
CELLS, GRID = "cells.json", "grid.json"  # of a grid: what is to be run, and what came of it


class FolderError(PluribusError, ValueError):
    """A folder that holds something else, or on which somebody works."""


@dataclass(frozen=True)
class Found:
    """What a folder holds: ``"nothing"`` of ours, an ``"unfinished"`` or a ``"finished"`` experiment, or files
    of ``"others"`` under our names; and of what experiment (see `pluribus.federated.experiment.binding_of`).
    """

    what: str
    binding: Mapping[str, Any] | None = None
    names: tuple[str, ...] = ()


def look(folder: Path) -> Found:
    """What is there. A folder that does not exist holds nothing."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; give the name of a folder for the results")
    unfinished = read_json(folder / CHECKPOINTS / BINDING)
    if unfinished is not None:
        return Found("unfinished", unfinished)
    summary = read_json(folder / SUMMARY)
    if summary is not None and isinstance(summary.get("binding"), dict):
        return Found("finished", summary["binding"])
    names = tuple(name for name in (*RESULTS, CELLS, GRID) if (folder / name).exists())
    return Found("others", None, names) if names else Found("nothing")


def make(folder: Path) -> None:
    """Create the folder, with those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{folder} could not be created: {error.strerror or error}; choose another --out") from None


def open_for(folder: Path, binding: Mapping[str, Any]) -> None:
    """Make the folder ready for an experiment: its mark, and no results or leftovers of another one."""
    (folder / MODELS).mkdir(parents=True, exist_ok=True)
    checkpoints = folder / CHECKPOINTS
    checkpoints.mkdir(exist_ok=True)
    # The mark comes before anything is removed, so that a kill in between leaves an unfinished experiment.
    write_text(checkpoints / BINDING, json.dumps(binding, indent=1, sort_keys=True) + "\n")
    for name in (*RESULTS, CELLS, GRID, "grid.csv"):
        (folder / name).unlink(missing_ok=True)
    for old in (folder / MODELS).glob("*-seed*.safetensors"):
        old.unlink()
    for place in (folder, folder / MODELS, checkpoints):
        for half in place.glob(".pluribus-*.tmp"):
            half.unlink(missing_ok=True)


def close(folder: Path) -> None:
    """Remove the checkpoints of an experiment whose results are all written."""
    # The mark goes first: without it leftover checkpoints mean nothing.
    (folder / CHECKPOINTS / BINDING).unlink(missing_ok=True)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; the system lets go of it however the process ends.

    Raises `FolderError` when another process holds it. Where the system has no such locks nothing is held.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    with (folder / CHECKPOINTS / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(f"another process is at work on {folder}; wait for it, or choose another --out") from None
        yield


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None where there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
