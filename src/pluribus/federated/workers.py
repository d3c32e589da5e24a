"""The runs of an experiment, one after another or in several processes, each from its checkpoint.

Processes share three small arrays and nothing else: how far each run is, what it reached, and whether to stop.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

import numpy as np

from pluribus.core.errors import FileError
from pluribus.federated import checkpoint, server, signals
from pluribus.federated.checkpoint import Clock
from pluribus.federated.clients.engine import crew
from pluribus.federated.config import Config, attackers_of
from pluribus.federated.data import Dataset
from pluribus.federated.setup import Setup, build
from pluribus.federated.simulation import Run, SimulationError, simulate

SAVE_EVERY = 1.0  # seconds between two checkpoints of a run
ENGINES = ("processes", "threads", "ray")
LOOK_EVERY = 0.1  # seconds between two looks at the processes


@dataclass(frozen=True)
class Task:
    """One run: a rule, a seed, its checkpoint, and the experiment that the checkpoint belongs to."""

    rule: str
    seed: int
    path: Path
    experiment: str

    @property
    def owner(self) -> str:
        """What the checkpoint must say that it belongs to."""
        return f"{self.experiment} {self.rule} {self.seed}"

    def __str__(self) -> str:
        return f"{self.rule}, seed {self.seed}"


@dataclass(frozen=True)
class Board:
    """How far each run is: rounds done, last accuracy (NaN before); and, at its end, whether to stop."""

    rounds: Any
    accuracy: Any
    stop: Any

    @classmethod
    def shared(cls, tasks: int) -> Board:
        """A board that other processes can write on."""
        board = cls(RawArray("q", tasks), RawArray("d", tasks), RawArray("b", 1))
        for i in range(tasks):
            board.accuracy[i] = np.nan
        return board


@dataclass(frozen=True, eq=False)
class Job:
    """What a process needs to know."""

    config: Config
    dataset: Dataset
    tasks: tuple[Task, ...]
    board: Board
    engine: str | None = None


class StoppedError(Exception):
    """The run was asked to stop."""


def work(
    config: Config,
    dataset: Dataset,
    tasks: Sequence[Task],
    workers: int,
    watch: Callable[[Board], None],
    *,
    engine: str | None = None,
) -> None:
    """Bring every task to its end, and leave its checkpoint finished.

    Parameters
    ----------
    config, dataset
        The experiment.
    tasks
        The runs, in the order in which they begin.
    workers
        Processes; 1 stays in this one.
    watch
        Called now and then with the board.
    engine
        Where clients train (`ENGINES`); with one, the runs come one after another whatever ``workers`` says.

    Raises
    ------
    SimulationError
        A run failed, or a process died; the message names the rule, the seed and the round.
    """
    job = Job(config, dataset, tuple(tasks), Board.shared(len(tasks)), engine)
    if workers <= 1 or len(tasks) <= 1 or engine is not None:
        for i in range(len(tasks)):
            _run(job, i, watch)
        return
    with signals.kept() as asked:
        _in_processes(job, min(workers, len(tasks)), watch, asked)


def _in_processes(job: Job, workers: int, watch: Callable[[Board], None], asked: Callable[[], bool]) -> None:
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, _prepare, (job,)) as pool:
        broken, own = False, set()
        try:
            try:
                with signals.blocked():  # processes that begin in here never hear Ctrl-C, from their first moment
                    waiting = {pool.submit(_run_here, i) for i in range(len(job.tasks))}
            finally:
                own = set(multiprocessing.active_children()) - others
            while waiting and not asked():
                done, waiting = wait(waiting, LOOK_EVERY, FIRST_COMPLETED)
                for future in done:
                    future.result()
                watch(job.board)
        except BrokenProcessPool:
            broken = True
            raise SimulationError(
                "a process of the run was ended from outside, perhaps for want of memory; try fewer --workers"
            ) from None
        finally:
            job.board.stop[0] = 1
            threading.Thread(target=_end_together, args=(own, broken), daemon=True).start()
            pool.shutdown(wait=True, cancel_futures=True)


def _end_together(own: Iterable[BaseProcess], broken: bool) -> None:
    """Kill what is left when one process died: the pool would send SIGTERM, which they do not hear, and wait."""
    left = set(own)
    while left and not broken:
        ready = connection.wait([process.sentinel for process in left])
        ended = {process for process in left if process.sentinel in ready}
        for process in ended:
            process.join()
        broken = any(process.exitcode for process in ended)
        left -= ended
    for process in left:
        process.kill()


def _run(job: Job, index: int, watch: Callable[[Board], None] | None = None) -> None:
    config, board = job.config, job.board
    task = job.tasks[index]
    setup = _setup(config, job.dataset, task.seed)
    rule = server.parse(task.rule, attackers=attackers_of(config))
    start, spent = _checkpointed(task)
    began = Clock(time.perf_counter(), time.process_time())
    saved = looked = began.wall

    def clock() -> Clock:
        return Clock(spent.wall + time.perf_counter() - began.wall, spent.cpu + time.process_time() - began.cpu)

    def show(run: Run) -> None:
        board.rounds[index] = run.round
        measured = run.history.accuracy[: run.round]
        known = measured[np.isfinite(measured)]
        board.accuracy[index] = known[-1] if len(known) else np.nan

    def after_round(run: Run) -> None:
        nonlocal saved, looked
        show(run)
        now = time.perf_counter()
        if run.finished or now - saved >= SAVE_EVERY or board.stop[0]:
            checkpoint.save(task.path, run, task.owner, clock())
            saved = time.perf_counter()
        if board.stop[0]:
            raise StoppedError
        if watch is not None and (run.finished or now - looked >= LOOK_EVERY):
            looked = now
            watch(board)

    if start is not None:
        show(start)
    try:
        with _hired(setup, job.engine) as ready:
            simulate(
                ready,
                rule,
                task.seed,
                rounds=config.rounds,
                eval_every=config.eval_every,
                start=start,
                after_round=after_round,
            )
    except SimulationError as error:
        raise SimulationError(f"{task}, {error}") from error
    if watch is not None:
        watch(board)


@contextlib.contextmanager
def _hired(setup: Setup, engine: str | None) -> Iterator[Setup]:
    """The federation with those who do its clients' jobs, for as long as it runs."""
    if engine is None:
        yield setup
        return
    with crew(engine) as hired:
        yield replace(setup, engine=hired)


def _checkpointed(task: Task) -> tuple[Run | None, Clock]:
    if not task.path.exists():
        return None, Clock()
    try:
        return checkpoint.load(task.path, task.owner)
    except FileError:  # `experiment.run` told so already when it looked at the folder
        return None, Clock()


@lru_cache(maxsize=2)
def _setup(config: Config, dataset: Dataset, seed: int) -> Setup:
    return build(config, dataset, seed)


# What a process of the pool works on; set once, before its first task.
_here: list[Job] = []


def _prepare(job: Job) -> None:
    signals.as_a_worker()
    _here[:] = [job]


def _run_here(index: int) -> None:
    try:
        _run(_here[0], index)
    except StoppedError:
        return
