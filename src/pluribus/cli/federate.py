"""``pluribus federate``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pluribus.cli.app import FailedError, stopped
from pluribus.federated.config import ALPHA, SETTINGS, Config, Layer

HERE = "pluribus-out/federate"


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    """An option for each setting, under its own name; texts are read and checked by the settings themselves."""
    for name, setting in reversed(SETTINGS.items()):
        if name == "partition":  # the shortcut is listed below what it is short for
            command = click.option(f"--{ALPHA}", ALPHA, metavar="A", help="short for --partition dirichlet:A")(command)
        option = f"--{name.replace('_', '-')}"
        shown = setting.metadata["help"]
        if setting.type == "bool | None":
            command = click.option(f"{option}/--no-{name}", name, default=None, help=shown)(command)
            continue
        default = setting.metadata["unsaid"] or setting.default
        default = ",".join(default) if isinstance(default, tuple) else default
        metavar = setting.metadata["metavar"]
        command = click.option(option, name, metavar=metavar, help=f"{shown}  [{default}]")(command)
    return command


class _Stoppable:
    """Around the command: Ctrl-C ends it with a hint that fits what is stored by then."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.settings: Config | None = None

    def __enter__(self) -> _Stoppable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise stopped(f"stopped; {self._hint()}", error) from None

    def _hint(self) -> str:
        from pluribus.federated import experiment as room

        if self.folder is None or self.settings is None or room.stored_settings(self.folder) != self.settings:
            return "nothing was stored yet; run the same command again"
        return f"to go on: pluribus federate --resume --out {self.folder}"


@click.command(short_help="Many clients' updates become one model: rules side by side, and a page that shows why.")
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
    experiment worth looking at, of about a minute. Results go to DIR: report.html, rounds.csv, weights.csv,
    clients.csv, models/, config.toml, summary.json and timing.json. The same settings give the same bytes, except for
    timing.json. A run that was stopped or killed goes on with --resume.
    """
    with _Stoppable() as stoppable:
        from pluribus.cli import progress, show
        from pluribus.federated import config, config_file
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
        if going_on and not room.holds_experiment(folder):
            raise room.FolderError(f"nothing to resume in {folder}; leave --resume out to begin there")
        base = room.stored_settings(folder) if going_on else None
        settings, notes = config.resolve(*layers, base=base)
        processes = config.read_workers(workers if workers is not None else beside.get("workers"))
        where = config.read_engine(engine if engine is not None else beside.get("engine"))
        if dry_run:
            show.plan(settings, as_json)
            return
        silent = quiet or as_json
        for note in () if silent else notes:
            click.echo(note, err=True)
        watch = None if silent else progress.watch(settings)
        stoppable.folder, stoppable.settings = folder, settings
        try:
            outcome = room.run(
                settings, folder, workers=processes, resume=resume, force=force, watch=watch, engine=where
            )
        except room.SimulationError as error:
            raise FailedError(str(error)) from error
        if silent:
            outcome = dataclasses.replace(outcome, notes=(*notes, *outcome.notes))
        show.results(outcome, as_json, quiet)
