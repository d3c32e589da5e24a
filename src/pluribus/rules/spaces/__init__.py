"""Rules in spaces that are not flat: spheres, simplices, positive definite matrices, distributions, rankings."""

from pluribus.rules.spaces.categories import Majority, Plurality
from pluribus.rules.spaces.distributions import AitchisonMean, LinearPool, LogPool
from pluribus.rules.spaces.poincare import PoincareMean
from pluribus.rules.spaces.positive_definite import PositiveDefiniteMean
from pluribus.rules.spaces.rankings import Borda, Kemeny
from pluribus.rules.spaces.sphere import SphereMean
from pluribus.rules.spaces.wasserstein import WassersteinMean

__all__ = [
    "AitchisonMean",
    "Borda",
    "Kemeny",
    "LinearPool",
    "LogPool",
    "Majority",
    "Plurality",
    "PoincareMean",
    "PositiveDefiniteMean",
    "SphereMean",
    "WassersteinMean",
]
