"""Named rules for vectors and trees, one file a rule, each a preset of relate, weigh, combine."""

from pluribus.core.rule import Chain, Rule, chain, get, registered
from pluribus.rules import composers, coordinates, gradients, models, robust, spaces
from pluribus.rules.composers import *  # noqa: F403
from pluribus.rules.coordinates import *  # noqa: F403
from pluribus.rules.gradients import *  # noqa: F403
from pluribus.rules.mean import Mean
from pluribus.rules.models import *  # noqa: F403
from pluribus.rules.robust import *  # noqa: F403
from pluribus.rules.spaces import *  # noqa: F403

_families = (composers, coordinates, gradients, models, robust, spaces)

__all__ = ["Chain", "Mean", "Rule", "chain", "get", "registered"]
__all__ += [name for family in _families for name in family.__all__]
