"""Between two steps of the server: who is asked, trains, and arrives when, on the simulated clock.

All of it is a function of the run's state, the round and the seed. What is under way when the server steps (a flow's
clients) is a tree of arrays like the rest, so that it is checkpointed and resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pluribus.federated.clients.base import ClientMethod, Job, Kept, Plain, Report
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Array, Tree
from pluribus.federated.participation import there
from pluribus.federated.seeding import derived, generator
from pluribus.federated.server.base import Offer, ServerRule, State
from pluribus.federated.server.rule import Server
from pluribus.federated.setup import Setup
from pluribus.federated.training import LocalTraining
from pluribus.federated.world.compression import size_of

PATIENCE = 10_000
"""Lost jobs in a row after which a flow gives up: at a dropout of 0.99 that happens once in 10^43 rows."""


class Arrival(NamedTuple):
    """What reaches the server from one client, and from which of the server's steps its start model was."""

    client: int
    start: Tree
    update: Tree
    message: Kept
    memory: Kept
    loss: float
    steps: int
    version: int


@dataclass(frozen=True, eq=False)
class Exchange:
    """What came between two steps: arrivals by client, the clock after them, and the bytes that travelled.

    ``world`` and ``memories`` are what the next round goes on with.
    """

    arrivals: Sequence[Arrival]
    time: float
    up: int
    down: int
    world: State
    memories: State


@dataclass(eq=False)
class Desk:
    """One round's dealings with the clients: makes jobs, has them done, and books what travels."""

    setup: Setup
    rule: ServerRule
    seed: int
    number: int
    state: State
    memories: State
    down: int = 0

    def work(self, clients: Sequence[int], jobs: Array, time: float) -> list[Flight]:
        """Let clients train from the present model; ``jobs`` counts each client's jobs, and is counted on."""
        made, down = [], []
        for i in clients:
            offered = offer_of(self.rule, self.state, i)
            made.append(
                Job(
                    model=self.setup.model,
                    params=offered.params,
                    told=offered.told,
                    dataset=self.setup.clients[i],
                    how=local_of(self.rule, self.state, i, self.setup.training),
                    memory=self.memories.get(str(i), {}).get("method", {}),
                    seed=derived(self.seed, "simulation.training", self.number, i),
                    round=self.number,
                    client=i,
                )
            )
            down.append(size_of(offered.params) + size_of(offered.told))
        reports = self.setup.run_jobs(method_of(self.rule), made)
        flights = []
        for job, report, received in zip(made, reports, down, strict=True):
            flights.append(self._flight(job, report, received, int(jobs[job.client]), time))
            jobs[job.client] += 1
        return flights

    def _flight(self, job: Job, report: Report, received: int, count: int, time: float) -> Flight:
        update = difference(report, job.params)
        kept: dict[str, Any] = {"method": report.memory} if report.memory else {}
        sent_bytes, channel = size_of(update), self.setup.world.channel
        if channel:
            rng = generator(self.seed, "world.channel", self.number, job.client)
            before = self.memories.get(str(job.client), {}).get("channel", {})
            update, sent_bytes, residual = channel.send(update, before, rng)
            if residual:
                kept["channel"] = residual
        sent_bytes = self._sent_bytes(update, report, sent_bytes)
        self.down += received
        seconds = self.setup.world.seconds(
            job.client, steps=report.steps, up_bytes=sent_bytes, down_bytes=received, job=count, seed=self.seed
        )
        lost = self.setup.world.lost(job.client, count, self.seed)
        arrival = Arrival(job.client, job.params, update, report.message, kept, report.loss, report.steps, self.number)
        return Flight(arrival, time + seconds, lost, sent_bytes)

    def _sent_bytes(self, update: Tree, report: Report, dense: int) -> int:
        """Bytes that have to travel: update and message, or less where the clients' method says how."""
        counted = getattr(method_of(self.rule), "upload_bytes", None)
        whole = dense + size_of(report.message)
        return whole if counted is None else min(whole, int(counted(update, report.message)))


class Flight(NamedTuple):
    """A job under way: what will arrive, at what time, whether it will never answer, and its bytes."""

    arrival: Arrival
    finish: float
    lost: bool
    bytes: int


def exchange(
    setup: Setup, rule: ServerRule, seed: int, number: int, *, state: State, world: State, memories: State
) -> Exchange:
    """All that happens from the last step of the server to its next one, number ``number``."""
    desk = Desk(setup, rule, seed, number, state, memories)
    schedule, n = setup.world.schedule, len(setup.clients)
    jobs = np.array(world.get("jobs", np.zeros(n, dtype=np.int64)))
    began = float(world.get("time", 0.0))
    here = there(setup.participation, number, seed, began).tolist()
    in_flight = {int(i): _unpacked(int(i), tree) for i, tree in world.get("flights", {}).items()}
    if not schedule.flow:
        flights = desk.work(here, jobs, began)
        came, time = _cohort(setup, flights, began)
        left: dict[int, Flight] = {}
    elif schedule.kind == "window":
        started = desk.work([i for i in here if i not in in_flight], jobs, began)
        flying = in_flight | {flight.arrival.client: flight for flight in started}
        time = began + schedule.seconds
        ended = [flight for flight in flying.values() if flight.finish <= time]
        came = [flight for flight in ended if not flight.lost]
        left = {i: flight for i, flight in flying.items() if flight.finish > time}
    else:
        came, time, left = _flow(desk, here, jobs, began, in_flight)
    came.sort(key=lambda flight: flight.arrival.client)
    kept = {**memories, **{str(f.arrival.client): f.arrival.memory for f in came if f.arrival.memory}}
    after: State = {"time": np.array(time), "jobs": jobs}
    if left:
        after["flights"] = {str(i): _packed(left[i]) for i in sorted(left)}
    arrivals = [flight.arrival for flight in came]
    up = sum(flight.bytes for flight in came)
    return Exchange(arrivals, time, up, desk.down, after, kept)


