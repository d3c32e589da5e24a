"""Laws that go together, named once: rules declare groups of them, and what else they obey.

>>> from pluribus.core.law_groups import EQUIVARIANT, SYMMETRIC
>>> sorted(EQUIVARIANT)
['rotation', 'scale', 'translation']
>>> "anonymity" in SYMMETRIC | EQUIVARIANT
True
"""

from __future__ import annotations

ANONYMOUS = frozenset({"anonymity", "null", "deterministic"})
"""Who sends what does not matter, but for how ties are broken."""

SYMMETRIC = ANONYMOUS | {"anonymity at ties"}
"""Who sends what does not matter, even at ties."""

AVERAGE = SYMMETRIC | {"unanimity", "replication"}
"""What averages of all kinds obey, on vectors and in other spaces: weights are copies, and what all agree on stays."""

ABOUT_ORIGIN = frozenset({"scale", "rotation"})
"""Lengths and angles count, measured from zero: gradients, updates."""

EQUIVARIANT = ABOUT_ORIGIN | {"translation"}
"""Only where contributions lie to one another counts: the result moves, scales and turns with them."""

SELECTING = ANONYMOUS | EQUIVARIANT | {"unanimity", "betweenness"}
"""What a mean of those obeys whom distances choose; a choice among equals goes by order."""

COORDINATEWISE = SYMMETRIC | {"unanimity", "translation", "scale", "betweenness"}
"""What orders the values at each coordinate alone obeys; it does not turn with them."""
