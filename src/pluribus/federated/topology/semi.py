"""Semi-decentralised learning: neighbours gossip, and now and then a server averages some and returns the average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import whole_number
from pluribus.federated.models import Array, Tree
from pluribus.federated.seeding import generator
from pluribus.federated.server.rule import one_of
from pluribus.federated.topology import devices
from pluribus.federated.topology.graphs import check_mixing, consensus_distance, mix

if TYPE_CHECKING:
    from pluribus.federated.setup import Setup

Objective = Callable[[Tree], float]


@dataclass(frozen=True)
class SemiDecentralised:
    """S2S and S2A: to whom the server's average of the sampled devices returns.

    Each round every device trains from its own model, and neighbours average: ``x <- W x``. In every ``period``-th
    round the server then draws ``sampled`` devices (uniformly, without replacement) and averages their models; under
    ``"s2s"`` the sampled devices go on from the average, under ``"s2a"`` all do. So S2S leaves the mean of all devices
    as it is, and S2A makes all agree on the mean of a few.

    With all sampled the two are one, and with ``period = 1`` besides they are FedAvg.

    From the abstract (both returns, sampling rate, server period, connectivity) and general knowledge of gossip; the
    order train, gossip, server is ours. Which of the two wins depends on what is asked. On noisy quadratics on a
    well connected graph, by the devices' own models S2S wins where devices are alike and S2A where they differ, because
    S2S leaves them apart; by their mean model S2S wins, and the more the more they differ, because S2A replaces it by
    that of a few. In components without a link S2A is ahead by the first measure at any heterogeneity. A reader's
    summary of the paper has S2S ahead where components differ, which is what the second measure says.

    Parameters
    ----------
    returning
        ``"s2s"`` or ``"s2a"``.
    sampled
        Devices that the server draws; None: all.
    period
        Rounds from one server step to the next.
    weighting
        Of the sampled devices in the server's average: ``"uniform"`` or ``"size"``.
    """

    returning: str = "s2s"
    sampled: int | None = None
    period: int = 1
    weighting: str = "uniform"

    numbers = (66,)
    source = (
        "Rodio, Neglia, Chen and Larsson, A Unified Convergence Analysis for Semi-Decentralized Learning: "
        "Sampled-to-Sampled vs. Sampled-to-All Communication, AAAI 2026"
    )
    explanation = "Neighbours average each round, and a server averages a sample of them every few rounds."

    def __post_init__(self) -> None:
        one_of(self, "returning", ("s2s", "s2a"))
        if self.sampled is not None:
            whole_number("SemiDecentralised", "sampled", self.sampled, 1)
        whole_number("SemiDecentralised", "period", self.period, 1)
        one_of(self, "weighting", devices.WEIGHTINGS)

    def draw(self, n: int, number: int, seed: int) -> list[int]:
        """The devices that the server hears in round ``number``, increasing; none in a round without a server step."""
        if (number + 1) % self.period:
            return []
        if self.sampled is not None and self.sampled > n:
            raise RuleError(f"{self.sampled} devices cannot be sampled of {n}")
        size = n if self.sampled is None else self.sampled
        return sorted(generator(seed, "topology.semi", number).permutation(n)[:size].tolist())

    def matrix(self, n: int, sampled: list[int], shares: Array) -> Array:
        """The server step as rows of weights, (n, n): the identity if nobody is sampled."""
        step = np.eye(n)
        if sampled:
            average = np.zeros(n)
            average[sampled] = shares
            step[sampled if self.returning == "s2s" else slice(None)] = average
        return step


@dataclass(frozen=True, eq=False)
class SemiRun:
    """What `run_semi` saw after each round.

    Attributes
    ----------
    models
        The n devices' models at the end.
    mean
        Their plain mean.
    consensus
        ``mean_i |x_i - mean x|^2``, (rounds,).
    gap
        Objective of the mean model less the optimum, (rounds,).
    device_gap
        Mean over devices of the objective of their own models, less the optimum, (rounds,).
    accuracy
        Test accuracy of the mean model, (rounds,).
    """

    models: list[Tree]
    mean: Tree
    consensus: Array
    gap: Array
    device_gap: Array
    accuracy: Array


def run_semi(
    setup: Setup,
    schedule: SemiDecentralised,
    mixing: Array,
    seed: int,
    rounds: int,
    *,
    objective: Objective | None = None,
    optimum: float = 0.0,
) -> SemiRun:
    """Simulate a semi-decentralised schedule over a federation's clients.

    Parameters
    ----------
    setup
        The federation; all its clients are there in each round, its channel, speeds and attacks are not looked at.
    schedule
        What the server does.
    mixing
        The gossip weights W, (n, n), as `metropolis` makes them; the identity for no gossip.
    seed, rounds
        What all draws start from, and how many rounds.
    objective, optimum
        What gaps are measured in: ``params -> value`` and its least value. By default the mean loss of all clients.
    """
    n = len(setup.clients)
    mixing = check_mixing(mixing, n)
    value = objective or (lambda params: devices.loss(setup, params, schedule.weighting))
    models = [devices.start(setup, seed)] * n
    seen = np.zeros((4, rounds))
    mean = models[0]
    for number in range(rounds):
        after = devices.trained(setup, dict(enumerate(models)), seed, number)
        sampled = schedule.draw(n, number, seed)
        shares = devices.counted(setup, sampled, schedule.weighting) if sampled else np.zeros(0)
        models = mix([after[i] for i in range(n)], schedule.matrix(n, sampled, shares) @ mixing)
        (mean,) = mix(models, np.full((1, n), 1 / n))
        gaps = [value(model) - optimum for model in models]
        accuracy = devices.accuracy(setup, mean)
        seen[:, number] = consensus_distance(models), value(mean) - optimum, np.mean(gaps), accuracy
    return SemiRun(models, mean, *seen)