def _cohort(setup: Setup, flights: list[Flight], began: float) -> tuple[list[Flight], float]:
    """Who arrives before the server steps, and when it does. It hears of a client that is lost when it breaks off."""
    schedule = setup.world.schedule
    if not flights:
        return [], began + (schedule.seconds if np.isfinite(schedule.seconds) else 0.0)
    latest = began + schedule.seconds
    in_time = sorted((f.finish, f.arrival.client, f) for f in flights if f.finish <= latest)
    came: list[Flight] = []
    for finish, _, flight in in_time:
        if not flight.lost:
            came.append(flight)
        if len(came) >= schedule.wanted:
            return came, finish
    if len(in_time) == len(flights):
        return came, in_time[-1][0]
    return came, latest


def _flow(
    desk: Desk, here: Sequence[int], jobs: Array, began: float, flying: dict[int, Flight]
) -> tuple[list[Flight], float, dict[int, Flight]]:
    """Clients start one after another, and arrive until there are enough."""
    schedule, time = desk.setup.world.schedule, began
    came: dict[int, Flight] = {}
    picked = lost = 0
    while len(came) < schedule.wanted:
        idle = [i for i in here if i not in flying and i not in came]
        room = len(idle) if schedule.concurrency is None else max(schedule.concurrency - len(flying), 0)
        if room < len(idle):
            idle = sorted(generator(desk.seed, "world.pick", desk.number, picked).permutation(idle)[:room].tolist())
            picked += 1
        flying |= {flight.arrival.client: flight for flight in desk.work(idle, jobs, time)}
        if not flying:
            break
        _, client = min((flight.finish, i) for i, flight in flying.items())
        flight = flying.pop(client)
        time = max(time, flight.finish)
        if not flight.lost:
            came[client] = flight
        lost = lost + 1 if flight.lost else 0
        if lost >= PATIENCE:
            raise SettingError(
                f"{schedule} waits for updates, and {PATIENCE:,} jobs in a row never answered; take a lower dropout, "
                "or schedule window:SECONDS, which steps with whatever came"
            )
    return list(came.values()), time, flying


# --- what a rule asks of its clients --------------------------------------------------------------------------------


def offer_of(rule: ServerRule, state: State, client: int) -> Offer:
    """What a rule sends a client; a rule with `init` and `step` alone sends its model."""
    return rule.offer(state, client) if isinstance(rule, Server) else Offer(state["params"], {})


def method_of(rule: ServerRule) -> ClientMethod:
    """What a rule's clients do."""
    return rule.client if isinstance(rule, Server) else Plain()


def local_of(rule: ServerRule, state: State, client: int, how: LocalTraining) -> LocalTraining:
    """How a rule wants a client to train."""
    return rule.local(state, client, how) if isinstance(rule, Server) else how


def difference(report: Report, start: Tree) -> Tree:
    """``local - start``. Masks have no difference. Done in place where the parameters are nobody else's."""
    shared = bool(report.memory) or bool(report.message)
    return {name: _less(value, start[name], shared) for name, value in report.params.items()}


def _less(value: Array, start: Array, shared: bool) -> Array:
    if value.dtype.kind == "b":
        return value
    # Arithmetic on arrays of no dimension gives numpy's scalars, which cannot be written to.
    own = isinstance(value, np.ndarray) and not shared and value.flags.writeable
    return np.asarray(np.subtract(value, start, out=value if own else None))


# --- flights as trees of arrays -------------------------------------------------------------------------------------


def _packed(flight: Flight) -> State:
    arrival = flight.arrival
    packed: State = {
        "numbers": np.array([flight.finish, flight.lost, flight.bytes, arrival.loss, arrival.steps, arrival.version]),
        "start": dict(arrival.start),
        "update": arrival.update,
    }
    return packed | {name: dict(value) for name in ("message", "memory") if (value := getattr(arrival, name))}


def _unpacked(client: int, tree: State) -> Flight:
    finish, lost, size, loss, steps, version = tree["numbers"].tolist()
    arrival = Arrival(
        client,
        tree["start"],
        tree["update"],
        tree.get("message", {}),
        tree.get("memory", {}),
        loss,
        int(steps),
        int(version),
    )
    return Flight(arrival, finish, bool(lost), int(size))
