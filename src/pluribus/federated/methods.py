"""The room's methods that are no server rules, by name: what `pluribus catalog` shows beside the rules."""

from __future__ import annotations

from typing import Any

from pluribus.core.catalogue import Entry
from pluribus.federated import adapters, distillation, fairness, task_groups, topology
from pluribus.federated.world import several


def registered() -> dict[str, Any]:
    """Classes with their numbers, or entries for methods that are functions, by name."""
    return {
        "modest": topology.MoDeST,
        "semi_decentralised": topology.SemiDecentralised,
        "co_boosting": distillation.CoBoosting,
        "creamfl": distillation.CreamFL,
        "fedast": several.FedAST,
        "fedins": adapters.InstanceAdapters,
        "mas": Entry((149,), "mas", "federated", f"{task_groups.__name__}.{task_groups.partition.__name__}"),
        "fairness": fairness.Disparity,
    }
