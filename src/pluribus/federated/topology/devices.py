"""Clients that each hold a model of their own and train from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.clients.base import Job, Plain, Report
from pluribus.federated.models import Array, Tree
from pluribus.federated.seeding import derived

if TYPE_CHECKING:
    from pluribus.federated.setup import Setup

WEIGHTINGS = ("uniform", "size")


def trained(setup: Setup, models: Mapping[int, Tree], seed: int, number: int) -> dict[int, Tree]:
    """Each client's model after local training from the given one.

    Seeds are those of `pluribus.federated.simulate`, so the same start gives the same end.
    """
    jobs = [
        Job(
            model=setup.model,
            params=models[i],
            told={},
            dataset=setup.clients[i],
            how=setup.training,
            memory={},
            seed=derived(seed, "simulation.training", number, i),
            round=number,
            client=i,
        )
        for i in sorted(models)
    ]
    reports: Sequence[Report] = setup.run_jobs(Plain(), jobs)
    return {job.client: dict(report.params) for job, report in zip(jobs, reports, strict=True)}


def start(setup: Setup, seed: int) -> Tree:
    """The model that a simulation of this seed begins with."""
    return setup.model.init(derived(seed, "simulation.init"))


def counted(setup: Setup, clients: Sequence[int], weighting: str) -> Array:
    """Weights of some clients, of sum one."""
    if weighting not in WEIGHTINGS:
        raise RuleError(f"weighting must be one of {', '.join(map(repr, WEIGHTINGS))}, not {weighting!r}")
    sizes = setup.sizes[list(clients)].astype(np.float64) if weighting == "size" else np.ones(len(clients))
    return sizes / sizes.sum()


@dataclass(frozen=True)
class Score:
    """How a model does: accuracy on the test samples, and the loss over all clients' own samples."""

    accuracy: float
    loss: float


def score(setup: Setup, params: Tree, weighting: str = "size") -> Score:
    """Accuracy on the test samples; loss of the objective ``sum_i p_i f_i``, p as the weighting says."""
    from pluribus.federated.measuring import measure  # which knows the simulation, and that the rules

    accuracy = measure(setup.model, params, setup.test)[1]
    everybody = range(len(setup.clients))
    losses = [measure(setup.model, params, setup.clients[i])[2] for i in everybody]
    return Score(accuracy, float(counted(setup, everybody, weighting) @ losses))
