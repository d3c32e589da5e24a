"""Rules that withstand contributors who err or lie: weights, or new contributions, from distances and norms."""

from pluribus.rules.robust.afa import AFA
from pluribus.rules.robust.bucketing import Bucketing
from pluribus.rules.robust.bulyan import Bulyan, BulyanSelection
from pluribus.rules.robust.centered_clipping import CenteredClipping
from pluribus.rules.robust.cge import CGE
from pluribus.rules.robust.clip import Clip
from pluribus.rules.robust.cosine_softmax import CosineSoftmax
from pluribus.rules.robust.dnc import DnC
from pluribus.rules.robust.faba import FABA
from pluribus.rules.robust.fedcpa import FedCPA
from pluribus.rules.robust.flag import Flag
from pluribus.rules.robust.fltrust import FLTrust
from pluribus.rules.robust.foolsgold import FoolsGold
from pluribus.rules.robust.geometric_median import GeometricMedian
from pluribus.rules.robust.inverse_distance import InverseDistance
from pluribus.rules.robust.krum import Krum, MultiKrum
from pluribus.rules.robust.mda import MDA
from pluribus.rules.robust.nnm import NNM
from pluribus.rules.robust.principal_directions import PrincipalDirections
from pluribus.rules.robust.residual_reweighting import ResidualReweighting
from pluribus.rules.robust.rfa import RFA
from pluribus.rules.robust.smea import SMEA

__all__ = [
    "AFA",
    "CGE",
    "FABA",
    "MDA",
    "NNM",
    "RFA",
    "SMEA",
    "Bucketing",
    "Bulyan",
    "BulyanSelection",
    "CenteredClipping",
    "Clip",
    "CosineSoftmax",
    "DnC",
    "FLTrust",
    "FedCPA",
    "Flag",
    "FoolsGold",
    "GeometricMedian",
    "InverseDistance",
    "Krum",
    "MultiKrum",
    "PrincipalDirections",
    "ResidualReweighting",
]
