"""What each client contributed: exactly, by training again without it, and by the measures that cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pluribus.federated.errors import SettingError
from pluribus.federated.history import History
from pluribus.federated.models import Array
from pluribus.federated.participation import Participation, Timed
from pluribus.federated.server.base import ServerRule
from pluribus.federated.server.rule import Server
from pluribus.federated.setup import Setup
from pluribus.federated.simulation import Run, simulate

OWN = ("contribution", "rewards")
"""Names under which rules keep a measure of their own, (N,), in their state: FedCE, FAIR-BFL."""


@dataclass(frozen=True)
class Without:
    """A participation in which one client never takes part; all else, ids and random numbers too, is as it was."""

    participation: Participation
    client: int

    @property
    def clients(self) -> int:
        """Number of clients, the absent one among them."""
        return self.participation.clients

    @property
    def rates(self) -> Array:
        """As if it came."""
        return self.participation.rates

    def participants(self, round: int, seed: int) -> Array:
        """Those who take part, without the client."""
        return self._others(self.participation.participants(round, seed))

    @property
    def timed(self) -> bool:
        """As with the client."""
        return isinstance(self.participation, Timed) and self.participation.timed

    def at(self, when: float) -> Array:
        """Those who are there at a second, without the client."""
        assert isinstance(self.participation, Timed)
        return self._others(self.participation.at(when))

    def _others(self, here: Array) -> Array:
        return np.asarray(here[here != self.client])


def without(setup: Setup, client: int) -> Setup:
    """The federation in which a client never comes."""
    return replace(setup, participation=Without(setup.participation, client))


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Each client's exact contribution under a rule and a seed, beside the measures of it.

    Attributes
    ----------
    accuracy
        Accuracy of the run with all less that of the run without the client, (N,): positive where it helps. Of the
        global model on the test samples; under a rule with personal models the mean over the *other* clients.
    loss
        Loss of the run without the client less that of the run with all, (N,): positive where it helps, and finer than
        accuracy. NaN under a rule with personal models.
    measures
        See `measures`.
    run
        The run with all clients.
    """

    accuracy: Array
    loss: Array
    measures: Mapping[str, Array]
    run: Run

    def agreement(self, exact: str = "loss") -> dict[str, float]:
        """Rank correlation of each measure with the exact contribution in ``"loss"`` or ``"accuracy"``."""
        if exact not in ("loss", "accuracy"):
            raise SettingError(f"exact is {exact!r}; expected 'loss' or 'accuracy'")
        found = getattr(self, exact)
        return {name: rank_correlation(found, values) for name, values in self.measures.items()}


def leave_one_out(setup: Setup, rule: ServerRule, seed: int, rounds: int, *, most: int = 5000) -> LeaveOneOut:
    """Train with all clients, and again without each: N + 1 runs of so many rounds.

    Parameters
    ----------
    setup, rule, seed, rounds
        As for `simulate`. In the runs without a client everything else is the same, so it is the client that counts.
    most
        Clients x clients x rounds up to which it is done; give a larger one to insist.

    Raises
    ------
    SettingError
        There is one client alone, or the work is more than ``most``.
    """
    n = len(setup.clients)
    work = n * n * rounds
    if n < 2:
        raise SettingError("one client alone cannot be left out; take two or more")
    if work > most:
        raise SettingError(
            f"to leave out each of {n} clients takes {n + 1} runs of {rounds} rounds: about {work} trainings of a "
            f"client, and most={most}; take fewer clients or rounds, or give most={work}"
        )
    run = simulate(setup, rule, seed, rounds=rounds, eval_every=rounds)
    personal = isinstance(rule, Server) and rule.personal_models
    accuracy, loss = np.full(n, np.nan), np.full(n, np.nan)
    for i in range(n):
        other = simulate(without(setup, i), rule, seed, rounds=rounds, eval_every=rounds).history
        if personal:
            rest = np.arange(n) != i
            accuracy[i] = np.nanmean(run.history.client_accuracy[rest]) - np.nanmean(other.client_accuracy[rest])
        else:
            accuracy[i] = run.history.accuracy[-1] - other.accuracy[-1]
            loss[i] = other.loss[-1] - run.history.loss[-1]
    return LeaveOneOut(accuracy, loss, measures(run), run)


def measures(run: Run) -> dict[str, Array]:
    """Measures of each client's contribution that a run holds, each (N,), NaN where a client has none.

    ``weights``: mean weight over the rounds, absent ones as zero. ``influence``: how far the weighted mean of the last
    round's updates moves without the client; there where weights and distances of that round are known. And what the
    rule keeps of its own, by its name in the state: see `OWN`.
    """
    history = run.history
    found: dict[str, Array] = {"weights": np.nan_to_num(history.weights).mean(axis=0)}
    influence = influence_of(history)
    if influence is not None:
        found["influence"] = influence
    clients = history.weights.shape[1]
    for name in OWN:
        value: Any = run.state.get(name)
        if isinstance(value, np.ndarray) and value.shape == (clients,):
            found[name] = value.astype(np.float64)
    return found


def influence_of(history: History) -> Array | None:
    """``w_i / (1 - w_i) |x_i - sum_j w_j x_j|`` of the last round, (N,), through its distances; None where unknown.

    w are the weights, divided by their sum. NaN for clients who were absent, or who are all that counts.
    """
    weights = history.weights[-1]
    here = np.flatnonzero(np.isfinite(weights) & np.isfinite(np.diag(history.squared_distances)))
    if not len(here) or not weights[here].sum() > 0:
        return None
    shares = weights[here] / weights[here].sum()
    towards = history.squared_distances[np.ix_(here, here)] @ shares
    gaps = np.sqrt(np.maximum(towards - 0.5 * (shares @ towards), 0.0))
    full = np.full(len(weights), np.nan)
    left = 1 - shares
    full[here] = np.divide(shares * gaps, left, out=np.full(len(here), np.nan), where=left > 1e-12)
    return full


def rank_correlation(one: Array, other: Array) -> float:
    """Spearman's: the correlation of ranks, equal values with their mean rank; over entries that both know.

    NaN with fewer than three of those, or where one of the two is constant.
    """
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    known = np.isfinite(one) & np.isfinite(other)
    if known.sum() < 3:
        return float("nan")
    first, second = (_ranks(values[known]) for values in (one, other))
    first, second = first - first.mean(), second - second.mean()
    lengths = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / lengths if lengths > 0 else float("nan")


def _ranks(values: Array) -> Array:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places.reshape(-1)])
