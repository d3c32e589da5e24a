"""Many clients' updates become one model: server rules, local training, partitions, attacks, simulation.

Importing the room is light; its pieces are imported when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pluribus.federated import attacks, data, participation, partition, server, shift, training
    from pluribus.federated.config import Config, Layer, resolve
    from pluribus.federated.data import Dataset
    from pluribus.federated.errors import DataError, SettingError
    from pluribus.federated.experiment import Outcome, Watch, run
    from pluribus.federated.history import History
    from pluribus.federated.models import MLP, Batch, Model, Softmax
    from pluribus.federated.server import Round, ServerRule
    from pluribus.federated.setup import Setup, build
    from pluribus.federated.simulation import Run, SimulationError, simulate
    from pluribus.federated.torch_model import TorchModel
    from pluribus.federated.training import LocalTraining

__all__ = [
    "MLP",
    "Batch",
    "Config",
    "DataError",
    "Dataset",
    "History",
    "Layer",
    "LocalTraining",
    "Model",
    "Outcome",
    "Round",
    "Run",
    "ServerRule",
    "SettingError",
    "Setup",
    "SimulationError",
    "Softmax",
    "TorchModel",
    "Watch",
    "attacks",
    "build",
    "data",
    "participation",
    "partition",
    "resolve",
    "run",
    "server",
    "shift",
    "simulate",
    "training",
]

_MODULES = ("attacks", "data", "participation", "partition", "server", "shift", "training")
_PLACES = {
    "config": ("Config", "Layer", "resolve"),
    "data": ("Dataset",),
    "errors": ("DataError", "SettingError"),
    "experiment": ("Outcome", "Watch", "run"),
    "models": ("MLP", "Batch", "Model", "Softmax"),
    "server": ("Round", "ServerRule"),
    "setup": ("Setup", "build"),
    "history": ("History",),
    "simulation": ("Run", "SimulationError", "simulate"),
    "torch_model": ("TorchModel",),
    "training": ("LocalTraining",),
}
_WHERE = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
