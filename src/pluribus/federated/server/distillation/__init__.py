"""Server rules that distil: what clients' models know is taught to the global one, without data."""

from pluribus.federated.server.distillation.fedftg import FedFTG
from pluribus.federated.server.distillation.fedgen import FedGen

__all__ = ["FedFTG", "FedGen"]
