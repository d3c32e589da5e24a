"""``pluribus federate``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pluribus.cli.app import FailedError, stopped
from pluribus.federated.config import ALPHA, SETTINGS, Config, Layer

if TYPE_CHECKING:
    from pluribus.federated.grid import Cell

HERE = "pluribus-out/federate"


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    """An option for each setting, under its own name; texts are read and checked by the settings themselves."""
    for name, setting in reversed(SETTINGS.items()):
        if name == "partition":  # the shortcut is listed below what it is short for
            command = click.option(f"--{ALPHA}", ALPHA, metavar="A", help="short for --partition dirichlet:A")(command)
        option = f"--{name.replace('_', '-')}"
        shown = setting.metadata["help"]
        if setting.type == "bool | None":  # its help says what holds unless it is given
            command = click.option(f"{option}/{option.replace('--', '--no-', 1)}", name, default=None, help=shown)(
                command
            )
            continue
        default = setting.metadata["unsaid"] or setting.default
        default = ",".join(default) if isinstance(default, tuple) else default
        metavar = setting.metadata["metavar"]
        command = click.option(option, name, metavar=metavar, help=f"{shown}  [{default}]")(command)
    return command


class _Federate(click.Command):
    """The command, whose first word may be ``compare`` in the place of a file."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of this command, or of the other."""
        if args[:1] == ["compare"]:
            from pluribus.cli.compare import compare

            return compare.make_context(f"{info_name} compare", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


class _Stoppable:
    """Around the command: Ctrl-C ends it with a hint that fits what is stored by then."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.settings: Config | None = None
        self.cells: Sequence[Cell] | None = None

    def __enter__(self) -> _Stoppable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise stopped(f"stopped; {self._hint()}", error) from None

    def _hint(self) -> str:
        from pluribus.federated import experiment as room
        from pluribus.federated import grid

        if self.cells is not None and self.folder is not None:
            stored = grid.stored(self.folder) == tuple(self.cells)
        else:
            known = self.folder is not None and self.settings is not None
            stored = known and room.stored_settings(self.folder or Path()) == self.settings
        if not stored:
            return "nothing was stored yet; run the same command again"
        return f"to go on: pluribus federate --resume --out {self.folder}"


@click.command(
    cls=_Federate, short_help="Many clients' updates become one model: rules side by side, and a page that shows why."
)
@click.argument("file", metavar="[CONFIG.toml]", required=False, type=click.Path(path_type=Path))
@_settings
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help=f"where the results go  [{HERE}]")
@click.option("--workers", metavar="N", help="processes; the results do not depend on them  [processors, or fewer]")
@click.option(
    "--engine",
    metavar="none|processes|threads|ray",
    help="where clients train; the results do not depend on it; with one, runs come one after another  [none]",
)
@click.option("--resume", is_flag=True, help="go on with the unfinished experiment in DIR")
@click.option("--force", is_flag=True, help="write over the experiment in DIR")
@click.option("--dry-run", is_flag=True, help="show the settings and the clients, and stop")
@click.option("--json", "as_json", is_flag=True, help="print the results as JSON and nothing else")
@click.option("--quiet", is_flag=True, help="no progress, the table only")
def federate(
    file: Path | None,
    *,
    out: Path | None,
    workers: str | None,
    engine: str | None,
    resume: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Train one model over many clients, under several server rules on the same clients.

    Settings come from CONFIG.toml, if there is one, and the options below, which go first. With none at all it is an
    experiment worth looking at, of less than a minute. Results go to DIR: report.html, rounds.csv, weights.csv,
    clients.csv, models/, config.toml, summary.json and timing.json. The same settings give the same bytes, except for
    timing.json. A run that was stopped or killed goes on with --resume.

    Where a file gives attack, partition, shift, participation, schedule or channel a list, each combination is an
    experiment in a folder of its own, and one page compares them. `pluribus federate compare DIR...` compares
    finished folders.
    """
    with _Stoppable() as stoppable:
        from pluribus.cli import progress, show
        from pluribus.federated import config, config_file, grid
        from pluribus.federated import experiment as room

        layers: list[Layer] = []
        beside: dict[str, Any] = {}
        if file is not None:
            layer, beside = config_file.read(file)
            layers.append(layer)
        options = {name: value for name, value in given.items() if value is not None}
        layers.append(Layer(options, lambda key: f"--{key.replace('_', '-')}"))
        folder = out or config_file.folder_of(beside, file) or Path(HERE)
        going_on = resume and not force
        processes = config.read_workers(workers if workers is not None else beside.get("workers"))
        where = config.read_engine(engine if engine is not None else beside.get("engine"))
        spread_out = grid.expand(layers)
        there = grid.stored(folder) if going_on else None
        if spread_out is None and there is not None and file is None and not options:
            spread_out = there, ()
        if spread_out is not None:
            cells, notes = spread_out
            if going_on and there is None:
                raise room.FolderError(f"nothing to resume in {folder}; leave --resume out to begin there")
            if dry_run:
                show.cells(cells, as_json)
                return
            silent = quiet or as_json
            for note in () if silent else notes:
                click.echo(note, err=True)
            stoppable.folder, stoppable.cells = folder, cells
            follow = None if silent else progress.watch_cell
            with _failing():
                outcome = grid.run(
                    cells, folder, workers=processes, resume=resume, force=force, watch=follow, engine=where
                )
            show.grid(outcome, as_json, quiet)
            return
        if going_on and not room.holds_experiment(folder):
            raise room.FolderError(f"nothing to resume in {folder}; leave --resume out to begin there")
        base = room.stored_settings(folder) if going_on else None
        settings, notes = config.resolve(*grid.settled(layers), base=base)
        if dry_run:
            show.plan(settings, as_json)
            return
        silent = quiet or as_json
        for note in () if silent else notes:
            click.echo(note, err=True)
        watch = None if silent else progress.watch(settings)
        stoppable.folder, stoppable.settings = folder, settings
        with _failing():
            made = room.run(settings, folder, workers=processes, resume=resume, force=force, watch=watch, engine=where)
        if silent:
            made = dataclasses.replace(made, notes=(*notes, *made.notes))
        show.results(made, as_json, quiet)


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """A run that fails ends the command with its own code."""
    from pluribus.federated.experiment import SimulationError

    try:
        yield
    except SimulationError as error:
        raise FailedError(str(error)) from error
