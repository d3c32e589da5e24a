"""Where clients' jobs are done: in this process, in others, on any executor, or on Ray. The bits are the same.

A crew is a function ``crew(method, jobs) -> reports`` that lives as long as a simulation, so that its processes are
made once, and models and data sets travel once (see `worker`). Per round only parameters, memories and reports travel.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

from pluribus import engines
from pluribus.core.errors import listing
from pluribus.engines.executor import EngineError, OnExecutor, Processes
from pluribus.engines.ray import OnRay
from pluribus.federated.clients import worker
from pluribus.federated.clients.base import ClientMethod, Job, Report
from pluribus.federated.clients.places import DeadError, GivenExecutor, OwnProcesses, Place, RayTasks
from pluribus.federated.clients.worker import Failed, Missing, Parcel, Task

Crew = Callable[[ClientMethod, Sequence[Job]], list[Report]]
PORTIONS = 4  # tasks a slot and round: more even out jobs of unequal length, fewer send shared parameters less often


def train_clients(method: ClientMethod, jobs: Sequence[Job], engine: Any = None) -> list[Report]:
    """Do jobs, once; for a run of many rounds make a `crew`.

    Parameters
    ----------
    method, jobs
        What clients do, and for whom.
    engine
        As for `crew`.

    Returns
    -------
    list
        A report for each job, in the order of the jobs, whoever was done first.
    """
    with crew(engine) as hired:
        return hired(method, jobs)


@contextlib.contextmanager
def crew(engine: Any = None) -> Iterator[Crew]:
    """Those who do jobs: use it with ``with``, at whose end processes end. Same jobs, same bits, whatever the engine.

    Parameters
    ----------
    engine
        None or ``"threads"`` does the jobs here, one after another: steps of small models hold Python's lock, and
        torch has one generator a process. ``"processes"`` or ``pluribus.engines.Processes(slots)``; any
        ``concurrent.futures`` executor; ``"ray"``. The last three take models, methods and data sets that can be
        pickled.

    Raises
    ------
    EngineError
        Something cannot be pickled, or workers died again and again; the message names the clients. A death by itself
        only has the jobs done anew, at most three times. What a job raises is raised here, that of the first job first.
    """
    made = engines.make(engine)
    if made is None or not made.remote:
        yield _here
    elif isinstance(made, Processes):
        own = OwnProcesses(made.slots, made.retries)
        try:
            yield _Sender(own, made.slots)
        except BaseException:  # Ctrl-C too: nobody waits for what they do any more
            own.kill()
            raise
        finally:
            own.close()
    elif isinstance(made, OnExecutor):
        yield _Sender(GivenExecutor(made.executor), made.slots)
    elif isinstance(made, OnRay):
        yield _Sender(RayTasks(made.ray, made.retries), made.slots)
    else:
        raise EngineError(f"clients cannot train on {made!r}; give 'processes', 'ray' or an executor")


def _here(method: ClientMethod, jobs: Sequence[Job]) -> list[Report]:
    return [method.train(job) for job in jobs]


class _Sender:
    """A crew elsewhere: packs jobs into tasks, knows what was sent before, and puts reports in order."""

    def __init__(self, place: Place, slots: int) -> None:
        self._place, self._slots = place, slots
        self._shelf, self._sent = _Shelf(), set[str]()

    def __call__(self, method: ClientMethod, jobs: Sequence[Job]) -> list[Report]:
        if not jobs:
            return []
        size = -(-len(jobs) // (PORTIONS * self._slots))
        portions = [jobs[at : at + size] for at in range(0, len(jobs), size)]
        answers: list[list[Report | Failed] | None] = [None] * len(portions)
        fresh = deque(range(len(portions)))
        lacking: list[set[str]] = [set() for _ in portions]
        deaths = 0
        under_way: deque[tuple[int, Any]] = deque()
        while fresh or under_way:
            try:
                while fresh and len(under_way) < 2 * self._slots:
                    packed = self._packed(method, portions[fresh[0]], lacking[fresh[0]])
                    under_way.append((fresh[0], self._place.submit(packed)))
                    fresh.popleft()
                number, ticket = under_way[0]
                answer: worker.Answer = pickle.loads(self._place.collect(ticket))
            except DeadError as error:
                left = [k for k, found in enumerate(answers) if found is None]
                if (deaths := deaths + 1) > self._place.retries:
                    clients = [str(job.client) for k in left for job in portions[k]]
                    raise EngineError(
                        f"workers died {deaths} times; not done are clients {listing(clients)}. Is memory short, or "
                        "does a client's own code end its process?"
                    ) from error
                under_way.clear()
                fresh = deque(left)
                continue
            under_way.popleft()
            if isinstance(answer, Missing):
                lacking[number].update(answer.keys)
                fresh.appendleft(number)
            else:
                answers[number] = answer
        return _in_order(answers)

    def _packed(self, method: ClientMethod, jobs: Sequence[Job], lacking: set[str]) -> bytes:
        parcels = []
        supplies = {}
        for job in jobs:
            keys = self._shelf.key(job.model), self._shelf.key(job.dataset)
            for key, thing in zip(keys, (job.model, job.dataset), strict=True):
                if key not in supplies and (key in lacking or key not in self._sent):
                    supplies[key] = _pickled(thing, f"the {type(thing).__name__} of client {job.client}")
                    self._sent.add(key)
            parcels.append(Parcel.of(job, *keys))
        return _pickled(Task(method, tuple(parcels), supplies), f"the {type(method).__name__} of the clients")


class _Shelf:
    """Names for things by identity; a thing that is gone leaves its name to nobody."""

    def __init__(self) -> None:
        self._owner, self._counter = uuid4().hex, itertools.count()
        self._known: dict[int, tuple[str, Callable[[], Any]]] = {}

    def key(self, thing: Any) -> str:
        """The thing's key, the same for as long as it lives."""
        known = self._known.get(id(thing))
        if known is not None and known[1]() is thing:
            return known[0]
        key = f"{self._owner}-{next(self._counter)}"
        try:
            self._known[id(thing)] = key, weakref.ref(thing)
        except TypeError:  # what cannot be referred to weakly lives as long as the crew
            self._known[id(thing)] = key, lambda: thing
        return key


def _in_order(answers: Sequence[list[Report | Failed] | None]) -> list[Report]:
    reports = []
    for found in itertools.chain.from_iterable(answer for answer in answers if answer is not None):
        if isinstance(found, Failed):
            raise found.error
        reports.append(found)
    return reports


def _pickled(thing: Any, what: str) -> bytes:
    try:
        return pickle.dumps(thing, protocol=5)
    except Exception as error:
        raise EngineError(
            f"{what} cannot be sent to another process ({error}); define its functions and classes at the top of a "
            "module, or let clients train in this process"
        ) from error
