"""Rules about heads, prototypes and features of classes, and about clients whose architectures are unequal."""

from pluribus.federated.server.heads.afl import AFL
from pluribus.federated.server.heads.etf import simplex_etf, sparse_etf
from pluribus.federated.server.heads.fedadp import FedADP
from pluribus.federated.server.heads.fedgela import FedGELA
from pluribus.federated.server.heads.fedgh import FedGH
from pluribus.federated.server.heads.fedimpro import FedImpro, pool_moments
from pluribus.federated.server.heads.fedloge import FedLoGe
from pluribus.federated.server.heads.fedtgp import FedTGP
from pluribus.federated.server.heads.inco import InCo

__all__ = [
    "AFL",
    "FedADP",
    "FedGELA",
    "FedGH",
    "FedImpro",
    "FedLoGe",
    "FedTGP",
    "InCo",
    "pool_moments",
    "simplex_etf",
    "sparse_etf",
]
