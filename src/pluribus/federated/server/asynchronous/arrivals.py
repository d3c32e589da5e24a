"""What the rules of this family share: staleness, updates that began at an older model, rates of arrival."""

from __future__ import annotations

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, mean, one_of

RATES = ("told", "estimated")
"""Where a rule has the clients' rates from: the round's ``rates``, or a count of its own."""


def staleness_of(round: Round) -> Array:
    """Server steps since each participant got its start model, (k,), float64; zeros where the round tells nothing."""
    return np.zeros(len(round.clients)) if round.staleness is None else np.asarray(round.staleness, dtype=np.float64)


def arrived(
    rule: Server, params: Tree, round: Round, coefficients: Array, scale: float = 1.0, *, models: bool = False
) -> Tree:
    """``params + scale sum_i c_i delta_i``, or with ``models`` ``params + scale sum_i c_i (local_i - params)``.

    The coefficients, (k,), are not negative and need not sum to one; all zero leaves everything as it is. What is not
    trained moves as `untrained` says.
    """
    total = float(coefficients.sum())
    if total == 0:
        return params
    trained = rule.parameters(params)
    change = mean(round, coefficients, trained) if trained else {}
    if models:
        change = {name: change[name] + _drift(round, params, name, coefficients / total) for name in trained}
    return rule.moved(params, untrained(rule, params, round, coefficients) | change, scale * total)


def untrained(rule: Server, params: Tree, round: Round, coefficients: Array) -> Tree:
    """How measured buffers and counters change: buffers move towards the clients' own, by the coefficients' sum.

    A buffer moves by at most all of the way to the mean of the clients' buffers (the frame has made stale differences
    into differences to the present ones), so it stays between numbers that were measured. Counters grow by their mean
    growth. The coefficients' sum is above zero.
    """
    trained = set(rule.parameters(params))
    names = [name for name in round.updates[0] if name not in trained]
    if not names:
        return {}
    change = mean(round, coefficients, names)
    share = np.float64(min(1.0, coefficients.sum()))  # of a type, so that products are in float64
    return {name: share * value if value.dtype.kind in "fc" else value for name, value in change.items()}


def _drift(round: Round, params: Tree, name: str, shares: Array) -> Array:
    """``sum_i shares_i (start_i - params)`` of one tensor, float64."""
    now = np.asarray(params[name], dtype=np.result_type(params[name].dtype, np.float64))
    total = np.zeros_like(now)
    for share, start in zip(shares, round.starts or (), strict=round.starts is not None):
        total += share * (start[name] - now)
    return total


def check_rates(rule: Server) -> None:
    """Raise `RuleError` unless the rule's option ``rates`` is one of `RATES`."""
    one_of(rule, "rates", RATES)


def count_arrivals(state: State, here: list[int]) -> State:
    """``arrivals``, (N,), and ``steps`` of a state after a step with these participants."""
    arrivals = state["arrivals"].copy()
    arrivals[here] += 1
    return {"arrivals": arrivals, "steps": np.array(int(state["steps"]) + 1)}


def told_rates(rule: Server, round: Round) -> Array:
    """All clients' rates as the round tells them, (N,).

    Raises
    ------
    RuleError
        The round does not know them.
    """
    if round.rates is None:
        raise RuleError(f"{rule.name} needs the clients' rates, and this round has none; say rates=estimated")
    rates = np.asarray(round.rates, dtype=np.float64)
    if rates.shape != (round.n_clients,) or not (rates > 0).all():
        raise RuleError(f"{rule.name}: rates must be positive, one for each of {round.n_clients} clients")
    return rates
