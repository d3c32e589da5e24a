"""Where tasks of clients' jobs can be sent: processes of one's own, an executor of the caller's, Ray."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from pluribus.engines.executor import GUARD, EngineError, come_up, refuse_within_import
from pluribus.federated import signals
from pluribus.federated.clients import worker


class DeadError(Exception):
    """A worker died with the task, which may be given out again."""


class Place(Protocol):
    """Where tasks go: ``submit`` gives a ticket at once, ``collect`` waits for its answer or raises `DeadError`."""

    retries: int

    def submit(self, packed: bytes) -> Any:
        """A ticket for the task."""

    def collect(self, ticket: Any) -> bytes:
        """The answer."""


class OwnProcesses:
    """Local processes, made when first needed and again when one died."""

    def __init__(self, slots: int, retries: int) -> None:
        self.retries = retries
        self._slots = slots
        self._pool: ProcessPoolExecutor | None = None
        self._ready: Future[None] | None = None
        self._begun: set[BaseProcess] = set()

    def submit(self, packed: bytes) -> Future[bytes]:
        """A ticket for the task."""
        refuse_within_import()
        others = set(multiprocessing.active_children()) - self._begun
        try:
            with signals.blocked():  # processes that begin in here never hear Ctrl-C, from their first moment
                if self._pool is None:
                    spawn = multiprocessing.get_context("spawn")
                    self._pool = ProcessPoolExecutor(self._slots, spawn, signals.as_a_worker)
                    self._ready = self._pool.submit(come_up)
                return self._pool.submit(worker.work, packed)
        except BrokenExecutor as error:
            raise self._dead() from error
        finally:
            self._begun = set(multiprocessing.active_children()) - others

    def collect(self, ticket: Future[bytes]) -> bytes:
        """The answer."""
        try:
            return ticket.result()
        except BrokenExecutor as error:
            raise self._dead() from error

    def kill(self) -> None:
        """End the processes in the midst of their work."""
        for process in self._begun:  # the pool would send SIGTERM, which they do not hear, and wait for them
            process.kill()

    def close(self) -> None:
        """Let the processes end their work, and themselves."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _dead(self) -> Exception:
        self.kill()
        self.close()
        self._pool = None
        if self._ready is not None and self._ready.exception() is not None:
            return EngineError(f"worker processes ended before they could work: {GUARD}")
        return DeadError()


class GivenExecutor:
    """An executor of the caller's; what becomes of a dead worker's task is the executor's."""

    retries = 0

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, packed: bytes) -> Any:
        """A ticket for the task."""
        return self._executor.submit(worker.work, packed)

    def collect(self, ticket: Any) -> bytes:
        """The answer."""
        found: bytes = ticket.result()
        return found


class RayTasks:
    """Remote tasks, which Ray gives out again itself."""

    retries = 0

    def __init__(self, ray: Any, retries: int) -> None:
        self._ray = ray
        self._work = ray.remote(worker.work).options(max_retries=retries, num_cpus=1)

    def submit(self, packed: bytes) -> Any:
        """A ticket for the task."""
        return self._work.remote(packed)

    def collect(self, ticket: Any) -> bytes:
        """The answer."""
        try:
            found: bytes = self._ray.get(ticket)
        except self._ray.exceptions.WorkerCrashedError as error:
            raise DeadError() from error
        return found
