"""A little is enough: hidden within the honest clients' spread, by the paper's z or by the worst for the server."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from pluribus.federated.attacks.trees import Trees, Wide, deviation, dot, mean, plus, sent_by_all
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Tree, real

Defence = Callable[[list[Tree]], Tree]
"""What the server's model moves by if the attackers send these updates, one for each of them."""

LADDER = tuple(0.25 * 2**k for k in range(7))  # 0.25 .. 16
STEPS = tuple(2 ** (k / 4) for k in (-3, -2, -1, 1, 2, 3, 4))  # around the best of the ladder: up to 32


def alie(honest: Trees, own: Trees, z: float | None = None) -> list[Tree]:
    """A little is enough: all attackers send ``mean - z std`` of the honest updates, in each coordinate.

    The deviation has ``ddof = 1`` and is 0 for a single honest client; without honest clients in the round
    the attackers' own updates stand for them. ``z`` defaults to ``alie_z_max`` of the round's clients.

    Baruch et al. 2019. Compared with alittle.py of epfml/byzantine-robust-noniid-optimizer: the same
    statistics and z; the paper's own code takes them from the attackers' updates, with ``ddof = 0``.
    """
    if z is None:
        z = alie_z_max(len(honest) + len(own), len(own))
    middle, spread = _statistics(honest if len(honest) else own)
    return sent_by_all(plus(middle, -z, spread), own)


def alie_adaptive(honest: Trees, own: Trees, defence: Defence) -> tuple[list[Tree], float]:
    """ALIE with the z that moves the server's model furthest from where ``z = 0`` moves it.

    ``defence`` is asked 15 times: for z = 0, then for 0.25, 0.5, ... 16, then for seven more around the best of
    these. Of equals the smallest z is taken; a result that is not finite counts for nothing.

    Returns
    -------
    updates, z
        What each attacker sends, and the z of it.

    The search of Shejwalkar and Houmansadr 2021 and of ByzFL's optimised ALIE (LineMaximize), which go by the
    distance from the mean of the honest updates; from the result at z = 0 it also makes sense for a server that does
    more than a mean (momentum, learning rates).
    """
    middle, spread = _statistics(honest if len(honest) else own)

    def sent(z: float) -> list[Tree]:
        return sent_by_all(plus(middle, -z, spread), own)

    quiet = defence(sent(0.0))

    def moved(z: float) -> float:
        result = defence(sent(z))
        apart = {name: result[name].astype(np.float64) - value for name, value in quiet.items() if real(value)}
        squared = dot(apart, apart)
        return squared if np.isfinite(squared) else -1.0

    found = {z: moved(z) for z in LADDER}
    best = max(found, key=lambda z: (found[z], -z))
    found |= {best * step: moved(best * step) for step in STEPS}
    best = max(found, key=lambda z: (found[z], -z))
    return sent(best), best


def alie_z_max(n: int, f: int) -> float:
    """ALIE's shift: ``Phi^-1((n - f - s) / (n - f))``, with ``s = floor(n / 2 + 1) - f`` honest supporters.

    ``n`` counts all clients and ``f`` the attackers among them; n = 50, f = 24 gives 1.43, as in the paper.
    It is below zero when few attackers need many supporters (n = 4, f = 1). Attackers that are a majority
    on their own need none, for which the formula has no finite value: one supporter is counted then.
    """
    if not 0 < f <= n:
        raise SettingError(f"ALIE needs 0 < f <= n; got {f} attackers among {n} clients")
    others = n - f
    supporters = max(math.floor(n / 2 + 1) - f, 1)
    if others <= supporters:
        return 0.0
    return NormalDist().inv_cdf((others - supporters) / others)


def _statistics(sample: Trees) -> tuple[Wide, Wide]:
    middle = mean(sample)
    return middle, deviation(sample, middle)
