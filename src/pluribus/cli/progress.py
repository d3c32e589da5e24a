"""Progress on the error stream: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pluribus.federated.config import Config
    from pluribus.federated.experiment import Watch
    from pluribus.federated.grid import Cell
    from pluribus.federated.workers import Board, Task

LINE_EVERY = 10.0  # seconds between two lines where there is no terminal


def watch(settings: Config) -> Watch:
    """Who shows the progress of an experiment."""
    from pluribus.federated.experiment import Watch

    shown = _Bars(settings) if sys.stderr.isatty() else _Lines(settings)
    return Watch(shown.begin, shown.look, shown.end)


def watch_cell(cell: Cell, number: int, cells: int) -> Watch:
    """Who shows the progress of one experiment of a grid."""
    shown = watch(cell.settings)

    def begin(settings: Config, tasks: list[Task]) -> None:
        click.echo(f"experiment {number} of {cells}: {cell.name}", err=True)
        shown.begin(settings, tasks)

    return dataclasses.replace(shown, begin=begin)


class _Lines:
    """A line for each run that ends, and one every ten seconds."""

    def __init__(self, settings: Config) -> None:
        self.rounds = settings.rounds
        self.tasks: list[Task] = []
        self.told: set[int] = set()
        self.began = self.last = time.perf_counter()

    def begin(self, settings: Config, tasks: list[Task]) -> None:
        self.tasks = tasks
        click.echo(heading(settings, len(tasks)), err=True)

    def look(self, board: Board) -> None:
        now = time.perf_counter()
        for i, task in enumerate(self.tasks):
            if board.rounds[i] >= self.rounds and i not in self.told:
                self.told.add(i)
                self._line(now, f"{task}: accuracy {percent(board.accuracy[i])}")
        if now - self.last >= LINE_EVERY:
            done = sum(board.rounds) / (self.rounds * len(self.tasks))
            self._line(now, f"{percent(done)} of all rounds")

    def end(self) -> None:
        """Nothing to tidy up."""

    def _line(self, now: float, text: str) -> None:
        self.last = now
        click.echo(f"[{now - self.began:6.1f} s] {len(self.told)}/{len(self.tasks)} runs, {text}", err=True)


class _Bars:
    """A bar for each rule over all seeds, with the accuracy that its runs have reached so far."""

    def __init__(self, settings: Config) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.settings = settings
        self.tasks: list[Task] = []
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self.bars = {
            rule: self.progress.add_task(rule, total=settings.rounds * settings.seeds, accuracy="–", start=False)
            for rule in settings.rules
        }

    def begin(self, settings: Config, tasks: list[Task]) -> None:
        self.tasks = tasks
        click.echo(heading(settings, len(tasks)), err=True)
        self.progress.start()

    def look(self, board: Board) -> None:
        for rule, bar in self.bars.items():
            own = [i for i, task in enumerate(self.tasks) if task.rule == rule]
            done = sum(board.rounds[i] for i in own)
            known = [board.accuracy[i] for i in own if not math.isnan(board.accuracy[i])]
            if done:
                self.progress.start_task(bar)
            reached = percent(sum(known) / len(known)) if known else "–"
            self.progress.update(bar, completed=done, accuracy=reached)
            if done >= self.settings.rounds * len(own):
                self.progress.stop_task(bar)

    def end(self) -> None:
        self.progress.stop()


def heading(settings: Config, runs: int) -> str:
    """What is about to happen, in a line."""
    attack = f", attack {settings.attack}" if settings.attack != "none" else ""
    noise = f", label noise {settings.label_noise}" if settings.label_noise != "none" else ""
    return (
        f"{Path(settings.data).name}: {settings.clients} clients by {settings.partition}{attack}{noise}; "
        f"{runs} runs ({len(settings.rules)} rules x {settings.seeds} seeds) of {settings.rounds} rounds"
    )


def percent(share: float) -> str:
    """A share as per cent."""
    return f"{100 * share:.1f} %"
