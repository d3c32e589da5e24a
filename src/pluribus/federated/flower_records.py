"""Flower's records: what a client's message holds, checked, as trees of arrays; and metrics of a round.

Part of `pluribus.federated.flower`, which is where to begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pluribus.core import weights
from pluribus.core.contributions import gather
from pluribus.core.errors import ContributionError, WeightError, require
from pluribus.federated.server.admission import flat
from pluribus.federated.server.base import Array, Tree

flwr = require("flwr.app", "flower")

LEFT_OUT = (
    "",
    "did not answer",
    "answered with an error",
    "sent what cannot be combined",
    "sent NaN or Inf",
    "sent an update that is too long",
)
"""What ``left-out`` counts in a round's metrics."""

PREFIX = "pluribus/"


@dataclass(frozen=True, eq=False)
class Reply:
    """What a node sent, checked: its records, its number of samples, its update, and its samples of each class.

    Also what its client method sent, its local steps and the loss of the model that it was sent; None where it did not
    say.
    """

    content: Any
    size: float
    update: Tree = field(default_factory=dict)
    label_counts: tuple[float, ...] = ()
    message: Tree = field(default_factory=dict)
    steps: float | None = None
    start_loss: float | None = None


def checked_size(message: Any, weighted_by_key: str) -> Reply:
    """A reply of metrics, with a number of samples.

    Raises
    ------
    ContributionError, WeightError
        Not one MetricRecord; no usable number of samples in it.
    """
    node, content = message.metadata.src_node_id, message.content
    if len(content.metric_records) != 1:
        raise ContributionError(f"node {node} sent {len(content.metric_records)} MetricRecords; expected one")
    (metrics,) = content.metric_records.values()
    size = metrics.get(weighted_by_key)
    if not isinstance(size, (int, float)) or not np.isfinite(size) or size < 0:
        raise WeightError(
            f"node {node}: {weighted_by_key!r} in its MetricRecord must be a finite number >= 0, not {size!r}"
        )
    return Reply(content, float(size))


def open_reply(message: Any, model: Tree, weighted_by_key: str, labels_by_key: str, beside: str = "") -> Reply:
    """A reply of a trained model: checked against the model that was sent, which is taken off.

    An ArrayRecord named ``beside`` is not looked at.

    Raises
    ------
    ContributionError
        Not one ArrayRecord; names, shapes or kinds of number that are not the model's.
    ContributionError, WeightError
        As `checked_size`.
    """
    reply = checked_size(message, weighted_by_key)
    label = f"node {message.metadata.src_node_id}"
    arrays = [record for name, record in reply.content.array_records.items() if name != beside]
    if len(arrays) != 1:
        raise ContributionError(f"{label} sent {len(arrays)} ArrayRecords; expected one")
    local = tree_of(arrays[0], label)
    gather({"the model": model, label: local})
    (metrics,) = reply.content.metric_records.values()
    counts = metrics.get(labels_by_key)
    told = tuple(counts) if isinstance(counts, list) else ()
    steps, loss = (_number(metrics.get(f"pluribus-{name}")) for name in ("steps", "start-loss"))
    return replace(reply, update=difference(local, model), label_counts=told, steps=steps, start_loss=loss)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and np.isfinite(value) and value >= 0 else None


def tree_of(record: Any, label: str = "the record") -> Tree:
    """The arrays of an ArrayRecord by their names; errors call it ``label``."""
    tree: Tree = {}
    for name, array in record.items():
        try:
            tree[name] = array.numpy()
        except Exception as error:  # whatever bytes a client sends
            raise ContributionError(f"{label}: tensor {name!r} cannot be read as a numpy array: {error}") from None
        if not isinstance(tree[name], np.ndarray):
            raise ContributionError(f"{label}: tensor {name!r} holds a {type(tree[name]).__name__}; expected one array")
    if not tree:
        raise ContributionError(f"{label}: the ArrayRecord is empty; expected the model's arrays")
    return tree


def record_of(tree: Mapping[str, Array]) -> Any:
    """An ArrayRecord of a tree of arrays, such as a numpy model's parameters."""
    return flwr.ArrayRecord({name: flwr.Array(np.asarray(value)) for name, value in tree.items()})


def difference(local: Tree, start: Tree) -> Tree:
    """``local - start``. Masks have none and stay; counters' is signed and wide, so that it cannot wrap around."""
    update: Tree = {}
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is the rule's to judge
        for name, value in local.items():
            if value.dtype.kind == "b":
                update[name] = value
            elif value.dtype.kind in "iu":
                update[name] = np.asarray(value.astype(np.int64) - start[name].astype(np.int64))
            else:
                update[name] = np.asarray(value - start[name])
    return update


def too_long(updates: Mapping[int, Tree], most: float | None, ratio: float | None) -> dict[int, str]:
    """Nodes whose update has a norm above ``most``, or above ``ratio`` times the round's median norm, and the numbers.

    The median is the lower one of two, so that one of two nodes cannot raise the bound for itself. Norms that are not
    finite are left to the rule, and raise no bound either.
    """
    if not updates or (most is None and ratio is None):
        return {}
    norms = {node: norm(update) for node, update in updates.items()}
    finite = sorted(value for value in norms.values() if np.isfinite(value))
    bounds = [] if most is None else [(most, "max_norm")]
    if ratio is not None and finite and (median := finite[(len(finite) - 1) // 2]) > 0:
        bounds.append((ratio * median, f"{ratio:g} times the round's median norm"))
    if not bounds:
        return {}
    bound, name = min(bounds)
    return {
        node: f"sent an update of norm {value:.3g}; at most {bound:.3g} is taken, {name}"
        for node, value in norms.items()
        if np.isfinite(value) and value > bound
    }


def norm(update: Mapping[str, Any]) -> float:
    """Euclidean norm over all float tensors; in a unit of their own, so that it is finite wherever they are."""
    floats = [value for value in flat(update).values() if value.dtype.kind in "fc" and value.size]
    largest = max((float(np.abs(value).max()) for value in floats), default=0.0)
    if largest == 0 or not np.isfinite(largest):
        return largest
    wide = (np.abs(value).astype(np.float64).reshape(-1) / largest for value in floats)
    return largest * float(np.sqrt(sum(float(part @ part) for part in wide)))


def mean_metrics(contents: Iterable[Any], weighted_by_key: str) -> Any:
    """Means of the clients' metrics by their number of examples, a MetricRecord.

    Each over the replies that have it in finite numbers; lists are averaged where they are of one length. So a client
    that lacks a metric, or sends NaN as one, neither stops the run nor spoils the mean.
    """
    found: dict[str, list[tuple[float, Array]]] = {}
    for content in contents:
        (metrics,) = content.metric_records.values()
        for name, value in metrics.items():
            if name != weighted_by_key and np.isfinite(value).all():
                found.setdefault(name, []).append((metrics[weighted_by_key], np.asarray(value, dtype=np.float64)))
    means = flwr.MetricRecord()
    for name, pairs in found.items():
        sizes, values = np.array([size for size, _ in pairs], dtype=np.float64), [value for _, value in pairs]
        if len({value.shape for value in values}) == 1:
            shares = weights.normalise(sizes if sizes.any() else np.ones(len(sizes)))
            means[name] = (shares @ np.stack(values)).tolist()
    return means


def by_node(metrics: Mapping[str, Any], what: str = "weight") -> dict[int, float]:
    """``weight`` or ``left-out`` of each node, from the MetricRecord of a round."""
    start = f"{PREFIX}{what}/"
    return {int(key.removeprefix(start)): value for key, value in metrics.items() if key.startswith(start)}
