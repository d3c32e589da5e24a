"""The state of `pluribus.federated.flower.PluribusStrategy` as flat arrays and back, and for more nodes than before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pluribus.core.errors import RuleError, listing
from pluribus.federated.server import ServerRule, State
from pluribus.federated.server.admission import flat
from pluribus.federated.server.base import Array

_STATE = "state/"
_PARAMS = f"{_STATE}params/"


def flattened(state: State, nodes: Sequence[int], rounds: int) -> dict[str, Array]:
    """A server rule's state, the nodes' ids in the order of its rows, and the number of rounds done; copies."""
    names = list(state["params"])
    found = {
        "rounds": np.array(rounds),
        "nodes": np.array(nodes, dtype=np.uint64),
        "order": np.array(sorted(range(len(names)), key=names.__getitem__)),  # files sort names; the model does not
        **_flat(state),
    }
    return {name: np.array(value, order="C") for name, value in found.items()}


def nested(saved: Mapping[str, Array], rule: ServerRule) -> tuple[State, list[int], int]:
    """State, nodes and number of rounds from what `flattened` made.

    Raises
    ------
    RuleError
        The state is not one of this rule, or something is missing.
    """
    names = sorted(name for name in saved if name.startswith(_PARAMS))
    if not names or not {"rounds", "nodes", "order"} <= saved.keys() or len(saved["order"]) != len(names):
        raise RuleError("this is no whole state of a PluribusStrategy; give what state_dict returned")
    placed = [name for _, name in sorted(zip(saved["order"].tolist(), names, strict=True))]
    nodes = [int(node) for node in saved["nodes"]]
    fresh = rule.init({name.removeprefix(_PARAMS): saved[name] for name in placed}, len(nodes))
    expected = _flat(fresh)
    given = {name: np.array(value) for name, value in saved.items() if name.startswith(_STATE)}
    odd = sorted(expected.keys() ^ given.keys())
    odd += sorted(name for name in expected.keys() & given.keys() if not _fits(expected[name].shape, given[name].shape))
    if odd:
        raise RuleError(f"the state is not one of {rule.name}: other tensors, or other shapes: {listing(odd)}")
    return _filled(fresh, given), nodes, int(saved["rounds"])


def grown(state: State, fresh: State) -> State:
    """A state of more nodes: what is kept for each of N nodes gets what newcomers start with from a fresh state."""
    return {key: _grown(value, fresh[key]) if key in fresh else value for key, value in state.items()}


def _grown(old: Any, fresh: Any) -> Any:
    if isinstance(old, Mapping):
        return grown(dict(old), dict(fresh))
    if old.shape == fresh.shape:
        return old
    more = np.zeros(np.maximum(old.shape, fresh.shape), dtype=np.result_type(old, fresh))
    for value in (fresh, old):
        more[tuple(slice(length) for length in value.shape)] = value
    return more


def _fits(fresh: tuple[int, ...], given: tuple[int, ...]) -> bool:
    """Whether shapes agree; an axis of a fresh state that is empty has a length that the first round tells."""
    return len(fresh) == len(given) and all(one in (0, other) for one, other in zip(fresh, given, strict=True))


def _flat(state: Mapping[str, Any]) -> dict[str, Array]:
    """The leaves by their paths. A state has one structure for one rule, so paths tell leaves apart."""
    return {f"{_STATE}{path}": value for path, value in flat(state).items()}


def _filled(like: Mapping[str, Any], flat: Mapping[str, Array], before: str = _STATE) -> State:
    """A state of the structure of another, from flat arrays."""
    return {
        key: _filled(value, flat, f"{before}{key}/") if isinstance(value, Mapping) else flat[f"{before}{key}"]
        for key, value in like.items()
    }
