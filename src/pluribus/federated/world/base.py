"""The world of a federation in one object: how fast clients are, who gets lost, and what happens on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pluribus.federated.world.compression import Compressor
from pluribus.federated.world.schedule import SYNC, Schedule


class Speeds(Protocol):
    """How long a client takes."""

    def seconds(self, client: int, *, steps: int, up_bytes: int, down_bytes: int, job: int, seed: int) -> float:
        """Simulated seconds from the moment a model is sent to the moment the update is there.

        ``job`` counts the client's jobs from 0; a function of its arguments alone.
        """


class Losses(Protocol):
    """Which jobs never answer."""

    def lost(self, client: int, job: int, seed: int) -> bool:
        """Whether this job breaks off; a function of its arguments alone."""


@dataclass(frozen=True)
class World:
    """All that surrounds training.

    Parameters
    ----------
    schedule
        When the server steps.
    speeds
        How long each client takes; None: one second a job, whoever it is.
    losses
        Which jobs never answer; None: all do.
    channel
        What happens to updates on their way, such as a `channel.Channel`; None: nothing.
    """

    schedule: Schedule = SYNC
    speeds: Speeds | None = None
    losses: Losses | None = None
    channel: Compressor | None = None

    def seconds(self, client: int, *, steps: int, up_bytes: int, down_bytes: int, job: int, seed: int) -> float:
        """See `Speeds`."""
        if self.speeds is None:
            return 1.0
        taken = self.speeds.seconds(client, steps=steps, up_bytes=up_bytes, down_bytes=down_bytes, job=job, seed=seed)
        return float(taken)

    def lost(self, client: int, job: int, seed: int) -> bool:
        """See `Losses`."""
        return self.losses is not None and self.losses.lost(client, job, seed)
