"""Rules that work on each coordinate alone."""

from pluribus.rules.coordinates.coordinate_weights import CoordinateWeights
from pluribus.rules.coordinates.log_sum_exp import LogSumExp
from pluribus.rules.coordinates.meamed import Meamed, MeanAroundMedian
from pluribus.rules.coordinates.median import Median
from pluribus.rules.coordinates.phocas import Phocas
from pluribus.rules.coordinates.power_mean import PowerMean
from pluribus.rules.coordinates.quantile import Maximum, Minimum, Quantile
from pluribus.rules.coordinates.quasi_arithmetic import QuasiArithmetic
from pluribus.rules.coordinates.signs import SignElection, SignMajority
from pluribus.rules.coordinates.soft_median import SoftMedian
from pluribus.rules.coordinates.trimmed_mean import TrimmedMean

__all__ = [
    "CoordinateWeights",
    "LogSumExp",
    "Maximum",
    "Meamed",
    "MeanAroundMedian",
    "Median",
    "Minimum",
    "Phocas",
    "PowerMean",
    "Quantile",
    "QuasiArithmetic",
    "SignElection",
    "SignMajority",
    "SoftMedian",
    "TrimmedMean",
]
