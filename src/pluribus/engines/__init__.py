"""Where tiles run. An engine maps a function over spans of blocks and gives the results in the order of the spans.

A span is small (two numbers), and so is what comes back (n x n sums, or whether all was finite): contributions are
opened where they are read, and results are written where they are made. So the same functions run on threads here, on
any ``concurrent.futures`` executor (local processes, Dask's ``client.get_executor()``), and on Ray.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from pluribus.core.errors import RuleError
from pluribus.engines.base import Engine
from pluribus.engines.executor import OnExecutor, Processes
from pluribus.engines.local import Threads, Torch

__all__ = ["Engine", "OnExecutor", "Processes", "Threads", "Torch", "make"]


def make(engine: Any) -> Engine | None:
    """The engine that a caller means: a name, an executor, an engine, or None for what the contributions need."""
    if engine is None or isinstance(engine, Engine):
        return engine
    if not isinstance(engine, type) and (isinstance(engine, Executor) or hasattr(engine, "submit")):
        return OnExecutor(engine)
    if engine == "threads":
        return Threads()
    if engine == "torch":
        return Torch()
    if engine == "processes":
        return Processes()
    if engine == "ray":
        from pluribus.engines.ray import OnRay

        return OnRay()
    raise RuleError(f"engine must be 'threads', 'torch', 'processes', 'ray' or an executor, not {engine!r}")
