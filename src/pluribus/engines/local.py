"""The local engine: threads over tiles, results in the order of the tiles."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def threads_for(values: int) -> int:
    """How many threads are worth it for a pass over so many values: one below four million."""
    return 1 if values < 1 << 22 else max(1, os.cpu_count() or 1)


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], threads: int = 1) -> Iterator[Result]:
    """Yield ``function(item)`` for each item, in order.

    At most ``2 * threads`` results wait at any time, so that a pass over a huge model holds no list of
    partial results. The order does not depend on ``threads``; neither may what the caller does with it.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
