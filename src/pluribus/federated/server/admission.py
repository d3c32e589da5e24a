"""Who may take part in a round: the one place where a server looks at what the clients sent before it uses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pluribus.core.contributions import gather
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, listing
from pluribus.federated.server.base import PER_PARTICIPANT, Array, Round, Tree

POLICIES = ("drop", "raise", "zero")
LARGEST = 1e300
"""Sum of squares of a tensor above which it counts as not finite: float64 must hold products and sums of many."""
NUMBERS = ("sizes", "steps", "losses", "staleness", "label_counts")
"""What a round tells of each participant in numbers."""


def admit(round: Round, params: Tree, nonfinite: str = "drop") -> tuple[Round, Array]:
    """The round with its good participants only, in the order of their ids, and who was dropped.

    A participant is not finite when some tensor of its update holds NaN or Inf, has a norm above 1e150, or leads to a
    model that the model's own dtype cannot hold; or when its message, size, loss or another number about it is NaN or
    Inf. ``"drop"`` leaves it out, ``"raise"`` raises, ``"zero"`` reads its update's bad numbers as zero (in a copy; of
    a tensor that is too large, all). Boolean tensors (masks) have no differences and are taken out of every update.

    Returns
    -------
    Round, array
        The admitted round, and a boolean array of shape (n_clients,) that is True for those left out.

    Raises
    ------
    RuleError
        Ids that are not distinct or not in 0 .. n_clients - 1; numbers of updates, sizes or labels that differ; sizes
        and the like that are no numbers, one for each participant.
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
    starts = [params] * len(order) if ordered.starts is None else ordered.starts
    bad = [_out_of_range(update, start, params) for update, start in zip(updates, starts, strict=True)]
    told = [_not_finite_beside(ordered, k) for k in range(len(order))]
    if nonfinite == "raise" and (any(bad) or any(told)):
        shown = [
            f"{label(client)}: NaN or Inf in {listing(names)}"
            for client, *both in zip(ordered.clients, bad, told, strict=True)
            if (names := [*both[0], *both[1]])
        ]
        raise NonFiniteError(f"round {round.number}: {listing(shown)}; pass nonfinite='drop' to go on without them")
    if nonfinite == "zero":
        zeroed = [
            _zeroed(update, start, params) if names else update
            for update, start, names in zip(updates, starts, bad, strict=True)
        ]
        ordered, bad = replace(ordered, updates=zeroed), [[] for _ in bad]
    # What a message of a client method means with zeros in it nobody knows, so it never counts with them.
    out = [bool(one or other) for one, other in zip(bad, told, strict=True)]
    dropped = np.zeros(round.n_clients, dtype=bool)
    dropped[[client for client, gone in zip(ordered.clients, out, strict=True) if gone]] = True
    return ordered.take([k for k, gone in enumerate(out) if not gone]), dropped


def leaves(tree: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Array]]:
    """The arrays of a tree, each with its path."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*before, name))
        else:
            yield (*before, name), np.asarray(value)


def flat(tree: Mapping[str, Any]) -> dict[str, Array]:
    """A tree of arrays as one mapping, with ``/`` between the names of a path."""
    return {"/".join(map(str, path)): value for path, value in leaves(tree)}


def not_finite(tree: Mapping[str, Array]) -> list[str]:
    """Names of the tensors that hold NaN or Inf, or whose sum of squares is above `LARGEST`."""
    return [name for name, value in tree.items() if value.dtype.kind in "fc" and not _square(value) <= LARGEST]


def unlike(round: Round) -> list[int]:
    """Clients whose messages have other parts, shapes or kinds of number than those of most."""
    told = [_kind(message) for message in round.messages or ()]
    usual = max(told, key=told.count, default=None)
    return [client for client, own in zip(round.clients, told, strict=False) if own != usual]


def label(client: Any) -> str:
    """How errors name a client."""
    return f"client {client}"


def _square(value: Array) -> float:
    flat = value.reshape(-1)
    with np.errstate(all="ignore"):
        # A product in the own precision reads the data once; only when it overflows or is NaN is a copy made.
        if flat.dtype != np.float16 and np.isfinite(square := np.vdot(flat, flat).real):
            return float(square)
        wide = flat.astype(np.result_type(flat.dtype, np.float64))
        return float(np.vdot(wide, wide).real)


def _out_of_range(update: Mapping[str, Array], start: Mapping[str, Array], params: Tree) -> list[str]:
    """Names of an update's tensors that are not finite, or with which the client's model is not."""
    return [
        name for name, value in update.items() if value.dtype.kind in "fc" and not _held(value, start, params, name)
    ]


def _held(value: Array, start: Mapping[str, Array], params: Tree, name: str) -> bool:
    square, kind = _square(value), params[name].dtype
    if not square <= LARGEST:
        return False
    # Only a long update, or a narrow dtype, is worth adding up.
    if kind.kind not in "fc" or (kind != np.float16 and np.sqrt(square) < 1e-3 * float(np.finfo(kind).max)):
        return True
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.asarray(start.get(name, 0) + value, dtype=kind)).all())


def _not_finite_beside(round: Round, k: int) -> list[str]:
    """What a participant told beside its update that is NaN or Inf: parts of its message, its size, its loss."""
    message = None if round.messages is None else round.messages[k]
    found = not_finite(flat(message or {}))
    for name in NUMBERS:
        values = getattr(round, name)
        if values is not None and not np.isfinite(np.asarray(values[k], dtype=np.float64)).all():
            found.append(f"its {name}")
    return found


def _zeroed(update: Mapping[str, Array], start: Mapping[str, Array], params: Tree) -> dict[str, Array]:
    cleaned = {
        name: np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0) if value.dtype.kind in "fc" else value
        for name, value in update.items()
    }
    large = _out_of_range(cleaned, start, params)
    return {name: np.zeros_like(value) if name in large else value for name, value in cleaned.items()}


def _kind(tree: Any) -> Any:
    """Parts, shapes and kinds of number of a message."""
    if isinstance(tree, Mapping):
        return {name: _kind(value) for name, value in tree.items()}
    value = np.asarray(tree)
    return value.shape, value.dtype.kind


def _without(tree: Mapping[str, Array], names: set[str]) -> dict[str, Array]:
    return {name: value for name, value in tree.items() if name not in names}


def _checked_order(round: Round) -> list[int]:
    """Positions of the participants by increasing id."""
    ids, k = list(round.clients), len(round.clients)
    whole = all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in ids)
    if not whole or len(set(ids)) < k or any(not 0 <= i < round.n_clients for i in ids):
        raise RuleError(f"round {round.number}: clients {ids} must be distinct ids in 0..{round.n_clients - 1}")
    for name in PER_PARTICIPANT:
        value = getattr(round, name)
        if value is not None and (found := len(value)) != k:
            raise RuleError(f"round {round.number}: {k} clients and {found} {name}; give one for each participant")
        axes = 2 if name == "label_counts" else 1
        if (
            value is not None
            and k
            and name in NUMBERS
            and (np.ndim(value) != axes or np.asarray(value).dtype.kind not in "iuf")
        ):
            shape = "(k, classes)" if axes == 2 else "(k,)"
            raise RuleError(
                f"round {round.number}: {name} must be numbers of shape {shape}, not of shape {np.shape(value)} and "
                f"dtype {np.asarray(value).dtype}"
            )
    return sorted(range(k), key=lambda position: ids[position])
