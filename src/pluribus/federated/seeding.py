"""Random numbers by name and counter, so that no draw depends on which other draws were made before it."""

from __future__ import annotations

import zlib

import numpy as np

from pluribus.federated.errors import SettingError


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """A generator that is a function of its arguments alone: a resumed run draws what an unbroken one drew.

    ``purpose`` names the use (``"participation"``) and keeps uses apart; ``counters`` number the draws of one
    use (round, client). A use must always pass the same number of counters, because numpy pads short seeds
    with zeros: ``(seed, purpose)`` and ``(seed, purpose, 0)`` are one stream.
    """
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise SettingError(f"a seed is a whole number >= 0; got {seed!r}")
    return np.random.default_rng([int(seed), zlib.crc32(purpose.encode()), *counters])


def derived(seed: int, purpose: str, *counters: int) -> int:
    """A seed below 2^63 for one round, client or rule, made from the run's seed as ``generator`` is."""
    return int(generator(seed, purpose, *counters).integers(2**63))
