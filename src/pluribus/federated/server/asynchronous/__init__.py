"""Rules for clients that come late, seldom or stale: asynchronous steps, weights by staleness, memory of the absent."""

from pluribus.federated.server.asynchronous.asyncfeded import AsyncFedED
from pluribus.federated.server.asynchronous.ca_fed import CAFed
from pluribus.federated.server.asynchronous.delayed_nesterov import DelayedNesterov
from pluribus.federated.server.asynchronous.diloco import DiLoCo
from pluribus.federated.server.asynchronous.fedasync import FedAsync
from pluribus.federated.server.asynchronous.fedbuff import FedBuff
from pluribus.federated.server.asynchronous.fedfix import FedFix
from pluribus.federated.server.asynchronous.fedstale import FedStale
from pluribus.federated.server.asynchronous.mifa import MIFA
from pluribus.federated.server.asynchronous.qsr import QSR
from pluribus.federated.server.asynchronous.savic import ScaledLocalSGD

__all__ = [
    "MIFA",
    "QSR",
    "AsyncFedED",
    "CAFed",
    "DelayedNesterov",
    "DiLoCo",
    "FedAsync",
    "FedBuff",
    "FedFix",
    "FedStale",
    "ScaledLocalSGD",
]
