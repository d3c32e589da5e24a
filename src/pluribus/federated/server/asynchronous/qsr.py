"""QSR: the smaller the learning rate, the longer clients train before they are averaged, quadratically."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.server.asynchronous.arrivals import arrived
from pluribus.federated.server.base import Offer, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, one_of, register
from pluribus.federated.training import Hooks, LocalTraining

SCHEDULES = ("cosine", "linear", "constant")


@register
@dataclass(frozen=True)
class QSR(Server):
    """The mean model every ``H = max(base, floor((alpha / eta)^2))`` local steps; eta falls along its schedule.

    eta is the federation's lr times 1 at the first local step, and falls over ``total`` of them to ``lowest`` times it,
    within rounds as well. The last round is cut so that ``total`` is met exactly; rounds after that have one step each
    at the lowest rate. Workers count alike. base = 1 and alpha = 0: data-parallel SGD. The state holds ``done``, local
    steps so far.

    Compared with LocalOptimizer.adjust_h of the authors (hmgxr128/QSR): the same H and the same cut (warm-up left out).

    Parameters
    ----------
    alpha
        In units of the learning rate: alpha = lr sqrt(H) gives H at that rate.
    base
        Fewest steps.
    total
        Local steps of the whole training, on which the schedule of eta rests.
    schedule
        ``"cosine"``, ``"linear"`` or ``"constant"``.
    lowest
        Share of the learning rate at the end, in (0, 1].
    """

    alpha: float = 0.1
    base: int = 4
    total: int = 200
    schedule: str = "cosine"
    lowest: float = 0.01

    key = "qsr"
    formula = "mean model every H = max(H_base, floor((alpha / eta)^2)) local steps, eta decaying"
    source = "Gu et al., A Quadratic Synchronization Rule for Distributed Deep Learning, ICLR 2024"
    explanation = "Clients train for longer between two averages as their learning rate decays."
    numbers = (242,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("QSR", "alpha", self.alpha, zero=True)
        whole_number("QSR", "base", self.base, 1)
        whole_number("QSR", "total", self.total, 1)
        one_of(self, "schedule", SCHEDULES)
        positive("QSR", "lowest", self.lowest)
        if self.lowest > 1:
            raise RuleError(f"QSR: lowest is a share of the learning rate, at most 1, not {self.lowest!r}")

    def factor(self, done: int) -> float:
        """eta at the local step number ``done``, as a share of the learning rate."""
        if self.schedule == "constant":
            return 1.0
        part = min(done / self.total, 1.0)
        high = (1 + math.cos(math.pi * part)) / 2 if self.schedule == "cosine" else 1 - part
        return self.lowest + (1 - self.lowest) * high

    def length(self, done: int, lr: float) -> int:
        """H of the round that begins after ``done`` local steps, for a learning rate lr at the start."""
        wide = (self.alpha / (lr * self.factor(done))) ** 2
        wanted = max(self.base, math.floor(wide * (1 + 1e-12)))  # 0.3 / 0.1 squared is 9
        return max(1, min(wanted, self.total - done))

    def rounds(self, lr: float) -> list[int]:
        """H of every round until ``total`` steps are done."""
        done, found = 0, []
        while done < self.total:
            found.append(self.length(done, lr))
            done += found[-1]
        return found

    @property
    def client(self) -> QSRClient:
        """Local steps whose learning rate goes on falling."""
        return QSRClient(self)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``done``: local steps so far."""
        return {"done": np.array(0)}

    def offer(self, state: State, client: int) -> Offer:
        """The model, and how far the schedule is."""
        return Offer(state["params"], {"done": state["done"]})

    def local(self, state: State, client: int, how: LocalTraining) -> LocalTraining:
        """H steps, from the present rate on."""
        done = int(state["done"])
        return replace(how, steps=self.length(done, how.lr), lr=how.lr * self.factor(done))

    def advance(self, state: State, round: Round) -> Step:
        """The mean, and the steps counted."""
        if round.steps is None:
            raise RuleError(f"{self.name} counts local steps, and this round does not tell them; give Round.steps")
        counted = np.full(len(round.clients), 1 / len(round.clients))
        moved = arrived(self, state["params"], round, counted)
        return Step(moved, counted, {"done": np.array(int(state["done"]) + int(np.max(round.steps)))})


@dataclass(frozen=True)
class QSRClient:
    """The client's half of `QSR`."""

    rule: QSR

    def train(self, job: Job) -> Report:
        """Steps along the schedule."""
        done = int(job.told["done"])
        start = self.rule.factor(done)
        return job.train(Hooks(rate=lambda step, steps: self.rule.factor(done + step) / start))
