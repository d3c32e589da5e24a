"""Rules made of rules."""

from pluribus.rules.composers.gas import Gas, gas
from pluribus.rules.composers.mix import Mix, mix
from pluribus.rules.composers.per_group import PerGroup, per_group
from pluribus.rules.composers.weighted import Weighted, weighted

__all__ = ["Gas", "Mix", "PerGroup", "Weighted", "gas", "mix", "per_group", "weighted"]
