"""Threads over blocks, in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pluribus.engines.base import Span, Task, in_order


def threads_for(values: int) -> int:
    """How many threads are worth it for a pass over so many values: one below four million."""
    return 1 if values < 1 << 22 else max(1, os.cpu_count() or 1)


class Threads:
    """Threads of this process; by default as many as it has cores. The bits do not depend on how many."""

    remote = False

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots or max(1, os.cpu_count() or 1)

    def run(self, task: Task, common: Any, spans: Iterable[Span]) -> Iterator[Any]:
        """Yield the results in the order of the spans."""
        if self.slots <= 1:
            for span in spans:
                yield task(common, span)
            return
        with ThreadPoolExecutor(self.slots) as pool:
            try:
                yield from in_order(lambda span: pool.submit(task, common, span), Future.result, spans, 2 * self.slots)
            finally:
                pool.shutdown(cancel_futures=True)


class Torch(Threads):
    """The calling thread: torch tensors are combined by torch, on the device where they lie (``engine="torch"``).

    A device works while Python goes on, in the order of the thread's stream, which other threads do not share; so do
    torch's modes (``torch.inference_mode()``).
    """

    def __init__(self) -> None:
        super().__init__(1)


def ordered_map(function: Any, items: Iterable[Any], threads: int = 1) -> Iterator[Any]:
    """Yield ``function(item)`` for each item, in order; at most ``2 * threads`` results wait."""
    yield from Threads(threads).run(lambda _, item: function(item), None, items)
