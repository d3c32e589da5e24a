"""What becomes of each buffer and counter: the mean, as everywhere, or what a user says by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.server.base import Array, Round, Tree

POLICIES = ("mean", "keep", "max", "pooled")
"""``mean``: what the rule's frame does, weights of sum one. ``keep``: the server's value stays. ``max``: the largest of
the clients', for counters of batches. ``pooled``: for ``...running_var``, the variance of all samples together,
``sum_i w_i (v_i + m_i^2) - (sum_i w_i m_i)^2`` with the ``...running_mean`` m beside it, where the mean of the
variances leaves out how far the clients' means are apart."""

Policies = tuple[tuple[str, str], ...]


def checked(rule: str, policies: object) -> None:
    """Raise `RuleError` unless these are pairs of a pattern and one of `POLICIES`."""
    good = isinstance(policies, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and pair[1] in POLICIES
        for pair in policies
    )
    if not good:
        raise RuleError(
            f"{rule}: policies must be pairs such as (('*running_var', 'pooled'), ('*num_batches_tracked', 'max')) "
            f"with one of {', '.join(POLICIES)}; got {policies!r}"
        )


def settled(moved: Tree, before: Tree, round: Round, weights: Array, policies: Policies) -> Tree:
    """The model after a step with the tensors that a policy names as the policy says; the first pattern that fits goes.

    Raises ``RuleError`` for ``pooled`` without a running mean beside it. Trained tensors and masks can be named too.
    """
    told = {name: policy for name in moved if (policy := _policy(name, policies)) not in (None, "mean")}
    if not told:
        return moved
    counted = np.maximum(np.nan_to_num(weights), 0.0)
    shares = counted / counted.sum() if counted.any() else np.full(len(counted), 1 / len(counted))
    after = dict(moved)
    for name, policy in told.items():
        if policy == "keep" or before[name].dtype.kind == "b":
            after[name] = before[name]
        elif policy == "max":
            after[name] = np.max([_local(round, before, k, name) for k in range(len(shares))], axis=0)
        else:
            after[name] = _pooled(round, before, shares, name)
        after[name] = np.asarray(after[name], dtype=before[name].dtype)
    return after


def rebased(round: Round, params: Tree, names: Sequence[str]) -> Round:
    """The round with stale participants' buffers as differences to the present model, not to the one they started from.

    A buffer is a value that a client measured. Averaging ``v_i - v_then`` onto ``v_now`` can make a variance negative;
    averaging ``v_i - v_now`` cannot. What a participant ended at stays: its start is rebased with its update.
    """
    if round.staleness is None or round.starts is None or not names:
        return round
    stale = np.flatnonzero(np.asarray(round.staleness) > 0)
    if not len(stale):
        return round
    starts, updates = list(round.starts), list(round.updates)
    for k in stale:
        sent = [name for name in names if name in updates[k]]
        ended = {name: (starts[k][name] + updates[k][name]) - params[name] for name in sent}
        updates[k] = {**updates[k], **ended}
        starts[k] = {**starts[k], **{name: params[name] for name in sent}}
    return replace(round, starts=starts, updates=updates)


def _policy(name: str, policies: Sequence[tuple[str, str]]) -> str | None:
    return next((policy for pattern, policy in policies if fnmatchcase(name, pattern)), None)


def _local(round: Round, before: Tree, k: int, name: str) -> Array:
    start = before if round.starts is None else round.starts[k]
    return np.asarray(start[name] + round.updates[k][name])


def _pooled(round: Round, before: Tree, shares: Array, name: str) -> Array:
    beside = name.removesuffix("running_var") + "running_mean"
    if not name.endswith("running_var") or beside not in before:
        raise RuleError(f"pooled is for a ...running_var with its ...running_mean beside it, and {name!r} is none")
    mean, square = np.zeros(before[name].shape), np.zeros(before[name].shape)
    for k, share in enumerate(shares):
        own = _local(round, before, k, beside).astype(np.float64)
        mean += share * own
        square += share * (_local(round, before, k, name) + own**2)
    return np.asarray(np.maximum(square - mean**2, 0.0))
