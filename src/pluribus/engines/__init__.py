"""Where tiles run. An engine maps a function over items and gives the results in the order of the items."""

from pluribus.engines.local import ordered_map

__all__ = ["ordered_map"]
