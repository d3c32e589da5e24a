"""Several experiments from one file: settings that are lists are the axes, and each combination is a cell.

A cell is an ordinary experiment in a folder of its own below the grid's. While cells are to be run ``cells.json`` says
which; ``grid.json`` is written last, so where it is and ``cells.json`` is not, the grid is whole.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pluribus
from pluribus.core.errors import PluribusError
from pluribus.core.files import write_text
from pluribus.federated import comparison, config, experiment, folder, outputs
from pluribus.federated.comparison import NUMBERS, Told, told
from pluribus.federated.config import ALPHA, Config, Layer
from pluribus.federated.errors import SettingError
from pluribus.federated.experiment import Watch
from pluribus.federated.folder import CELLS, GRID, FolderError
from pluribus.federated.simulation import SimulationError

AXES = ("attack", "partition", "shift", "participation", "schedule", "channel")
"""Settings that may be lists."""

LONGEST = 120  # characters of a cell's name


@dataclass(frozen=True)
class Cell:
    """One combination: the name of its folder, and its settings."""

    name: str
    settings: Config


@dataclass(frozen=True)
class Outcome:
    """What stands in ``folder``: the summary, and what is to be told about how it came about."""

    folder: Path
    summary: Mapping[str, Any]
    experiments: tuple[Told, ...]
    notes: tuple[str, ...] = ()
    made_now: bool = True


def expand(layers: Sequence[Layer]) -> tuple[tuple[Cell, ...], tuple[str, ...]] | None:
    """The cells that layers of settings mean, and notes; None where no setting is a list.

    A later layer's scalar goes before an earlier one's list. ``alpha`` may be a list too.

    Raises
    ------
    SettingError
        A list that is empty, or two of whose entries mean the same; whatever `config.resolve` raises.
    """
    plain = settled(layers)
    axes: dict[str, tuple[int, list[Any]]] = {}
    for k, layer in enumerate(plain):
        for key, value in layer.values.items():
            if key in AXES and isinstance(value, (list, tuple)):
                if not value:
                    raise SettingError(f"{layer.where(key)} is an empty list; give at least one value")
                axes[key] = k, list(value)
    if not axes:
        return None
    cells: dict[str, Cell] = {}
    notes: dict[str, None] = {}
    for chosen in itertools.product(*(values for _, values in axes.values())):
        picked = dict(zip(axes, chosen, strict=True))
        made = []
        for k, layer in enumerate(plain):
            own = {key: value for key, value in picked.items() if axes[key][0] == k}
            made.append(dataclasses.replace(layer, values={**layer.values, **own}))
        settings, told_now = config.resolve(*made)
        notes |= dict.fromkeys(told_now)
        name = _name({key: str(getattr(settings, key)) for key in axes})
        same = next((cell for cell in cells.values() if cell.settings == settings), None)
        if same is not None:
            raise SettingError(f"two cells of the grid mean the same, {same.name}; leave one of the equal entries out")
        number, free = 2, name
        while free in cells:
            free, number = f"{name}-{number}", number + 1
        cells[free] = Cell(free, settings)
    return tuple(cells.values()), tuple(notes)


def settled(layers: Sequence[Layer]) -> list[Layer]:
    """The same layers without what of the `AXES` a later layer says otherwise; a list of alphas as partitions."""
    plain = [dataclasses.replace(layer, values=_spelled(layer)) for layer in layers]
    last = {key: k for k, layer in enumerate(plain) for key in AXES if key in layer.values or _means(layer, key)}
    return [
        dataclasses.replace(layer, values={key: value for key, value in layer.values.items() if last.get(key, k) == k})
        for k, layer in enumerate(plain)
    ]


def _means(layer: Layer, key: str) -> bool:
    return key == "partition" and ALPHA in layer.values


def stored(out: Path) -> tuple[Cell, ...] | None:
    """The cells of the unfinished or finished grid in a folder; None where there is none that can be read."""
    found = _cells(out)
    if found is None:
        return None
    try:
        return tuple(Cell(name, config.resolve(Layer(values))[0]) for name, values in found.items())
    except PluribusError:  # of another version; `run` tells what differs
        return None


def run(
    cells: Sequence[Cell],
    out: Path = experiment.DEFAULT_FOLDER,
    *,
    workers: int = 1,
    resume: bool = False,
    force: bool = False,
    watch: Callable[[Cell, int, int], Watch] | None = None,
    engine: str | None = None,
) -> Outcome:
    """Run every cell, one after another, each with all ``workers``; or tell the results where they stand already.

    Parameters
    ----------
    cells
        From `expand`.
    out, workers, resume, force, engine
        As of `pluribus.federated.experiment.run`.
    watch
        ``watch(cell, number, cells)`` follows a cell's experiment; numbers from 1.

    Raises
    ------
    SettingError, DataError, FileError
        A cell's settings do not fit the data; told before the first run.
    FolderError
        The folder holds something else.
    SimulationError
        A run failed; the message names the cell. What was reached stays, for ``resume``.
    """
    wanted = {cell.name: cell.settings.plain() for cell in cells}
    if not force:
        _refuse(out, wanted, resume)
    elif folder.look(out).binding is not None:
        raise FolderError(f"{out} holds an experiment that is no grid; choose another --out")
    for cell in cells:
        _try(cell)
    folder.make(out)
    for half in out.glob(".pluribus-*.tmp"):
        half.unlink(missing_ok=True)
    finished = (out / GRID).exists() and not (out / CELLS).exists() and not force
    if not finished:
        write_text(out / CELLS, outputs.as_json({"cells": wanted}))
        (out / GRID).unlink(missing_ok=True)
    done, notes, made_now = [], [], False
    for k, cell in enumerate(cells):
        follow = watch(cell, k + 1, len(cells)) if watch else None
        try:
            outcome = experiment.run(
                cell.settings,
                out / cell.name,
                workers=workers,
                resume=True,
                force=force,
                watch=follow,
                engine=engine,
            )
        except SimulationError as error:
            raise SimulationError(f"{cell.name}: {error}") from error
        made_now |= outcome.made_now
        notes += [f"{cell.name}: {note}" for note in outcome.notes if outcome.made_now]
        done.append(told(cell.name, out / cell.name, outcome.summary))
    summary = _summary(done, wanted)
    if made_now or not finished:
        write_text(out / "grid.csv", _csv(done))
        write_text(out / "report.html", comparison.page(done, f"{len(cells)} experiments", out))
        write_text(out / GRID, outputs.as_json(summary))
    (out / CELLS).unlink(missing_ok=True)
    if finished and not made_now:
        notes.append(f"{out} holds this grid already, finished; --force runs it again.")
    return Outcome(out, summary, tuple(done), tuple(notes), made_now or not finished)


def _summary(done: Sequence[Told], wanted: Mapping[str, Any]) -> dict[str, Any]:
    plain = comparison.as_plain(done)
    for one in plain["experiments"]:
        one["folder"] = one["name"]  # from the grid's folder, wherever that is
    return {"pluribus": pluribus.__version__, "cells": dict(wanted), **plain}


def _csv(done: Sequence[Told]) -> str:
    apart = {key: values for key, values in comparison.differing(done).items() if key in config.SETTINGS}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["cell", *apart, "rule", "mark", *NUMBERS, "accuracy_spread"])
    for k, one in enumerate(done):
        for row in one.rows:
            numbers = [row.get(name, {}).get("mean") for name in NUMBERS] + [row["accuracy"]["spread"]]
            shown = ["" if value is None else repr(float(value)) for value in numbers]
            own = [values[k] for values in apart.values()]
            rows.writerow([one.name, *own, row["rule"], comparison.mark(one, row["rule"]), *shown])
    return text.getvalue()


def _refuse(out: Path, wanted: Mapping[str, Any], resume: bool) -> None:
    """Raise if going on would destroy something, or mix two grids."""
    there = _cells(out)
    if there is None:
        found = folder.look(out)
        if found.what != "nothing":
            raise FolderError(f"{out} holds something else than a grid ({found.what}); choose another --out")
        return
    if there != wanted:
        gone, fresh = [n for n in there if n not in wanted], [n for n in wanted if n not in there]
        told_more = [
            f"{name}: {', '.join(config.differences(there[name], wanted[name]))}"
            for name in wanted
            if name in there and there[name] != wanted[name]
        ]
        what = [*(f"{name} is there and not here" for name in gone), *(f"{name} is new" for name in fresh), *told_more]
        raise FolderError(
            f"{out} holds another grid ({'; '.join(what[:3])}{'; ...' if len(what) > 3 else ''}); choose another "
            "--out, or write over with --force"
        )
    if (out / CELLS).exists() and not resume:
        raise FolderError(f"{out} holds this grid, unfinished; go on with --resume, or start anew with --force")


def _cells(out: Path) -> dict[str, Any] | None:
    for name in (CELLS, GRID):
        found = (folder.read_json(out / name) or {}).get("cells")
        if isinstance(found, dict):
            return found
    return None


def _try(cell: Cell) -> None:
    try:
        experiment.check(cell.settings)
    except SettingError as error:
        raise SettingError(f"{cell.name}: {error}") from None


def _spelled(layer: Layer) -> dict[str, Any]:
    """Keys as the settings spell them, and a list of alphas as a list of partitions."""
    values = {key.replace("-", "_"): value for key, value in layer.values.items()}
    alphas = values.get(ALPHA)
    if isinstance(alphas, (list, tuple)):
        if "partition" in values:
            raise SettingError(f"{layer.where(ALPHA)} is short for partition dirichlet:ALPHA; give one of the two")
        values["partition"] = [f"dirichlet:{alpha}" for alpha in values.pop(ALPHA)]
    return values


def _name(chosen: Mapping[str, str]) -> str:
    """``attack-sign_flip-4-3_partition-iid``; of a file its name alone."""
    parts = []
    for key, value in chosen.items():
        short = f"trace-{Path(value.removeprefix('trace:')).name}" if value.startswith("trace:") else value
        parts.append(f"{key}-{re.sub(r'[^A-Za-z0-9_.]+', '-', short).strip('-.')}")
    name = "_".join(parts)
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
