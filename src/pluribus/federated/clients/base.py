"""What every client method is: a pure function from a job to a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pluribus.federated import training
from pluribus.federated.data import Dataset
from pluribus.federated.models import Model, Tree
from pluribus.federated.training import Hooks, LocalTraining

Kept = Mapping[str, Any]
"""A tree of arrays: names to arrays or to further trees, none of them empty, as in a server's state."""


@dataclass(frozen=True, eq=False)
class Job:
    """What one client is asked to do in one round.

    Attributes
    ----------
    model
        What is trained.
    params
        The model to start from, as the server sent it. Not to be modified.
    told
        What the server sent besides: the ``told`` of the rule's offer.
    dataset, how
        The client's samples, and how it trains.
    memory
        What the client kept from its last report that arrived; empty before the first.
    seed
        For this client and job; the same seed gives the same report.
    round, client
        The server's step under way, and the client's number.
    """

    model: Model
    params: Tree
    told: Kept
    dataset: Dataset
    how: LocalTraining
    memory: Kept
    seed: int
    round: int
    client: int

    def train(self, hooks: Hooks = training.UNCHANGED) -> Report:
        """Local training from ``params``, as a report without message and with the memory as it was."""
        result = training.train(self.model, self.params, self.dataset, self.how, self.seed, hooks=hooks)
        return Report(result.params, result.loss, result.steps, {}, self.memory)


class Report(NamedTuple):
    """What a client made of a job.

    ``params`` is the local model (what travels is its difference to the job's), ``loss`` the mean loss while it
    trained, ``steps`` how many steps that were, ``message`` what is sent besides (a tree of arrays), ``memory`` what
    the client keeps, all of it, until its next job.
    """

    params: Tree
    loss: float
    steps: int
    message: Kept
    memory: Kept


@runtime_checkable
class ClientMethod(Protocol):
    """``train(job) -> report``, pure and picklable: a frozen dataclass."""

    def train(self, job: Job) -> Report:
        """Do the job. Nothing of it is changed."""


@dataclass(frozen=True)
class Plain:
    """Local training and nothing else."""

    def train(self, job: Job) -> Report:
        """SGD from the server's model."""
        return job.train()
