"""Flower: any rule aggregates what remote clients send. Needs the extra ``flower``; see ``docs/flower.md``.

On the server `strategy`, on the clients `client_app` or any ClientApp of Flower.

Compared with Flower's own FedAvg, FedMedian and FedAvgM on the same replies.
"""

from __future__ import annotations

from typing import Any

from pluribus.core.rule import Rule
from pluribus.federated.flower_clients import client_app
from pluribus.federated.flower_records import LEFT_OUT, by_node, mean_metrics, record_of, tree_of
from pluribus.federated.flower_strategy import PluribusStrategy
from pluribus.federated.server import ServerRule

__all__ = [
    "LEFT_OUT",
    "PluribusStrategy",
    "by_node",
    "client_app",
    "mean_metrics",
    "record_of",
    "strategy",
    "tree_of",
]


def strategy(
    rule: Rule | ServerRule | str,
    *,
    malformed: str = "drop",
    max_norm_ratio: float | None = 100.0,
    **options: Any,
) -> PluribusStrategy:
    """A rule as a strategy of Flower for clients that are not one's own: none of them can end the run.

    `PluribusStrategy` with two other defaults: what is malformed is left out instead of raised, and so is an update
    more than 100 times as long as the round's median one. All its options are taken.

    >>> strategy("nnm:f=1+median", checkpoint="state.safetensors", resume=True).rule.name  # doctest: +SKIP
    'nnm:f=1+median'
    """
    return PluribusStrategy(rule, malformed=malformed, max_norm_ratio=max_norm_ratio, **options)
