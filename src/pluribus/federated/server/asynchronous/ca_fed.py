"""CA-Fed: unbiased weights for clients that come and go, less those whose absence costs less than waiting for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.parameters import is_real
from pluribus.core.rule import positive
from pluribus.federated.server.asynchronous.arrivals import arrived, check_rates, count_arrivals, told_rates
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, fraction, register


@register
@dataclass(frozen=True)
class CAFed(Server):
    """``x + lr sum over participants of q_i delta_i`` with ``q_i = p_i / pi_i``, or 0 for a client that is left out.

    A client's presence is seen as a Markov chain: pi_i is its long-run rate and lambda_i its second eigenvalue, how
    strongly one round resembles the last. At each round clients are left out greedily, first by falling
    ``|lambda_i|``, then by rising pi_i, each one if that lowers the bound ``sum_i w_i (L_i - optimum) + kappa max_i
    (L_i - optimum) TV(p, w)^2`` with ``w ~ pi q``; TV is half the sum of absolute differences. The larger kappa, the
    fewer are left out. Without exclusion the sum is unbiased. Clients that never missed a round are no candidates
    (ours: leaving them out gains no regularity), so where all are always there it is FedAvg.

    L_i are the losses of the start models, smoothed; a client not seen yet has the mean of those seen. lambda_i is
    estimated as ``a + b - 1`` with a the share of its rounds there that followed one there, and b of rounds away after
    away, each with half a pseudo-count. The state holds ``loss``, ``excluded``, counts and shares, (N,) each.

    Compared with MarkovianClientsSampler of the authors (arodio/CA-Fed): the same bound, orders and greedy steps.
    Their estimator divides both counts of transitions by all rounds; here each is a share of its own state's rounds.

    Parameters
    ----------
    kappa
        Weight of the bias in the bound, 1 as published.
    server_lr
        Step along the sum.
    rates
        ``"estimated"``: pi_i by counting, as (times seen + 1) / (rounds + 1); ``"told"``: those of the round.
    smoothing
        What is kept of a client's last loss, in [0, 1).
    tolerance
        How much an exclusion must lower the bound.
    optimum
        The loss that each client could reach.
    """

    kappa: float = 1.0
    server_lr: float = 1.0
    rates: str = "estimated"
    smoothing: float = 0.0
    tolerance: float = 0.0
    optimum: float = 0.0

    key = "ca_fed"
    formula = "x + lr * sum over participants of q_i delta_i, q_i = p_i / pi_i or 0, greedily by a bound of the error"
    source = "Rodio et al., Federated Learning under Heterogeneous and Correlated Client Availability, INFOCOM 2023"
    explanation = "Clients count for more the seldomer they come, and seldom, streaky ones may be left out for good."
    numbers = (188,)
    needs: ClassVar[frozenset[str]] = frozenset({"losses"})

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("CAFed", "kappa", self.kappa, zero=True)
        positive("CAFed", "server_lr", self.server_lr)
        check_rates(self)
        fraction(self, "smoothing")
        positive("CAFed", "tolerance", self.tolerance, zero=True)
        if not is_real(self.optimum) or not np.isfinite(self.optimum):
            raise RuleError(f"CAFed: optimum must be a finite number, not {self.optimum!r}")

    def remember(self, params: Tree, n_clients: int) -> State:
        """Counts, losses and shares of each client."""
        return {
            "arrivals": np.zeros(n_clients, dtype=np.int64),
            "steps": np.array(0),
            "here": np.zeros(n_clients, dtype=bool),
            "stays": np.zeros((2, 2, n_clients), dtype=np.int64),
            "loss": np.full(n_clients, np.nan),
            "shares": np.full(n_clients, np.nan),
            "excluded": np.zeros(n_clients, dtype=bool),
        }

    def advance(self, state: State, round: Round) -> Step:
        """Estimate, decide who is left out, and step."""
        if round.losses is None:
            raise RuleError(
                f"{self.name} decides by the clients' losses, and this round has none; let the clients send the loss "
                "of their start model, as simulations do for rules with needs={'losses'}"
            )
        if not round.total_size > 0:
            raise RuleError(f"{self.name} needs the clients' samples, and total_size is {round.total_size!r}")
        here = list(round.clients)
        memory = self._counted(state, here)
        loss, shares = state["loss"].copy(), state["shares"].copy()
        seen = np.isfinite(loss[here])
        new = np.asarray(round.losses, dtype=np.float64)
        loss[here] = np.where(seen, self.smoothing * np.nan_to_num(loss[here]) + (1 - self.smoothing) * new, new)
        shares[here] = round.sizes / round.total_size
        rates = self._rates(memory, round)
        targets = _completed_shares(shares)
        losses = np.where(np.isfinite(loss), loss, np.nanmean(loss))
        out = self.left_out(targets, rates, eigenvalues(memory["stays"]), losses)
        counted = np.where(out, 0.0, targets / rates)[here]
        moved = arrived(self, state["params"], round, counted, self.server_lr)
        return Step(moved, counted, {**memory, "loss": loss, "shares": shares, "excluded": out})

    def idle(self, state: State, round: Round) -> State:
        """A round to which nobody came."""
        return self._counted(state, [])

    def left_out(self, targets: Array, rates: Array, eigen: Array, losses: Array) -> Array:
        """Who is excluded, (N,), from p, pi, lambda and the losses, (N,) each."""
        gaps = losses - self.optimum
        out = np.zeros(len(targets), dtype=bool)

        def bound(excluded: Array) -> float:
            kept = np.where(excluded, 0.0, targets)
            if not kept.sum() > 0:
                return np.inf
            weights = kept / kept.sum()  # pi q is p for those who are kept
            distance = np.abs(targets - weights).sum() / 2
            return float(gaps @ weights + self.kappa * gaps.max() * distance**2)

        now = bound(out)
        for order in (np.argsort(-np.abs(eigen), kind="stable"), np.argsort(rates, kind="stable")):
            for i in order:
                if out[i] or rates[i] >= 1:
                    continue
                out[i] = True
                lower = bound(out)
                if now - lower > self.tolerance:
                    now = lower
                else:
                    out[i] = False
        return out

    def _rates(self, memory: State, round: Round) -> Array:
        if self.rates == "told":
            return told_rates(self, round)
        return (memory["arrivals"] + 1) / (int(memory["steps"]) + 1)

    def _counted(self, state: State, here: list[int]) -> State:
        now = np.zeros(len(state["here"]), dtype=bool)
        now[here] = True
        stays = state["stays"].copy()
        if int(state["steps"]):
            for before in (False, True):
                for after in (False, True):
                    stays[int(before), int(after)] += (state["here"] == before) & (now == after)
        return {**count_arrivals(state, here), "here": now, "stays": stays}


def eigenvalues(stays: Array) -> Array:
    """lambda of each client, (N,), from counts of transitions ``stays[before, after, client]``, 1 being there."""
    there = (stays[1, 1] + 0.5) / (stays[1].sum(axis=0) + 1)
    away = (stays[0, 0] + 0.5) / (stays[0].sum(axis=0) + 1)
    return np.asarray(there + away - 1)


def _completed_shares(shares: Array) -> Array:
    """Shares with what is left given evenly to clients whose number of samples is not known yet; of sum one."""
    unknown = np.isnan(shares)
    known = np.nan_to_num(shares)
    if unknown.any():
        known[unknown] = max(1 - known.sum(), 0.0) / unknown.sum()
    return np.asarray(known / known.sum())
