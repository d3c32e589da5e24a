"""Clients that each hold a model of their own and train from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

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
    """Weights of some clients, of sum one: alike, or by their samples (``"size"``)."""
    sizes = setup.sizes[list(clients)].astype(np.float64) if weighting == "size" else np.ones(len(clients))
    return sizes / sizes.sum()


def accuracy(setup: Setup, params: Tree) -> float:
    """A model's accuracy on the test samples."""
    from pluribus.federated.measuring import measure  # which knows the simulation, and that the rules

    return measure(setup.model, params, setup.test)[1]


def loss(setup: Setup, params: Tree, weighting: str) -> float:
    """A model's loss over all clients' own samples: the objective ``sum_i p_i f_i``, p as the weighting says."""
    from pluribus.federated.measuring import measure

    losses = [measure(setup.model, params, client)[2] for client in setup.clients]
    return float(counted(setup, range(len(losses)), weighting) @ losses)
