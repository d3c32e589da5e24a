"""Named rules for vectors and trees, one file a rule, each a preset of relate, weigh, combine."""

from pluribus.core.rule import Chain, Rule, chain, get, registered
from pluribus.rules.centered_clipping import CenteredClipping
from pluribus.rules.clip import Clip
from pluribus.rules.geometric_median import GeometricMedian
from pluribus.rules.krum import Krum, MultiKrum
from pluribus.rules.mean import Mean
from pluribus.rules.median import Median
from pluribus.rules.nnm import NNM
from pluribus.rules.trimmed_mean import TrimmedMean

__all__ = [
    "NNM",
    "CenteredClipping",
    "Chain",
    "Clip",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "Rule",
    "TrimmedMean",
    "chain",
    "get",
    "registered",
]
