"""Satellites over gateways: who sees whom for how long while the constellation turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive, whole_number
from pluribus.federated.models import Array


@dataclass(frozen=True)
class Orbit:
    """N satellites at equal distances on a circle that turns once in ``period`` rounds over G gateways below it.

    Gateway g sees the arc of length ``arc`` that begins at g / G (in turns). Satellite i begins round t at i / N +
    t / period and goes on by 1 / period; it is in contact with a gateway for the share of the round in which it is in
    the arc. Under ``arc = 1 / G`` somebody sees each satellite at any time, and contacts of a round sum to one.

    SemSpaceFL (2025) takes the trajectories of a real constellation; this is the smallest schedule that turns.

    Parameters
    ----------
    satellites, gateways
        N and G.
    period
        Rounds of one turn, at least 1.
    arc
        What a gateway sees, in turns, in (0, 1]; None: 1 / G.
    """

    satellites: int
    gateways: int
    period: float
    arc: float | None = None

    def __post_init__(self) -> None:
        whole_number("Orbit", "satellites", self.satellites, 1)
        whole_number("Orbit", "gateways", self.gateways, 1)
        positive("Orbit", "period", self.period)
        if self.period < 1:
            raise RuleError(f"Orbit: period must be at least 1 round, not {self.period!r}")
        if self.arc is not None:
            positive("Orbit", "arc", self.arc)
            if self.arc > 1:
                raise RuleError(f"Orbit: arc must be at most 1 turn, not {self.arc!r}")

    def contact(self, round: int) -> Array:
        """Share of the round that each satellite spends with each gateway, (N, G), each in [0, 1]."""
        length = 1 / self.gateways if self.arc is None else self.arc
        begin = (np.arange(self.satellites) / self.satellites + round / self.period)[:, None]
        begin = (begin - np.arange(self.gateways) / self.gateways) % 1.0
        end = begin + 1 / self.period
        # The arc is [0, length] and, a turn later, [1, 1 + length]: a round is never longer than a turn.
        seen = sum(np.maximum(np.minimum(end, turn + length) - np.maximum(begin, turn), 0.0) for turn in (0.0, 1.0))
        return np.clip(np.asarray(seen) * self.period, 0.0, 1.0)

    def association(self, round: int) -> Array:
        """The gateway that each satellite sees longest (the lowest of equals), (N,); -1 if it sees none."""
        contact = self.contact(round)
        return np.where(contact.max(axis=1) > 0, np.round(contact, 12).argmax(axis=1), -1)


def contact_weights(sizes: Array, contact: Array, association: Array) -> tuple[Array, Array]:
    """Weights of satellites at their gateways, and of gateways at the cloud.

    A satellite counts ``n_i c_i``, its samples times the share of the round that it is in contact with its gateway,
    and a gateway the sum of its satellites. With contacts of 1 that is FedAvg on two levels.

    Parameters
    ----------
    sizes
        Samples of each satellite, (N,).
    contact
        As `Orbit.contact` gives it, (N, G).
    association
        Each satellite's gateway, (N,), -1 for none.

    Returns
    -------
    (G, N) array, (G,) array
        Rows of sum one (or zero: nobody is there) and a vector of sum one.
    """
    sizes, contact = np.asarray(sizes, dtype=np.float64), np.asarray(contact, dtype=np.float64)
    chosen = np.asarray(association)[None, :] == np.arange(contact.shape[1])[:, None]
    counted = np.where(chosen, sizes[None, :] * contact.T, 0.0)
    totals = counted.sum(axis=1)
    inner = np.divide(counted, totals[:, None], out=np.zeros_like(counted), where=totals[:, None] > 0)
    return inner, totals / totals.sum() if totals.sum() > 0 else totals
