"""The far end of an engine: does clients' jobs in another process, and keeps what jobs have in common.

Models and data sets travel once to a worker and are kept there by key. A worker that lacks one (it is new, took the
place of a dead one, or had no room left) says so, and is given it.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.federated.clients.base import ClientMethod, Job, Report
from pluribus.federated.data import Dataset

ROOM = 1 << 30  # bytes of models and data sets that a worker keeps


@dataclass(frozen=True, eq=False)
class Parcel:
    """A job whose model and data set are named, not held; ``rest`` is all else of it."""

    model: str
    dataset: str
    rest: Mapping[str, Any]

    @classmethod
    def of(cls, job: Job, model: str, dataset: str) -> Parcel:
        """The job with keys for the two."""
        return cls(model, dataset, {k: v for k, v in vars(job).items() if k not in ("model", "dataset")})

    def job(self, things: Mapping[str, Any]) -> Job:
        """The job, with the things that the keys name."""
        return Job(model=things[self.model], dataset=things[self.dataset], **self.rest)


@dataclass(frozen=True, eq=False)
class Task:
    """Some jobs of one method, and the pickles of things that the worker may lack."""

    method: ClientMethod
    parcels: tuple[Parcel, ...]
    supplies: Mapping[str, bytes]

    @property
    def needs(self) -> set[str]:
        """Keys of all things that the jobs need."""
        return {key for parcel in self.parcels for key in (parcel.model, parcel.dataset)}


@dataclass(frozen=True)
class Missing:
    """The answer of a worker that lacks these things."""

    keys: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Failed:
    """The answer in place of a report: what the job raised."""

    error: Exception


Answer = Missing | list[Report | Failed]

# By key, the last used last: what this process keeps, and how many bytes its pickle had.
_kept: OrderedDict[str, tuple[Any, int]] = OrderedDict()
_lock = threading.Lock()


def work(packed: bytes) -> bytes:
    """Do a pickled `Task`; gives a pickled `Answer`.

    Bytes in and out, because engines differ in how they hand arrays over (Ray's are read-only), and jobs must not
    notice.
    """
    task: Task = pickle.loads(packed)
    things = _things(task)
    return pickle.dumps(things if isinstance(things, Missing) else _reports(task, things), protocol=5)


def _things(task: Task) -> dict[str, Any] | Missing:
    with _lock:
        for key, packed in task.supplies.items():
            _kept[key] = _frozen(pickle.loads(packed)), len(packed)
        missing = tuple(sorted(task.needs - _kept.keys()))
        if missing:
            return Missing(missing)
        things = {key: _kept[key][0] for key in task.needs}
        for key in sorted(things):
            _kept.move_to_end(key)
        while sum(size for _, size in _kept.values()) > ROOM and len(_kept) > 1:
            _kept.popitem(last=False)
    return things


def _reports(task: Task, things: Mapping[str, Any]) -> list[Report | Failed]:
    from threadpoolctl import threadpool_limits

    found: list[Report | Failed] = []
    # As in `simulate`: a product of matrices summed by several threads has other last bits.
    with threadpool_limits(limits=1), np.errstate(all="ignore"):
        for parcel in task.parcels:
            try:
                found.append(task.method.train(parcel.job(things)))
            except Exception as error:
                found.append(Failed(_portable(error)))
    return found


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _frozen(thing: Any) -> Any:
    """A data set's arrays are read-only wherever they are."""
    if isinstance(thing, Dataset):
        for array in (thing.x, thing.y):
            array.flags.writeable = False
    return thing
