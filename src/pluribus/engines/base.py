"""What an engine is, and the queue that all of them share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

Span = tuple[int, int]
Task = Callable[[Any, Span], Any]
Ticket = TypeVar("Ticket")


@runtime_checkable
class Engine(Protocol):
    """Runs ``task(common, span)`` for many spans.

    ``remote`` engines run tasks in other processes: what they are given is pickled, so contributions must be files.
    ``slots`` is how many tasks run at a time, as far as is known.
    """

    remote: bool
    slots: int

    def run(self, task: Task, common: Any, spans: Iterable[Span]) -> Iterator[Any]:
        """Yield the results in the order of the spans. A task may be run twice."""


def in_order(
    submit: Callable[[Span], Ticket], collect: Callable[[Ticket], Any], spans: Iterable[Span], most: int
) -> Iterator[Any]:
    """Keep at most ``most`` tasks under way, and yield their results in the order of the spans."""
    waiting: deque[Ticket] = deque()
    for span in spans:
        waiting.append(submit(span))
        if len(waiting) >= most:
            yield collect(waiting.popleft())
    while waiting:
        yield collect(waiting.popleft())
