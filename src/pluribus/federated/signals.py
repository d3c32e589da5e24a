"""Ctrl-C and SIGTERM around a pool of processes: heard by the first alone, whose end is the end of all.

A `KeyboardInterrupt` that is raised in the midst of starting a process leaves that process with half of its orders,
and one that is raised in a callback is lost. So here signals are written down, and raised when the pool has ended.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def kept() -> Iterator[Callable[[], bool]]:
    """Write signals to stop down, and raise the first one again at the end.

    Gives a function that says whether one came. Signals that nobody hears (``nohup``) stay unheard. Outside of the main
    thread, where Python raises no signals, nothing is kept.
    """
    heard: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def keep(number: int, frame: Any) -> None:
        heard.append(number)

    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # None: set by something that is not Python
                before[number] = handler
    try:
        for number in before:
            signal.signal(number, keep)
        yield lambda: bool(heard)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Processes that begin in here have the signals blocked, from their first moment to `as_a_worker`."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def as_a_worker() -> None:
    """Begin a process of the pool: it hears no signals, and ends with the process that made it.

    Signals reach every process of a terminal or a batch job, and are for the first, which tells the rest to stop. (A
    process that dies while the pool still begins others can make it wait for ever.)
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent can tell nobody, and its processes would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
