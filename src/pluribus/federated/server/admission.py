"""Who may take part in a round: the one place where a server looks at what the clients sent before it uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pluribus.core.contributions import gather
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, listing
from pluribus.federated.server.base import Array, Round, Tree

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
    bad = [not_finite(update) for update in updates]
    if nonfinite == "raise" and any(bad):
        told = [
            f"{label(round.clients[k])}: NaN or Inf in {listing(names)}"
            for k, names in zip(order, bad, strict=True)
            if names
        ]
        raise NonFiniteError(f"round {round.number}: {listing(told)}; pass nonfinite='drop' to go on without them")
    if nonfinite == "zero":
        updates = [_zeroed(update) if names else update for update, names in zip(updates, bad, strict=True)]
        bad = [[] for _ in bad]
    keep = [k for k, names in zip(order, bad, strict=True) if not names]
    dropped = np.zeros(round.n_clients, dtype=bool)
    dropped[[round.clients[k] for k, names in zip(order, bad, strict=True) if names]] = True
    admitted = replace(
        round,
        clients=tuple(int(round.clients[k]) for k in keep),
        updates=[update for update, names in zip(updates, bad, strict=True) if not names],
        sizes=np.asarray(round.sizes)[keep],
        label_counts=None if round.label_counts is None else np.asarray(round.label_counts)[keep],
    )
    return admitted, dropped


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
    given = {"updates": len(round.updates), "sizes": len(round.sizes)}
    if round.label_counts is not None:
        given["label_counts"] = len(round.label_counts)
    for name, found in given.items():
        if found != k:
            raise RuleError(f"round {round.number}: {k} clients and {found} {name}; give one for each participant")
    return sorted(range(k), key=lambda position: ids[position])
