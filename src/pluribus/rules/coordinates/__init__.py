"""Rules that work on each coordinate alone."""

from pluribus.rules.coordinates.median import Median
from pluribus.rules.coordinates.trimmed_mean import TrimmedMean

__all__ = ["Median", "TrimmedMean"]
