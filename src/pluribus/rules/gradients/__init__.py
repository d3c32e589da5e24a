"""Rules for the conflicting gradients of several objectives."""

from pluribus.rules.gradients.aligned_mtl import AlignedMTL
from pluribus.rules.gradients.cagrad import CAGrad
from pluribus.rules.gradients.config import ConFIG
from pluribus.rules.gradients.dualproj import DualProj
from pluribus.rules.gradients.fedgp import FedDA, FedGP
from pluribus.rules.gradients.graddrop import GradDrop
from pluribus.rules.gradients.gradvac import GradVac
from pluribus.rules.gradients.imtl_g import IMTLG
from pluribus.rules.gradients.mgda import MGDA
from pluribus.rules.gradients.nash_mtl import NashMTL
from pluribus.rules.gradients.pcgrad import PCGrad
from pluribus.rules.gradients.upgrad import UPGrad

__all__ = [
    "IMTLG", "MGDA", "AlignedMTL", "CAGrad", "ConFIG", "DualProj", "FedDA", "FedGP", "GradDrop", "GradVac", "NashMTL",
    "PCGrad", "UPGrad",
]  # fmt: skip
