"""One round of Flower as the rule sees it, and what became of it as metrics. Part of `pluribus.federated.flower`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pluribus.core import weights
from pluribus.core.errors import require
from pluribus.federated.flower_records import PREFIX, Reply
from pluribus.federated.server import Objective, Round, State, Tree
from pluribus.federated.server.base import Array

flwr = require("flwr.app", "flower")


def round_of(
    replies: Mapping[int, Reply],
    starts: Sequence[Tree],
    *,
    number: int,
    n_clients: int,
    proxy: Objective | None,
    seed: int,
) -> Round:
    """What the rule gets, from replies by the position of their nodes and the models that those were sent."""
    given = list(replies.values())
    counts = [reply.label_counts for reply in given]
    told = bool(counts) and all(counts) and len(set(map(len, counts))) == 1
    sizes = np.array([reply.size for reply in given], dtype=np.float64)
    return Round(
        number=number,
        clients=tuple(replies),
        updates=[reply.update for reply in given],
        sizes=sizes,
        n_clients=n_clients,
        total_size=float(sizes.sum()),
        label_counts=np.array(counts, dtype=np.float64) if told else None,
        proxy=proxy,
        seed=seed,
        starts=starts,
        steps=_known([reply.steps for reply in given]),
        losses=_known([reply.start_loss for reply in given]),
        messages=[reply.message for reply in given] if any(reply.message for reply in given) else None,
    )


def metrics_of(state: State, nodes: Sequence[int], left_out: Mapping[int, int]) -> dict[str, int | float]:
    """What a round's MetricRecord says besides the clients' own metrics."""
    told: dict[str, int | float] = {f"{PREFIX}status": int(state.get("status", 0))}
    counted = state["weights"]
    known = ~np.isnan(counted)
    if known.any():
        told[f"{PREFIX}effective-size"] = weights.effective_size(counted[known])
    told |= {f"{PREFIX}weight/{node}": float(w) for node, w in zip(nodes, counted, strict=True) if not np.isnan(w)}
    return told | {f"{PREFIX}left-out/{node}": why for node, why in sorted(left_out.items())}


def _known(values: list[float | None]) -> Array | None:
    """All of them or nothing: a rule cannot use the steps of some."""
    known = [value for value in values if value is not None]
    return np.array(known) if known and len(known) == len(values) else None
