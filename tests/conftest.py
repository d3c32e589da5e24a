"""What every test shares: seeded generators, and packages of extras that may be absent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings

# No deadline: on a busy machine a first import alone can take longer. Derandomised: a failure comes again.
settings.register_profile("pluribus", deadline=None, derandomize=True, database=None)
settings.load_profile("pluribus")


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that is the same in every run."""
    return np.random.default_rng(20261130)
