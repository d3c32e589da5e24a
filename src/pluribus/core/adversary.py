"""An attacker that searches: how far can those whom a rule declares to withstand move its result?

Not only canned attacks: from many starts (far away, opposite, inside of the cloud, copies of an honest one, just beside
it) the attackers' vectors are improved by random steps of all sizes, keeping what moves the result further.

>>> from pluribus import rules
>>> from pluribus.core.adversary import attack
>>> found = attack(rules.Median(), n=7)
>>> found.ratio <= found.bound
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import PluribusError
from pluribus.core.rule import Rule


@dataclass(frozen=True, eq=False)
class Attack:
    """The worst that a search found.

    Attributes
    ----------
    ratio
        Distance of the result to the mean of the honest ones, over the largest distance between two of these.
    bound
        What the rule declares: `Rule.breakdown_factor`.
    contributions
        Shape (n, d); the attackers are the first ``f``.
    f
        How many attack.
    tries
        How often the rule was asked.
    """

    ratio: float
    bound: float
    contributions: Array
    f: int
    tries: int


def attack(
    rule: Rule, n: int | None = None, d: int = 3, *, f: int | None = None, tries: int = 400, seed: int = 0
) -> Attack:
    """Search for the attack that moves a rule's result furthest.

    Parameters
    ----------
    rule
        Any rule on vectors.
    n, d
        Number of contributors and of coordinates; None is five more than the rule's fewest.
    f
        How many attack; None is as many as the rule declares to withstand.
    tries
        How often the rule may be asked.
    seed
        The same seed makes the same search.
    """
    n = n if n is not None else max(rule.least, 2) + 5
    f = f if f is not None else rule.tolerates(n)
    rng = np.random.default_rng(seed)
    worst = Attack(0.0, rule.breakdown_factor(n, d), np.zeros((n, d)), f, 0)
    if not 0 < f < n:
        return worst
    asked = 0
    while asked < tries:
        honest = rng.normal(size=(n - f, d)) * rng.choice([1.0, 1e-3, 1e3]) + rng.normal(size=d) * rng.choice(
            [0.0, 1.0, 1e2]
        )
        for start in _starts(honest, f, rng):
            best, found = -1.0, start
            size = 1.0
            for _ in range(12):
                candidate = found + size * rng.normal(size=found.shape) * np.abs(found - honest.mean(axis=0)).max()
                here = found if best < 0 else candidate
                asked += 1
                moved = _moved(rule, here, honest)
                if moved > best:
                    best, found, size = moved, here, min(size * 2, 1e3)
                else:
                    size /= 3
            if best > worst.ratio:
                worst = Attack(best, worst.bound, np.vstack([found, honest]), f, asked)
    return Attack(worst.ratio, worst.bound, worst.contributions, f, asked)


def _starts(honest: Array, f: int, rng: np.random.Generator) -> Iterator[Array]:
    """Where attackers begin, shape (f, d)."""
    centre, spread = honest.mean(axis=0), np.ptp(honest, axis=0).max()
    direction: Array = rng.normal(size=honest.shape[1:])
    direction = direction / np.linalg.norm(direction)
    for reach in (1.5, 10.0, 1e8):  # together, far away
        yield np.tile(centre + reach * spread * direction, (f, 1))
    yield centre - 3 * (honest[rng.integers(len(honest), size=f)] - centre)  # the opposite of honest ones
    yield np.tile(honest[rng.integers(len(honest))], (f, 1))  # copies of one
    outermost = honest[np.argmax(np.linalg.norm(honest - centre, axis=1))]
    yield np.tile(outermost + 0.5 * (outermost - centre), (f, 1))  # just beyond the outermost
    yield np.tile(centre - 1.5 * honest.std(axis=0), (f, 1))  # a little is enough (ALIE)
    yield centre + spread * rng.normal(size=(f, honest.shape[1]))  # each on its own


def _moved(rule: Rule, attackers: Array, honest: Array) -> float:
    try:
        value = rule(list(np.vstack([attackers, honest]))).value
    except PluribusError:  # refused: nobody is moved
        return 0.0
    gaps = honest[:, None] - honest[None]
    spread = float(np.sqrt((gaps**2).sum(axis=-1)).max())
    return float(np.linalg.norm(np.asarray(value) - honest.mean(axis=0))) / max(spread, 1e-300)
