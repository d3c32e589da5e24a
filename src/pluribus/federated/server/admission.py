"""Who may take part in a round: the one place where a server looks at what the clients sent before it uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pluribus.core.contributions import gather
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, listing
from pluribus.federated.server.base import PER_PARTICIPANT, Array, Round, Tree

POLICIES = ("drop", "raise", "zero")


def admit(round: Round, params: Tree, nonfinite: str = "drop") -> tuple[Round, Array]:
    """The round with its good participants only, in the order of their ids, and who was dropped.

    A participant is not finite when some tensor of its update holds NaN or Inf, or is so large that its square
    overflows float64. ``"drop"`` leaves it out, ``"raise"`` raises, ``"zero"`` reads its bad numbers as zero (in a
    copy). Boolean tensors (masks) have no differences and are taken out of every update.

    Returns
    -------
    Round, array
        The admitted round, and a boolean array of shape (n_clients,) that is True for those left out.

    Raises
    ------
    RuleError
        Ids that are not distinct or not in 0 .. n_clients - 1; numbers of updates, sizes or labels that differ.
    ContributionError
        An update whose names, shapes or kinds of number are not the model's.
    NonFiniteError
        Under ``"raise"``; the message names the clients and tensors.
    """
    order = _checked_order(round)
    masks = {name for name, value in params.items() if value.dtype.kind == "b"}
    updates = [_without(round.updates[k], masks) for k in order]
    if order:
        labelled = {label(round.clients[k]): update for k, update in zip(order, updates, strict=True)}
        try:
            gather({"the model": _without(params, masks), **labelled})
        except ContributionError as error:
            raise ContributionError(f"round {round.number}: {error}") from None
    ordered = replace(round.take(order), updates=updates)
    bad = [not_finite(update) for update in updates]
    told = [not_finite(flat(message)) for message in ordered.messages or [{}] * len(order)]
    if nonfinite == "raise" and (any(bad) or any(told)):
        shown = [
            f"{label(client)}: NaN or Inf in {listing(names)}"
            for client, *both in zip(ordered.clients, bad, told, strict=True)
            if (names := [*both[0], *both[1]])
        ]
        raise NonFiniteError(f"round {round.number}: {listing(shown)}; pass nonfinite='drop' to go on without them")
    if nonfinite == "zero":
        zeroed = [_zeroed(update) if names else update for update, names in zip(updates, bad, strict=True)]
        ordered, bad = replace(ordered, updates=zeroed), [[] for _ in bad]
    # What a message of a client method means with zeros in it nobody knows, so it never counts with them.
    out = [bool(one or other) for one, other in zip(bad, told, strict=True)]
    dropped = np.zeros(round.n_clients, dtype=bool)
    dropped[[client for client, gone in zip(ordered.clients, out, strict=True) if gone]] = True
    return ordered.take([k for k, gone in enumerate(out) if not gone]), dropped


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Array]:
    """A tree of arrays as one mapping, with ``/`` between the names of a path."""
    found: dict[str, Array] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}/")
        else:
            found[f"{before}{name}"] = np.asarray(value)
    return found


def not_finite(tree: Mapping[str, Array]) -> list[str]:
    """Names of the tensors whose sum of squares is not finite in float64."""
    return [name for name, value in tree.items() if value.dtype.kind in "fc" and not _square_is_finite(value)]


def label(client: Any) -> str:
    """How errors name a client."""
    return f"client {client}"


def _square_is_finite(value: Array) -> bool:
    flat = value.reshape(-1)
    with np.errstate(all="ignore"):
        # A product in the own precision reads the data once; only when it overflows or is NaN is a copy made.
        if flat.dtype != np.float16 and np.isfinite(np.vdot(flat, flat)):
            return True
        wide = flat.astype(np.result_type(flat.dtype, np.float64))
        return bool(np.isfinite(np.vdot(wide, wide)))


def _zeroed(update: Mapping[str, Array]) -> dict[str, Array]:
    return {
        name: np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0) if value.dtype.kind in "fc" else value
        for name, value in update.items()
    }


def _without(tree: Mapping[str, Array], names: set[str]) -> dict[str, Array]:
    return {name: value for name, value in tree.items() if name not in names}


def _checked_order(round: Round) -> list[int]:
    """Positions of the participants by increasing id."""
    ids, k = list(round.clients), len(round.clients)
    if len(set(ids)) < k or any(not 0 <= i < round.n_clients for i in ids):
        raise RuleError(f"round {round.number}: clients {ids} must be distinct ids in 0..{round.n_clients - 1}")
    for name in PER_PARTICIPANT:
        value = getattr(round, name)
        if value is not None and (found := len(value)) != k:
            raise RuleError(f"round {round.number}: {k} clients and {found} {name}; give one for each participant")
    return sorted(range(k), key=lambda position: ids[position])
