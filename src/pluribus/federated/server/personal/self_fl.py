"""Self-FL: how far clients share is how sure they are of their own model against how far clients differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array
from pluribus.federated.seeding import generator
from pluribus.federated.server.admission import label
from pluribus.federated.server.base import Offer, Round, State, Tree
from pluribus.federated.server.per_client import Personal, shared
from pluribus.federated.server.rule import BUFFERS, Step, is_buffer, local_models, one_of, portion, register
from pluribus.federated.training import LocalTraining
from pluribus.rules import Mean

AUTO = "auto"


@register
@dataclass(frozen=True)
class SelfFL(Personal):
    """``theta = sum_i y_i / (s2 + v_i) / sum_i 1 / (s2 + v_i)``; client i gets ``(s2 y_i + v_i theta) / (s2 + v_i)``.

    It is the posterior mean of client i's optimum where optima are N(theta, s2), local models y_i are N(optimum, v_i)
    and nothing is known of theta. v_i, sent by the client, is its update's variance (see `half_variance`); s2 is
    the local models' variance less the mean of v, at least zero. Both are sums over all coordinates. s2 = 0 shares
    fully, with inverse variances for weights; infinite s2 leaves local training. Where s2 = v_i = 0 all is shared.
    The next time a client takes ``least_steps + (1 - least_steps) s2 / (s2 + v_i)`` of its steps: those who share more
    go less far alone.

    The Gaussian formulas were checked against the exact posterior. That steps follow the two variances is in the
    paper's abstract; the formula for them here, and the estimates, are our own (its code was not found).

    On two groups of three clients with 60 digits each, who call them differently (12 rounds, 5 seeds; softmax, mlp:16):
    accuracy .59 and .71, between FedAvg's .45 and local training's .85 and .83: one theta fits no group. Where all are
    alike it shares nearly all, .89 and .88 as FedAvg, above local training.

    Parameters
    ----------
    between
        s2, at least 0, or ``"auto"``.
    start
        What clients train from: ``"global"``, theta, or their ``"own"`` model, whose uncertainty from earlier rounds
        is no part of v_i, so that it shares little.
    least_steps
        Share of the steps that a client takes that shares everything, in (0, 1]; 1 never changes them.
    """

    between: float | str = AUTO
    start: str = "global"
    least_steps: float = 1.0

    key = "self_fl"
    formula = "theta = sum_i y_i / (s2 + v_i) / sum_i 1 / (s2 + v_i); y_i <- (s2 y_i + v_i theta) / (s2 + v_i)"
    source = "Chen et al., Self-Aware Personalized Federated Learning, NeurIPS 2022"
    explanation = "Clients keep the more of their own model, the more clients differ and the surer it is."
    numbers = (276,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.between, str):
            if self.between != AUTO:
                raise RuleError(f"SelfFL: between must be a number >= 0 or 'auto', not {self.between!r}")
        else:
            positive("SelfFL", "between", self.between, zero=True, infinite=True)
        one_of(self, "start", ("global", "own"))
        portion(self, "least_steps")

    @property
    def client(self) -> UncertainClient:
        """Training, and the variance of the update."""
        return UncertainClient(self.buffers)

    def remember(self, params: Tree, n_clients: int) -> State:
        """As `Personal`; ``between``: s2; ``own`` s2 / (s2 + v_i) and ``planned`` steps, (N,), NaN where unknown."""
        unknown = np.full(n_clients, np.nan)
        return super().remember(params, n_clients) | {
            "between": np.array(np.nan),
            "own": unknown,
            "planned": unknown.copy(),
        }

    def offer(self, state: State, client: int) -> Offer:
        """The common model, or the client's own."""
        return Offer(state["params"] if self.start == "global" else self.model_of(state, client), {})

    def local(self, state: State, client: int, how: LocalTraining) -> LocalTraining:
        """As many steps as the client's share of its own model says."""
        planned, own = float(state["planned"][client]), float(state["own"][client])
        if not planned >= 1 or self.least_steps == 1:
            return how
        share = self.least_steps + (1 - self.least_steps) * own
        return replace(how, steps=max(1, math.ceil(share * planned - 1e-9)))

    def advance(self, state: State, round: Round) -> Step:
        """Estimate s2, and shrink every participant towards the common model."""
        here = list(round.clients)
        told = [float(tree["update"]) for tree in self.sent(round, "variance").updates]
        variances = np.maximum(told, 0.0)  # a negative one would be a lie
        between = self.estimate(state["params"], round, variances) if self.between == AUTO else float(self.between)
        shares, own = posterior(variances, between)
        mixing = own[:, None] * np.eye(len(here)) + (1 - own)[:, None] * shares
        common, memory = shared(state, round, mixing, shares)
        kept, planned = state["own"].copy(), state["planned"].copy()
        kept[here] = own
        if round.steps is not None:
            first = np.isnan(planned[here])
            planned[here] = np.where(first, round.steps, planned[here])
        return Step(common, shares, {**memory, "between": np.array(between), "own": kept, "planned": planned})

    def estimate(self, params: Tree, round: Round, variances: Array) -> float:
        """s2 from the spread of the local models; 0 for one alone."""
        k = len(round.clients)
        if k == 1:
            return 0.0
        names = self.parameters(params)
        models = zip(round.clients, local_models(round, params), strict=True)
        relation = Mean()({label(i): {name: model[name] for name in names} for i, model in models}).gram
        scatter = float(relation.squared_distances.sum()) / (2 * k) * relation.scale**2
        return max(scatter / (k - 1) - float(variances.mean()), 0.0)


@dataclass(frozen=True)
class UncertainClient:
    """The client's half of `SelfFL`."""

    buffers: tuple[str, ...] = BUFFERS

    def train(self, job: Job) -> Report:
        """Plain training, and the variance of the update."""
        report = job.train()
        found: Array = np.array(half_variance(job, report.steps, self.buffers))
        return report._replace(message={"variance": {"update": found}})


def posterior(variances: Array, between: float) -> tuple[Array, Array]:
    """Weights of the clients in theta, of sum one, and the share that each keeps of its own model, both (k,)."""
    k = len(variances)
    if math.isinf(between):
        return np.full(k, 1 / k), np.ones(k)
    total = between + variances
    least = total.min()
    precisions = least / total if least > 0 else (total == 0).astype(np.float64)
    own = np.divide(between, total, out=np.zeros(k), where=total > 0)
    return precisions / precisions.sum(), own


def half_variance(job: Job, steps: int, buffers: Sequence[str] = BUFFERS) -> float:
    """Estimate of ``E |delta - E delta|^2`` of a client's update of so many steps, over all trained coordinates.

    The variance is over the client's samples, were they drawn anew. The client trains once on each half of its samples,
    for as many steps, and takes a quarter of the squared distance of the ends: an update from half of the samples has
    twice the variance, and the difference of two such four times. So it costs two more trainings, and holds however
    the local model bends. A client with a single sample doubts all of its update: its squared length.
    """
    count = len(job.dataset)
    how = replace(job.how, steps=max(steps, 1))
    order = generator(job.seed, "federated.halves").permutation(count)
    halves = [order[: count // 2], order[count // 2 : 2 * (count // 2)]] if count > 1 else [order]
    ends = [dict(replace(job, dataset=job.dataset.take(half), how=how).train().params) for half in halves]
    first, second = ends if count > 1 else (ends[0], dict(job.params))
    total = 0.0
    for name, value in first.items():
        if value.dtype.kind == "f" and not is_buffer(name, buffers):
            gap = value.astype(np.float64) - second[name]
            total += float(np.vdot(gap, gap))
    return total / 4 if count > 1 else total
