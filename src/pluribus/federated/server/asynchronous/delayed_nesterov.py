"""Delayed Nesterov: updates are applied as they arrive, momentum is refreshed once for every N of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive, whole_number
from pluribus.federated.server.asynchronous.arrivals import untrained
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, fraction, register
from pluribus.federated.training import LocalTraining


@register
@dataclass(frozen=True)
class DelayedNesterov(Server):
    """``x + lr (delta / N + c beta m)`` for each arrival; at every N-th, ``m <- beta m + sum delta / N`` first.

    At that N-th arrival the rest of the momentum's share follows: ``x + lr (delta / N + (1 - cN + c) beta m)``. So m
    is not fed with stale updates one by one, which is what breaks Nesterov's momentum without synchrony. beta = 0 is
    asynchronous averaging with 1/N. N updates that arrive together, c = 0: Nesterov's outer step on their mean, as in
    `DiLoCo`. Updates that arrive at one step are taken by id. Momentum and the sum are one model each, float64.

    DyLU (``speeds``) shortens the work of slow clients, ``floor(H v_i / v_max)`` local steps but at least one, so that
    all take about as long. v_i is measured as steps per second from one arrival to the next (for the schedule
    ``async``; waiting counts as work), or given.

    Compared with DelayedNesterovOptimizer of HALoS, which states the paper's algorithm: the same for equal gradients.
    DyLU is from the paper as the abstract and summaries state it.

    Parameters
    ----------
    server_lr
        lr.
    momentum
        beta, in [0, 1).
    period
        N; 0 is the number of clients.
    c
        Share of the momentum in each step, from 0 to 1 / N.
    speeds
        ``"equal"``: no DyLU; ``"measured"``; or relative speeds such as ``1/2/4/8``, of the clients in turn.
    """

    server_lr: float = 0.7
    momentum: float = 0.9
    period: int = 0
    c: float = 0.0
    speeds: str = "equal"

    key = "delayed_nesterov"
    formula = "x + lr (delta / N + c beta m), every N arrivals m = beta m + sum delta / N and (1 - cN + c) beta m"
    source = "Liu et al., Asynchronous Local-SGD Training for Language Modeling, 2024 (arXiv 2401.09135)"
    explanation = "Updates are applied as they come, and the server's momentum is refreshed every N arrivals."
    numbers = (231,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("DelayedNesterov", "server_lr", self.server_lr)
        fraction(self, "momentum")
        whole_number("DelayedNesterov", "period", self.period, 0)
        positive("DelayedNesterov", "c", self.c, zero=True)
        if self.period and self.c > 1 / self.period:  # not c * period: a whole number may be beyond float64
            raise RuleError(f"DelayedNesterov: c is a share of the momentum, at most 1 / {self.period}, not {self.c!r}")
        if self.speeds not in ("equal", "measured"):
            self._given()

    def remember(self, params: Tree, n_clients: int) -> State:
        """``momentum``, ``gathered`` (the sum since it was refreshed), ``count`` of arrivals since, and speeds."""
        names = self.parameters(params)
        if not self.period and self.c * n_clients > 1:
            raise RuleError(f"{self.name}: c is a share of the momentum, at most 1 / {n_clients}, not {self.c!r}")
        return {
            "momentum": {name: np.zeros(params[name].shape, dtype=_wide(params[name])) for name in names},
            "gathered": {name: np.zeros(params[name].shape, dtype=_wide(params[name])) for name in names},
            "count": np.array(0),
            "speed": np.full(n_clients, np.nan),
            "since": np.zeros(n_clients),
            "full": np.zeros(n_clients, dtype=np.int64),
        }

    def local(self, state: State, client: int, how: LocalTraining) -> LocalTraining:
        """Fewer steps for slower clients."""
        if self.speeds == "equal":
            return how
        if self.speeds == "measured":
            speeds = state["speed"]
            if not np.isfinite(speeds[client]):
                return how
            share = float(speeds[client] / np.nanmax(speeds))
        else:
            given = self._given()
            share = given[client % len(given)] / max(given[: len(state["speed"])])
        whole = how.steps if how.steps is not None else int(state["full"][client])
        if whole:
            return replace(how, steps=max(1, int(whole * share)))
        return how  # epochs, and the client has not told yet how many steps these are

    def advance(self, state: State, round: Round) -> Step:
        """Apply the arrivals one after another."""
        params, n = state["params"], round.n_clients
        period = self.period or n
        momentum, gathered = dict(state["momentum"]), dict(state["gathered"])
        count = int(state["count"])
        change = {name: np.zeros_like(value) for name, value in momentum.items()}
        for update in round.updates:
            count += 1
            refresh = count == period
            share = self.momentum * (1 - self.c * (period - 1) if refresh else self.c)
            for name, before in momentum.items():
                part = np.asarray(update[name], dtype=before.dtype) / period
                gathered[name] = gathered[name] + part
                change[name] += part
                if refresh:
                    momentum[name] = self.momentum * before + gathered[name]
                    gathered[name] = np.zeros_like(before)
                change[name] += share * momentum[name]
            count = 0 if refresh else count
        counted = np.full(len(round.clients), 1 / period)
        moved = self.moved(params, {**change, **untrained(self, params, round, counted)}, self.server_lr)
        memory = {"momentum": momentum, "gathered": gathered, "count": np.array(count)}
        return Step(moved, counted, {**memory, **self._measured(state, round)})

    def _measured(self, state: State, round: Round) -> State:
        here = list(round.clients)
        since, speed, full = state["since"].copy(), state["speed"].copy(), state["full"].copy()
        if round.steps is not None:
            first = [k for k, i in enumerate(here) if not full[i]]
            full[[here[k] for k in first]] = round.steps[first]
            taken = round.time - since[here]
            speed[here] = np.where(taken > 0, round.steps / np.where(taken > 0, taken, 1.0), speed[here])
        since[here] = round.time
        return {"since": since, "speed": speed, "full": full}

    def _given(self) -> list[float]:
        try:
            found = [float(part) for part in str(self.speeds).split("/")]
        except ValueError:
            found = []
        if len(found) < 2 or not all(np.isfinite(value) and value > 0 for value in found):
            raise RuleError(
                "DelayedNesterov: speeds must be 'equal', 'measured' or numbers > 0 such as 1/2/4/8, "
                f"not {self.speeds!r}"
            )
        return found


def _wide(value: Array) -> np.dtype[np.generic]:
    return np.dtype(np.result_type(value.dtype, np.float64))
