"""Ray, through a thin adapter: the same functions as remote tasks, which Ray runs again when a worker dies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pluribus.core.errors import require
from pluribus.engines.base import Span, Task, in_order


class OnRay:
    """The Ray cluster that this process is connected to (``ray.init``), or else a local one.

    Contributions and the output must lie where every node can open them. What all tasks share is put into the object
    store once. A task whose worker dies is run again, at most three times.
    """

    remote = True
    retries = 3

    def __init__(self) -> None:
        self.ray: Any = require("ray", "ray")
        if not self.ray.is_initialized():
            self.ray.init(include_dashboard=False, log_to_driver=False)
        self.slots = max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def run(self, task: Task, common: Any, spans: Iterable[Span]) -> Iterator[Any]:
        """Yield the results in the order of the spans."""
        remote = self.ray.remote(task).options(max_retries=self.retries, num_cpus=1)
        shared = self.ray.put(common)
        yield from in_order(lambda span: remote.remote(shared, span), self.ray.get, spans, 2 * self.slots)
