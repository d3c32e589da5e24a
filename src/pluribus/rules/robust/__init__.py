"""Rules that withstand contributors who err or lie: weights, or new contributions, from distances and norms."""

from pluribus.rules.robust.centered_clipping import CenteredClipping
from pluribus.rules.robust.clip import Clip
from pluribus.rules.robust.geometric_median import GeometricMedian
from pluribus.rules.robust.krum import Krum, MultiKrum
from pluribus.rules.robust.nnm import NNM

__all__ = ["NNM", "CenteredClipping", "Clip", "GeometricMedian", "Krum", "MultiKrum"]
