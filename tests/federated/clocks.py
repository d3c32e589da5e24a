"""Clocks that the tests of asynchronous rules set themselves."""

import math
from dataclasses import dataclass

from pluribus.federated.seeding import generator


@dataclass(frozen=True)
class Fixed:
    """Client i takes ``times[i]`` seconds for a job, or for a step of it, and ``tired`` more for each earlier job."""

    times: tuple[float, ...]
    by_step: bool = False
    tired: float = 0.0

    def seconds(self, client, *, steps, up_bytes, down_bytes, job, seed):
        return self.times[client] * (steps if self.by_step else 1) + self.tired * job


@dataclass(frozen=True)
class Exponential:
    """Each job takes an exponential time, of mean ``mean`` whoever does it."""

    mean: float

    def seconds(self, client, *, steps, up_bytes, down_bytes, job, seed):
        return -self.mean * math.log1p(-generator(seed, "tests.exponential", client, job).random())
