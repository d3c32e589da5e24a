"""The machine's own limit, and how seconds and memory are measured."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Cost:
    """Best of some runs: CPU seconds of all threads, wall seconds, and peak memory above what was there, in bytes."""

    cpu: float
    wall: float
    extra: float


def measure(function: Callable[[], object], runs: int = 3) -> Cost:
    """Run a function some times (a first run warms caches and compilers) and keep the best."""
    function()
    cpu, wall, extra = [], [], []
    for _ in range(runs):
        gc.collect()
        _trim()
        before = _resident()
        peak = _peak_reset()
        started, used = time.perf_counter(), time.process_time()
        result = function()
        cpu.append(time.process_time() - used)
        wall.append(time.perf_counter() - started)
        extra.append((_peak() if peak else _resident()) - before)
        del result
    return Cost(min(cpu), min(wall), min(extra))


def read_limit(arrays: Sequence[Array]) -> float:
    """CPU seconds to read all bytes once: the fastest of three ways to touch them, best of five."""

    def largest() -> None:
        for array in arrays:
            array.max()

    def total() -> None:
        for array in arrays:
            np.add.reduce(array.ravel())

    def dotted() -> None:
        for array in arrays:
            flat = array.ravel()
            np.dot(flat, flat)

    best = []
    for way in (largest, total, dotted):
        for _ in range(5):
            used = time.process_time()
            way()
            best.append(time.process_time() - used)
    return min(best)


def _trim() -> None:
    """Give freed memory back, so that a peak is the function's own."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return float(line.split()[1]) * 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def _peak() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) * 1024
    return _resident()


def _peak_reset() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
