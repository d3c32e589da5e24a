"""Several models trained at once by the same clients, on one simulated clock: FedAST and its synchronous rival."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Plain
from pluribus.federated.errors import SettingError
from pluribus.federated.measuring import measure
from pluribus.federated.models import Array, Tree
from pluribus.federated.rounds import difference
from pluribus.federated.seeding import derived, generator
from pluribus.federated.server.asynchronous.fedbuff import FedBuff
from pluribus.federated.server.base import Round
from pluribus.federated.setup import Setup
from pluribus.federated.world.compression import size_of

WINDOW = 8
"""Last updates of a model from which its dispersion is estimated."""


@dataclass(eq=False)
class Task:
    """One model of several: what happened to it, and what is under way.

    ``times``, ``accuracy`` and ``staleness`` (mean over the buffer) hold an entry for each of its server steps;
    ``active`` is R, the jobs that it may have under way, and ``buffer`` b, the updates that make a step.
    """

    setup: Setup
    params: Tree
    active: int
    buffer: int
    version: int = 0
    jobs: int = 0
    under_way: int = 0
    waiting: list[tuple[int, Tree, Tree]] = field(default_factory=list)  # version and model of the start, update
    recent: list[Tree] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)

    def seconds_to(self, target: float) -> float:
        """When the accuracy was first at the target; infinity if it never was."""
        return next((t for t, a in zip(self.times, self.accuracy, strict=True) if a >= target), math.inf)


@dataclass(frozen=True)
class FedAST:
    """M models, R_m jobs of model m under way, a step ``x_m + lr / b_m sum delta`` for every b_m updates of it.

    At once when an update has come a new job of its model goes to a client drawn at random among those with the fewest
    jobs, idle ones if there are any; a client with several does them in turn, each from the model as it was when the
    job was sent. Every ``period`` updates the total of R is shared
    out anew in proportion to the models' relative dispersion, ``sqrt(mean |delta - mean|^2 / |mean|^2)`` over the last
    8 updates of each, with b_m = ceil(R_m / ``per_step``); every model keeps at least one job. What ends at the same
    instant is taken in together before any new job is sent, so with equal delays and ``per_step = 1`` it is synchronous
    FedAvg, and with one model and R = 1 SGD in turn. ``synchronous`` is the rival: R_m jobs, one step when all have
    come, and only then new ones; nothing is shared out anew. A step is that of `FedBuff` without staleness weights, so
    buffers are averaged and an update with NaN is left out.

    Compared with server.py of the authors (askinb/FedAST): the same loop. There clients are drawn whether busy or not,
    which lets jobs queue up at slow ones; and the dispersion is halved where, by its
    spelling ``** 1/2``, a root may have been meant, scaled by learning rates, and without biases; here it is the root,
    over all trained tensors.

    Parameters
    ----------
    jobs
        Total of R; at first shared evenly.
    per_step
        R_m / b_m.
    period
        Updates between two sharings; 0 never shares anew.
    server_lr
        lr.
    synchronous
        Wait for all jobs of a model before its next ones.
    """

    jobs: int = 8
    per_step: int = 2
    period: int = 50
    server_lr: float = 1.0
    synchronous: bool = False

    numbers = (161,)
    source = "Askin et al., FedAST: Federated Asynchronous Simultaneous Training, UAI 2024"

    def __post_init__(self) -> None:
        whole_number("FedAST", "jobs", self.jobs, 1)
        whole_number("FedAST", "per_step", self.per_step, 1)
        whole_number("FedAST", "period", self.period, 0)
        positive("FedAST", "server_lr", self.server_lr)

    def shared_out(self, dispersions: Sequence[float]) -> list[int]:
        """R of each model: at least one, the rest in proportion, by largest remainders; the sum is ``jobs``."""
        share = np.asarray(dispersions, dtype=np.float64)
        share = share / share.sum() if share.sum() > 0 else np.full(len(share), 1 / len(share))
        exact = share * self.jobs
        found = np.maximum(np.floor(exact), 1).astype(np.int64)
        while found.sum() != self.jobs:
            step = 1 if found.sum() < self.jobs else -1
            lag = step * (exact - found)
            lag[(found <= 1) & (step < 0)] = -np.inf
            found[int(np.argmax(lag))] += step
        return [int(value) for value in found]

    def run(self, setups: Sequence[Setup], seed: int, seconds: float) -> list[Task]:
        """Train all models for so many simulated seconds.

        Parameters
        ----------
        setups
            One for each model, with the same number of clients: client i of each is the same machine. Speeds and
            losses are each setup's own ``world``, so a big model may take longer; its schedule plays no part.
        seed
            Decides models, draws of clients and their training.
        seconds
            On the simulated clock.

        Raises
        ------
        SettingError
            No models, or setups of unequal numbers of clients, or fewer jobs than models.
        """
        clients = {len(setup.clients) for setup in setups}
        if len(clients) != 1 or len(setups) > self.jobs:
            raise SettingError(
                f"{len(setups)} models with {sorted(clients)} clients and {self.jobs} jobs; expected at least one "
                "model, the same number of clients for all, and a job for each model"
            )
        desk = _Desk(self, seed, clients.pop(), self._begun(setups, seed))
        desk.send(0.0)
        while desk.flights and (now := min(flight[0] for flight in desk.flights)) <= seconds:
            desk.take_in(now)
            desk.send(now)
        return desk.tasks

    def _begun(self, setups: Sequence[Setup], seed: int) -> list[Task]:
        shares = self.shared_out([1.0] * len(setups))
        return [
            Task(setup, setup.model.init(derived(seed, "several.init", m)), active, self.step_size(active))
            for m, (setup, active) in enumerate(zip(setups, shares, strict=True))
        ]

    @property
    def server(self) -> FedBuff:
        """What makes a step of a buffer; it averages what is measured and not trained, and drops NaN."""
        return FedBuff(server_lr=self.server_lr, exponent=0.0)

    def step_size(self, active: int) -> int:
        """b of R."""
        return active if self.synchronous else -(-active // self.per_step)


@dataclass(eq=False)
class _Desk:
    """What is under way: flights (finish, model, job, client, version, start, update or None for a lost job)."""

    rule: FedAST
    seed: int
    clients: int
    tasks: list[Task]
    flights: list[tuple[float, int, int, int, int, Tree, Tree | None]] = field(default_factory=list)
    came: int = 0

    def __post_init__(self) -> None:
        self.free = np.zeros(self.clients)  # when each client is through with its jobs
        self.done = np.zeros(self.clients, dtype=np.int64)  # jobs that each was ever sent
        self.load = np.zeros(self.clients, dtype=np.int64)  # jobs that each has under way

    def send(self, now: float) -> None:
        """New jobs for every model that may have more under way."""
        for m, task in enumerate(self.tasks):
            if self.rule.synchronous and (task.under_way or task.waiting):
                continue
            while task.under_way < task.active:
                self._send(m, task, now)

    def _send(self, m: int, task: Task, now: float) -> None:
        least = np.flatnonzero(self.load == self.load.min())
        client = int(least[generator(self.seed, "several.client", m, task.jobs).integers(len(least))])
        setup, number = task.setup, task.jobs
        job = Job(
            model=setup.model,
            params=task.params,
            told={},
            dataset=setup.clients[client],
            how=setup.training,
            memory={},
            seed=derived(self.seed, "several.training", m, number),
            round=task.version,
            client=client,
        )
        report = setup.run_jobs(Plain(), [job])[0]
        update = difference(report, job.params)
        count, size = int(self.done[client]), size_of(update)
        spent = setup.world.seconds(
            client, steps=report.steps, up_bytes=size, down_bytes=size_of(job.params), job=count, seed=self.seed
        )
        self.free[client] = max(self.free[client], now) + spent
        self.done[client] += 1
        self.load[client] += 1
        task.jobs += 1
        task.under_way += 1
        lost = setup.world.lost(client, count, self.seed)
        finish = float(self.free[client])
        self.flights.append((finish, m, number, client, task.version, job.params, None if lost else update))

    def take_in(self, now: float) -> None:
        """All that ends now, in the order of models and jobs."""
        ended = sorted((flight for flight in self.flights if flight[0] <= now), key=lambda flight: flight[1:3])
        self.flights = [flight for flight in self.flights if flight[0] > now]
        for _, m, _, client, version, start, update in ended:
            task = self.tasks[m]
            self.load[client] -= 1
            task.under_way -= 1
            if update is not None:
                task.waiting.append((version, start, update))
                trained = {name: update[name] for name in self.rule.server.parameters(start)}
                task.recent = [*task.recent, trained][-WINDOW:]
                self.came += 1
                if self.rule.period and not self.rule.synchronous and self.came % self.rule.period == 0:
                    self._share_out()
            enough = len(task.waiting) >= task.buffer
            if task.waiting and (enough or (self.rule.synchronous and not task.under_way)):
                self._step(task, now)

    def _step(self, task: Task, now: float) -> None:
        count = len(task.waiting)
        versions, starts, updates = (list(column) for column in zip(*task.waiting, strict=True))
        round = Round(
            number=task.version,
            clients=tuple(range(count)),  # places in the buffer: one client may have sent several
            updates=updates,
            sizes=np.ones(count),
            n_clients=count,
            total_size=count,
            starts=starts,
        )
        rule = self.rule.server
        task.params = rule.step(rule.init(task.params, count), round)["params"]
        task.staleness.append(float(np.mean([task.version - version for version in versions])))
        task.waiting = []
        task.version += 1
        task.times.append(now)
        task.accuracy.append(measure(task.setup.model, task.params, task.setup.test)[1])

    def _share_out(self) -> None:
        if all(len(task.recent) >= WINDOW for task in self.tasks):
            shares = self.rule.shared_out([dispersion(task.recent) for task in self.tasks])
            for task, active in zip(self.tasks, shares, strict=True):
                task.active, task.buffer = active, self.rule.step_size(active)


def dispersion(updates: Sequence[Tree]) -> float:
    """``sqrt(mean_i |delta_i - mean|^2 / |mean|^2)`` over all tensors; 0 where all are zero."""
    flat = np.stack([np.concatenate([np.ravel(u[name]).astype(np.float64) for name in updates[0]]) for u in updates])
    middle = flat.mean(axis=0)
    length = float(middle @ middle)
    spread: Array = ((flat - middle) ** 2).sum(axis=1)
    return float(np.sqrt(spread.mean() / length)) if length else 0.0
