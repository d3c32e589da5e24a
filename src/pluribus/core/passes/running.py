"""Running a task over blocks, on an engine: the same bits wherever it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from pluribus.core.contributions import Block
from pluribus.core.errors import UndefinedError
from pluribus.core.passes.active import Active, blame
from pluribus.engines import local
from pluribus.engines.base import Engine

GRAM_GROUP = 16

Task = Callable[[Active, Any, Block], Any]  # (active, payload, block) -> what a block gives; a function of a module


@dataclass(frozen=True, eq=False)
class _Job:
    """What all spans of a pass share. Small where it travels: contributions are paths then."""

    active: Active
    task: Task
    payload: Any
    blocks: Sequence[Block]


def _total(job: _Job, span: tuple[int, int]) -> Any:
    """The sum over a span, in order."""
    total: Any = 0.0
    for number in range(*span):
        total = total + job.task(job.active, job.payload, job.blocks[number])
    return total


def _total_elsewhere(job: _Job, span: tuple[int, int]) -> Any:
    with single_blas():
        return _total(job, span)


def _all(job: _Job, span: tuple[int, int]) -> bool:
    """Whether a span was finite throughout."""
    return all(job.task(job.active, job.payload, job.blocks[number]) for number in range(*span))


def summed(active: Active, task: Task, payload: Any, zero: Any) -> Any:
    """The sum of a task over all blocks of coordinates: the same bits wherever it runs."""
    engine = _engine(active)
    job = _Job(active, task, payload, active.data.blocks(active.data.medium.gram_items, discrete=False))
    spans = _spans(len(job.blocks), GRAM_GROUP)
    if engine.remote:
        parts = engine.run(_total_elsewhere, _portable(job), spans)
        return sum(parts, zero)
    with single_blas():
        return sum(engine.run(_total, job, spans), zero)


def run(active: Active, blocks: Sequence[Block], task: Task, payload: Any = None) -> None:
    """Run a task over blocks; at the first that is not finite, find every bad row, and tell (`Tainted`)."""
    engine = _engine(active)
    job = _Job(active, task, payload, blocks)
    # A remote span is a good second of work or a small share of all; a local one some blocks: threads meet less.
    group = max(1, min(256 if engine.remote else 4, len(blocks) // (4 * engine.slots)))
    for finite in engine.run(_all, _portable(job) if engine.remote else job, _spans(len(blocks), group)):
        if not finite:
            blame(active)
            # Nobody's fault: what a rule made of finite numbers is not finite, and what was written is no result.
            raise UndefinedError(
                "the contributions are finite, but something that the rule makes of them is not: they are too large"
            )


def _spans(count: int, group: int) -> list[tuple[int, int]]:
    return [(start, min(start + group, count)) for start in range(0, count, group)]


def _engine(active: Active) -> Engine:
    return active.engine or active.data.medium.engine(active.values)


def _portable(job: _Job) -> _Job:
    return replace(job, active=replace(job.active, data=job.active.data.portable(), engine=None))


@functools.cache
def _blas() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


def single_blas() -> AbstractContextManager[Any]:
    """A context in which BLAS runs on one thread, so that a block's bits do not depend on the machine."""
    return _blas().limit(limits=1, user_api="blas")


def here(active: Active, size: int, function: Callable[[Block], Any]) -> Any:
    """Yield a function of each block of coordinates, in order, in this process."""
    blocks = active.data.blocks(size, discrete=False)
    return local.ordered_map(function, blocks, active.data.medium.engine(active.values).slots)
