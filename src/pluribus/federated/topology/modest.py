"""MoDeST: each round a fresh sample of participants and aggregators, without a server, by hashes that all compute."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pluribus.core.rule import whole_number
from pluribus.federated.models import Array, Tree
from pluribus.federated.seeding import generator
from pluribus.federated.server.rule import one_of, portion
from pluribus.federated.topology import devices
from pluribus.federated.topology.graphs import mix

if TYPE_CHECKING:
    from pluribus.federated.setup import Setup

Alive = Callable[[int], Array]


def ordered(nodes: Iterable[int], number: int, salt: int = 0) -> list[int]:
    """Nodes by the hash of node and round: the order in which a round asks them, the same wherever it is computed."""
    return sorted(nodes, key=lambda node: (hashlib.sha256(f"{salt}-{node}-{number}".encode()).digest(), node))


@dataclass(frozen=True)
class MoDeST:
    """Round k: the first ``sample`` nodes by hash(node, k) train, the first ``aggregators`` of k + 1 average.

    *Order.* A node ranks the peers that it believes active by a hash of their number and the round, and asks them in
    this order whether they are there (pings); who does not answer is passed over, so the sample is the first so many
    that answer. *Aggregation.* Participants send their models to all aggregators of the next round, each of which
    averages once ``fraction`` of the sample has arrived and sends the average to that round's participants; these take
    the first that comes. *Churn.* Each node keeps the last round in which it knows each peer to have been active,
    takes those within ``patience`` rounds for active, and merges what it knows with what comes in messages (by
    maximum). Where nobody it takes for active is there it asks everybody it ever heard of.

    With ``sample`` = all nodes, one aggregator and fraction = 1 it is FedAvg.

    Sampling compared with get_ordered_sample_list of the authors' code (accdfl / dlsim SampleManager): sorted by a
    digest of "node-round", first so many; theirs is MD5 and here SHA-256. Activity, pings and the fraction are from the
    abstract and general knowledge.

    Parameters
    ----------
    sample, aggregators
        s and a.
    fraction
        Share of the sample that an aggregator waits for, in (0, 1].
    patience
        Rounds without a sign of life after which a peer is taken for gone.
    weighting
        ``"uniform"`` or ``"size"``.
    """

    sample: int = 10
    aggregators: int = 1
    fraction: float = 1.0
    patience: int = 20
    weighting: str = "uniform"

    numbers = (206,)
    source = (
        "de Vos et al., MoDeST: Bridging the Gap between Federated and Decentralized Learning with Decentralized "
        "Sampling, arXiv 2302.13837, 2023"
    )
    explanation = "Each round's participants and aggregators follow from hashes, so nobody has to be the server."

    def __post_init__(self) -> None:
        for name in ("sample", "aggregators", "patience"):
            whole_number("MoDeST", name, getattr(self, name), 1)
        portion(self, "fraction")
        one_of(self, "weighting", devices.WEIGHTINGS)

    def active(self, view: Array, number: int) -> list[int]:
        """Peers that a node takes for active: those seen within ``patience`` rounds; ``view`` (N,), -1 for never."""
        view = np.asarray(view)
        return np.flatnonzero((view >= 0) & (view > number - 1 - self.patience)).tolist()

    def answering(self, view: Array, number: int, wanted: int, alive: Array, salt: int = 0) -> tuple[list[int], int]:
        """The first ``wanted`` peers of a round that answer, in their order, and how many pings that took."""
        pings = 0
        found: list[int] = []
        believed = set(self.active(view, number))
        known = set(np.flatnonzero(np.asarray(view) >= 0).tolist())
        for peers in (believed, known - believed):
            for node in ordered(peers, number, salt):
                if len(found) == wanted:
                    return found, pings
                pings += 1
                if alive[node]:
                    found.append(node)
            if found:
                break
        return found, pings


@dataclass(frozen=True, eq=False)
class MoDeSTRun:
    """What `run_modest` saw: the last average, and for each round the counts.

    ``participants`` (rounds, N): who trained; ``aggregating`` (rounds, N): who averaged; ``pings`` (rounds,);
    ``accuracy`` (rounds,), NaN in a round that nobody could finish: the model stays; ``views`` (N, N): the last
    round in which each node (row) knows each (column) to have been active.
    """

    params: Tree
    participants: NDArray[np.bool_]
    aggregating: NDArray[np.bool_]
    pings: Array
    accuracy: Array
    views: Array


def run_modest(
    setup: Setup, schedule: MoDeST, seed: int, rounds: int, *, alive: Alive | None = None, salt: int = 0
) -> MoDeSTRun:
    """Simulate MoDeST over a federation's clients.

    All know each other at the start. The ranking of a round is that of the first aggregator that is still there, whose
    view holds all that the round before told; nodes that train always send, though an aggregator may not wait for them.

    Parameters
    ----------
    setup
        The federation; its schedule, channel, speeds and attacks are not looked at.
    schedule
        s, a, and the rest.
    seed, rounds
        What all draws start from, and how many rounds.
    alive
        ``alive(round) -> (N,)`` booleans: who answers, and can train, in a round; None: everybody always.
    salt
        A number that goes into the hashes, for another order.
    """
    n = len(setup.clients)
    everybody = np.ones(n, dtype=np.bool_)
    views = np.zeros((n, n), dtype=np.int64)
    params = devices.start(setup, seed)
    trained_in, averaged_in = np.zeros((2, rounds, n), dtype=np.bool_)
    pings, accuracy = np.zeros(rounds, dtype=np.int64), np.full(rounds, np.nan)
    # Each node that averaged holds an average; the first round's participants begin with the model that all know.
    holders: dict[int, Tree] = {}
    for number in range(rounds):
        here = everybody if alive is None else np.asarray(alive(number), dtype=np.bool_)
        senders = [i for i in holders if here[i]] or np.flatnonzero(here).tolist()[:1]
        if not senders:
            continue
        sample, asked = schedule.answering(views[senders[0]], number, schedule.sample, here, salt)
        aggregators, more = schedule.answering(views[senders[0]], number + 1, schedule.aggregators, here, salt)
        pings[number] = asked + more
        if not sample or not aggregators:
            continue
        rng = generator(seed, "topology.modest", number)
        first = {i: senders[int(rng.integers(len(senders)))] for i in sample}
        ends = devices.trained(setup, {i: holders.get(first[i], params) for i in sample}, seed, number)
        news = views[[*senders, *sample]].max(axis=0)
        news[[*sample, *aggregators]] = np.maximum(news[[*sample, *aggregators]], number)
        views[sample], views[aggregators] = np.maximum(views[sample], news), np.maximum(views[aggregators], news)
        holders = {}
        for place in aggregators:
            enough = math.ceil(schedule.fraction * len(sample))
            arrived = sorted(rng.permutation(len(sample))[:enough].tolist())
            chosen = sorted(sample[k] for k in arrived)
            shares = devices.counted(setup, chosen, schedule.weighting)
            (holders[place],) = mix([ends[i] for i in chosen], shares[None, :])
        params = holders[aggregators[0]]
        trained_in[number, sample] = averaged_in[number, aggregators] = True
        accuracy[number] = devices.accuracy(setup, params)
    return MoDeSTRun(params, trained_in, averaged_in, pings, accuracy, views)
