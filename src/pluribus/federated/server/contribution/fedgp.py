"""FedDA and FedGP as server rules: one client with few samples is the target, and the others are its sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pluribus import rules
from pluribus.core.errors import RuleError
from pluribus.core.parameters import is_real
from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.server.base import Array, Offer, Round, State, Tree
from pluribus.federated.server.contribution.shared import rest_of, update_variance
from pluribus.federated.server.rule import Server, Step, contributions, register

AUTO = "auto"
_SOURCE = "Jiang, Zhang and Koyejo, Principled Federated Domain Adaptation, ICLR 2024"


@dataclass(frozen=True)
class _Targeted(Server):
    target: int = 0
    beta: float | str = AUTO
    server_lr: float = 1.0

    source = _SOURCE
    numbers = (467,)
    rule: ClassVar[type[rules.FedDA | rules.FedGP]]

    def __post_init__(self) -> None:
        super().__post_init__()
        who = type(self).__name__
        whole_number(who, "target", self.target, 0)
        positive(who, "server_lr", self.server_lr)
        given = self.beta
        if given != AUTO and (isinstance(given, str) or not is_real(given) or not 0 <= given <= 1):
            raise RuleError(f"{who}: beta must be a number in [0, 1] or 'auto', not {given!r}")

    @property
    def client(self) -> TargetClient:
        """Training, and for the target how sure its update is."""
        return TargetClient(measure=self.beta == AUTO)

    def remember(self, params: Tree, n_clients: int) -> State:
        """Nothing; the target must be one of the clients."""
        if self.target >= n_clients:
            raise RuleError(f"{type(self).__name__}: target={self.target}, and the clients are 0 .. {n_clients - 1}")
        return {}

    def offer(self, state: State, client: int) -> Offer:
        """The model, and whether the client is the target."""
        return Offer(state["params"], {"target": np.array(client == self.target)})

    def advance(self, state: State, round: Round) -> Step:
        """Move by the target's update as the sources change it; in a round without the target the model stays."""
        k = len(round.clients)
        if self.target not in round.clients:
            return Step(state["params"], np.zeros(k), {})
        here = round.clients.index(self.target)
        names = self.parameters(state["params"])
        sources = round.take([i for i in range(k) if i != here])
        own = {name: round.updates[here][name] for name in names}
        counted = np.zeros(k)
        if k == 1:
            counted[here], change = 1.0, dict(own)
        else:
            rule = self._rule(round, here)
            result = rule(contributions(sources, names), reference=own)
            coefficients = rule.weigh(result.relation, np.full(k - 1, 1 / (k - 1)))
            counted[here], change = coefficients[-1], dict(result.value)
            counted[[i for i in range(k) if i != here]] = coefficients[:-1]
        target_only = np.eye(k)[here]
        change |= rest_of(self, state["params"], round, target_only)
        return Step(self.moved(state["params"], change, self.server_lr), counted, {})

    def _rule(self, round: Round, here: int) -> rules.FedDA | rules.FedGP:
        if self.beta != AUTO:
            return self.rule(beta=self.beta)
        message = self.sent(round.take([here]), "variance").updates[0]
        return self.rule(beta=AUTO, variance=float(message["update"]))


@register
@dataclass(frozen=True)
class FedDA(_Targeted):
    """``x + lr mean_i ((1 - b_i) delta_T + b_i delta_i)`` over the sources i of the target client T.

    See `pluribus.rules.FedDA`. With ``beta="auto"``, ``b_i = s2 / (s2 + d_i2)``: the target sends the variance s2 of
    its update (see `update_variance`), d_i2 is the squared distance of both updates freed of s2. Sources count alike.
    In a round without the target the model stays. Buffers are the target's.

    The rule was compared with the authors' code; the variance there is of batch gradients, here of the update, so
    clients should take as many steps each (``steps``). On a synthetic grid of shifts and known variances auto is at
    the better of both ends or below in 14 or 15 of 16 cells. On digits with 20 or 60 samples at the target (3 seeds)
    it is within .01 of the better end or above where all are alike, except for one of six runs (.64 of .87); above
    both in 5 of 6 where every client's images are turned another 15 degrees; and between them where the sources'
    labels are wrong: no guarantee.

    Parameters
    ----------
    target
        Which client.
    beta
        Share of the sources in [0, 1], or ``"auto"``.
    server_lr
        Step along the result.
    """

    key = "fedda"
    formula = "x + lr mean_i ((1 - b_i) delta_T + b_i delta_i), b_i = s2 / (s2 + d_i2)"
    explanation = "A client with few samples is helped by the others' updates, the more the surer their help is."
    rule = rules.FedDA


@register
@dataclass(frozen=True)
class FedGP(_Targeted):
    """``x + lr mean_i ((1 - b_i) delta_T + b_i max(<delta_T, delta_i>, 0) / |delta_i|^2 delta_i)`` for the target T.

    See `pluribus.rules.FedGP`: a source lends its direction where it does not oppose the target, not its length.
    Else as `FedDA`, with the squared distance to the source's line.

    Parameters
    ----------
    target, beta, server_lr
        As for `FedDA`.
    """

    key = "fedgp"
    formula = "x + lr mean_i ((1 - b_i) delta_T + b_i max(<delta_T, delta_i>, 0) / |delta_i|^2 delta_i)"
    explanation = "A client with few samples is helped by the directions of those who do not oppose it."
    rule = rules.FedGP


@dataclass(frozen=True)
class TargetClient:
    """The clients' half of `FedDA` and `FedGP`."""

    measure: bool

    def train(self, job: Job) -> Report:
        """Plain training; the target sends its update's variance too."""
        report = job.train()
        if not (self.measure and bool(job.told["target"])):
            return report
        found: Array = np.array(update_variance(job, report.steps))
        return report._replace(message={"variance": {"update": found}})
