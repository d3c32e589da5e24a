"""Jobs that never answer: a battery that is empty, a line that is cut, a user who closes the program."""

from __future__ import annotations

from dataclasses import dataclass

from pluribus.federated import options
from pluribus.federated.errors import SettingError
from pluribus.federated.seeding import generator


@dataclass(frozen=True)
class Dropouts:
    """Each job is lost with ``probability``, whatever became of others; a pure function of seed, client and job."""

    probability: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.probability < 1:
            raise SettingError(f"dropout is {self.probability!r}; expected a number in [0, 1): some job must answer")

    def __str__(self) -> str:
        return options.brief(self.probability)

    def lost(self, client: int, job: int, seed: int) -> bool:
        """Whether this job of this client (each client counts its jobs from 0) never answers."""
        if self.probability == 0:
            return False
        return bool(generator(seed, "world.dropout", client, job).random() < self.probability)


def parse(text: str) -> Dropouts:
    """The dropouts that a text names: a probability such as ``0.1``, or ``none``."""
    if text.strip().lower() == "none":
        return Dropouts()
    return Dropouts(options.number(lambda x: 0 <= x < 1, "a number in [0, 1), or none")(text, "dropout"))
