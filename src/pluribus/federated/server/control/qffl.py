"""q-FFL: clients with a large loss count more, the more the larger q is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.server.base import Round, State
from pluribus.federated.server.rule import Server, Step, mean, one_of, register, shares_by

LEAST_LOSS = 1e-10
"""Added to every loss, as in the authors' code, so that a client without loss has a finite power."""


@register
@dataclass(frozen=True)
class QFFL(Server):
    """q-FedAvg: ``x + sum_i p_i F_i^q L delta_i / sum_i p_i h_i``, a step down ``sum_i p_i F_i^(q+1) / (q+1)``.

    F_i is the client's loss of the model that it started from, L = 1 / lr, and ``h_i = q F_i^(q-1) |L delta_i|^2 +
    L F_i^q`` bounds the objective's curvature, so that the step needs no tuning for another q. q = 0 is FedAvg.
    The squared norm is over the trained tensors.

    Compared with the authors' code (litian96/fair_flearn, flearn/trainers/qffedavg.py), whose clients count alike.

    Parameters
    ----------
    q
        Fairness: 0 is FedAvg, and as q grows the worst client alone counts.
    lr
        1 / L. The authors take the clients' learning rate; where a round has many steps that is far too careful, and
        1 is about FedAvg's pace. It changes the steps' length, not where they end.
    weighting
        p_i: ``"size"`` by sample counts, ``"uniform"`` alike.
    """

    q: float = 1.0
    lr: float = 1.0
    weighting: str = "size"

    key = "qffl"
    formula = "x + sum_i p_i F_i^q L delta_i / sum_i p_i (q F_i^(q-1) |L delta_i|^2 + L F_i^q), L = 1 / lr"
    source = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020"
    explanation = "Clients that the model serves badly count more, so that accuracy is spread more evenly."
    needs = frozenset({"losses"})

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("QFFL", "q", self.q, zero=True)
        positive("QFFL", "lr", self.lr)
        one_of(self, "weighting", ("size", "uniform"))

    def advance(self, state: State, round: Round) -> Step:
        """The step with the estimated curvature."""
        if round.losses is None:
            raise RuleError(
                "qffl needs each participant's loss of the model that it started from, `Round.losses`; the simulation "
                "measures it, another driver must pass it"
            )
        shares = shares_by(round, self.weighting)
        losses = np.asarray(round.losses, dtype=np.float64) + LEAST_LOSS
        if not (losses > 0).all():
            raise RuleError(f"qffl takes losses >= 0; round {round.number} has one of {losses.min():g}")
        names = self.parameters(state["params"])
        inverse = 1 / self.lr
        squares = np.array([sum(_square(update[name]) for name in names) for update in round.updates])
        # Powers are taken relative to the largest loss, which cancels but for one factor, so that none overflows.
        top = losses.max()
        powers = (losses / top) ** self.q
        curvature = self.q * powers / losses * squares * inverse**2 + inverse * powers
        with np.errstate(under="ignore"):
            pulls = shares * powers * inverse
        scale = float(pulls.sum() / (shares @ curvature))
        counted = pulls / pulls.sum()
        return Step(self.moved(state["params"], mean(round, counted), scale), counted, {})


def _square(value: np.ndarray) -> float:
    flat = np.asarray(value, dtype=np.float64).ravel()
    return float(flat @ flat)
