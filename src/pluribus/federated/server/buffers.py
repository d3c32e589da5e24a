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
    """The round with its float buffers as differences to the present model, and without negative variances.

    A buffer is a value that a client measured. Averaging ``v_i - v_then`` onto ``v_now`` can make a variance negative;
    averaging ``v_i - v_now`` cannot, whether a client is stale or starts from a model of its own. What a participant
    ended at stays: its start is rebased with its update. Only a ``...running_var`` that ended below zero, which noise,
    compression or an attack can do and no measurement, is read as zero.
    """
    starts = None if round.starts is None else list(round.starts)
    updates = list(round.updates)
    for k, update in enumerate(updates):
        begun = params if starts is None else starts[k]
        there = [name for name in names if name in update and name in begun]
        moved = [name for name in there if begun[name] is not params[name] and np.any(begun[name] != params[name])]
        changed = {name: (begun[name] + update[name]) - params[name] for name in moved}
        for name in filter(is_variance, there):
            change = changed.get(name, update[name])
            if change.dtype.kind == "f" and np.any(change < -params[name]):
                changed[name] = np.maximum(change, -params[name])
        if changed:
            updates[k] = {**update, **changed}
        if starts is not None and moved:
            starts[k] = {**begun, **{name: params[name] for name in moved}}
    return replace(round, starts=starts, updates=updates)


def measurable(params: Tree, names: Sequence[str]) -> Tree:
    """The model after a step with variances that weights or rounding took below zero at zero."""
    below = [
        name for name in names if is_variance(name) and params[name].dtype.kind == "f" and np.any(params[name] < 0)
    ]
    return {**params, **{name: np.maximum(params[name], params[name].dtype.type(0)) for name in below}}


def is_variance(name: str) -> bool:
    """Whether a buffer of this name is a variance, as torch's normalisation layers call theirs."""
    return name.endswith("running_var")


def _policy(name: str, policies: Sequence[tuple[str, str]]) -> str | None:
    return next((policy for pattern, policy in policies if fnmatchcase(name, pattern)), None)


def _local(round: Round, before: Tree, k: int, name: str) -> Array:
    start = before if round.starts is None else round.starts[k]
    return np.asarray(start[name] + round.updates[k][name])


def _pooled(round: Round, before: Tree, shares: Array, name: str) -> Array:
    beside = name.removesuffix("running_var") + "running_mean"
    if not is_variance(name) or beside not in before:
        raise RuleError(f"pooled is for a ...running_var with its ...running_mean beside it, and {name!r} is none")
    mean, square = np.zeros(before[name].shape), np.zeros(before[name].shape)
    for k, share in enumerate(shares):
        own = _local(round, before, k, beside).astype(np.float64)
        mean += share * own
        square += share * (_local(round, before, k, name) + own**2)
    return np.asarray(np.maximum(square - mean**2, 0.0))
