"""Any ``concurrent.futures`` executor, and local processes that survive the death of one of them."""

from __future__ import annotations

import itertools
import multiprocessing
import multiprocessing.process
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any

from pluribus.core.errors import PluribusError
from pluribus.engines.base import Span, Task, in_order


class EngineError(PluribusError, RuntimeError):
    """Workers died, and again when their work was given out anew."""


class OnExecutor:
    """An executor of the caller's, which stays the caller's to close.

    What becomes of a task whose worker died is the executor's: Dask runs it again; a ``ProcessPoolExecutor`` is broken
    for good and raises. ``engine="processes"`` makes new processes then.
    """

    remote = True

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.slots = getattr(executor, "_max_workers", None) or max(1, os.cpu_count() or 1)

    def run(self, task: Task, common: Any, spans: Iterable[Span]) -> Iterator[Any]:
        """Yield the results in the order of the spans."""

        def submit(span: Span) -> Future[Any]:
            try:
                return self.executor.submit(task, common, span)
            except BrokenExecutor:
                raise
            except RuntimeError as error:
                raise EngineError(f"the executor takes no work: {error}; give one that is not shut down") from error

        yield from in_order(submit, Future.result, spans, 2 * self.slots)


class Processes:
    """Local processes, made for a pass. When one dies, new ones are made and unfinished spans are given out again."""

    remote = True
    retries = 3

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots or max(1, os.cpu_count() or 1)

    def run(self, task: Task, common: Any, spans: Iterable[Span]) -> Iterator[Any]:
        """Yield the results in the order of the spans."""
        refuse_within_import()
        left = list(spans)
        for attempt in itertools.count():
            try:
                with ProcessPoolExecutor(self.slots, multiprocessing.get_context("spawn")) as pool:
                    ready = pool.submit(come_up)
                    for result in OnExecutor(pool).run(task, common, list(left)):
                        left.pop(0)
                        yield result
                return
            except BrokenExecutor as error:
                if ready.exception() is not None:
                    raise EngineError(f"worker processes ended before they could work: {GUARD}") from None
                if attempt >= self.retries:
                    raise EngineError(
                        f"worker processes died {attempt + 1} times, {len(left)} spans are left; is memory short?"
                    ) from error


GUARD = (
    "each imports the main script first, so the script must start its own work under "
    "`if __name__ == '__main__':` (or use engine='threads')"
)


def come_up() -> None:
    """Runs when a worker has come as far as to work."""


def refuse_within_import() -> None:
    """End a worker that, as it imports the main script, came to where its parent is; refuse where none can import it.

    The error is the parent's to raise: a worker's own traceback would only bury it.
    """
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise SystemExit(1)
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is not None and getattr(main, "__spec__", None) is None and not os.path.exists(file):
        raise EngineError(f"worker processes cannot import {file}: save the script as a file, or use engine='threads'")
