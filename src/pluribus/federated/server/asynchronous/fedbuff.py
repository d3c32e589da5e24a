"""FedBuff: the server steps whenever K updates have come, and counts stale ones for less."""

from __future__ import annotations

from dataclasses import dataclass

from pluribus.core.rule import positive
from pluribus.federated.server.asynchronous.arrivals import arrived, staleness_of
from pluribus.federated.server.base import Round, State
from pluribus.federated.server.rule import Server, Step, register


@register
@dataclass(frozen=True)
class FedBuff(Server):
    """``x + lr / K sum_i s(tau_i) delta_i`` with ``s(tau) = (1 + tau) ** -exponent``; K updates make a step.

    tau counts the server's steps between the model that a client started from and the one that its update reaches: 0
    for a fresh one, which counts fully. The sum is divided by K and not by the sum of s, as published, so stale
    buffers make shorter steps. K is the schedule's: ``buffer:K``. Clients count alike. Where all are fresh it is
    FedAvg with uniform weights.

    Compared with the paper's algorithm as NVFlare and FLSim state it (not with the paper's text). NVFlare 2.9 counts
    staleness from the version after the step and weighs by 1 / (1 + sqrt(tau)), so a fresh update counts half there.

    Parameters
    ----------
    server_lr
        Step along the weighted mean.
    exponent
        1/2 as published; 0 ignores staleness.
    """

    server_lr: float = 1.0
    exponent: float = 0.5

    key = "fedbuff"
    formula = "x + lr / K * sum_i delta_i / sqrt(1 + tau_i)"
    source = "Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022"
    explanation = "A step is taken for every K updates that come, and an update counts for less the staler it is."

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedBuff", "server_lr", self.server_lr)
        positive("FedBuff", "exponent", self.exponent, zero=True)

    def advance(self, state: State, round: Round) -> Step:
        """Move by the sum over K."""
        counted = (1 + staleness_of(round)) ** -self.exponent / len(round.clients)
        return Step(arrived(self, state["params"], round, counted, self.server_lr), counted, {})
