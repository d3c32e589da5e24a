"""When the server stops waiting and steps: for everybody, for the first K, until a deadline, or never for anybody."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pluribus.federated.errors import SettingError
from pluribus.federated.options import brief, did_you_mean

NUMBERS: dict[str, tuple[str, ...]] = {
    "sync": (),
    "deadline": ("seconds",),
    "quorum": ("count", "seconds"),
    "buffer": ("count", "concurrency"),
    "async": ("concurrency",),
    "window": ("seconds",),
}
"""What there is, and the numbers that follow in its text; trailing ones may be left out."""

FORMS = "sync, deadline:SECONDS, quorum:K[:SECONDS], buffer:K[:CONCURRENCY], async[:CONCURRENCY] or window:SECONDS"


@dataclass(frozen=True)
class Schedule:
    """What the server waits for before each step.

    With a *cohort* (``sync``, ``deadline``, ``quorum``) everybody who takes part in the round starts at once from the
    same model, and whoever has not arrived when the server steps is left out and starts afresh. In a *flow*
    (``buffer``, ``async``, ``window``) clients go on while the server steps, so an update may be stale; a client whose
    update waits in the buffer starts again after the step.

    Parameters
    ----------
    kind
        ``sync`` waits for all of the cohort. ``deadline`` waits so many seconds, and for nobody after that. ``quorum``
        waits for the first ``count`` (so asking more than are needed is over-selection), at most ``seconds``.
        ``buffer`` steps whenever ``count`` updates have come (FedBuff); ``async`` is a buffer of one (FedAsync).
        ``window`` steps every ``seconds`` with whatever came (FedFix); clients start at the beginning of a window.
    count
        K.
    seconds
        Longest wait, or the window's length, on the simulated clock.
    concurrency
        How many clients train at a time in a flow; None for all that are there.
    """

    kind: str = "sync"
    count: int | None = None
    seconds: float = field(default=math.inf)
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in NUMBERS:
            hint = did_you_mean(self.kind, NUMBERS)
            raise SettingError(f"no schedule is called {self.kind!r}; expected {FORMS}{hint}")
        for name in ("count", "concurrency"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SettingError(f"schedule {self.kind}: {name} is {value!r}; expected a whole number >= 1")
        if not self.seconds > 0:
            raise SettingError(f"schedule {self.kind}: {self.seconds!r} seconds; expected a number > 0")
        if self.kind in ("quorum", "buffer") and self.count is None:
            raise SettingError(f"schedule {self.kind} needs a number of clients to wait for: {FORMS}")
        if self.kind in ("deadline", "window") and not math.isfinite(self.seconds):
            raise SettingError(f"schedule {self.kind} needs a number of seconds: {FORMS}")

    @property
    def flow(self) -> bool:
        """Whether clients go on while the server steps."""
        return self.kind in ("buffer", "async", "window")

    @property
    def wanted(self) -> float:
        """With so many updates the server steps."""
        return 1 if self.kind == "async" else math.inf if self.count is None else self.count

    def __str__(self) -> str:
        given = [getattr(self, name) for name in NUMBERS[self.kind]]
        told = [value for value in given if value is not None and math.isfinite(value)]
        return ":".join([self.kind, *(brief(value) if isinstance(value, float) else str(value) for value in told)])


SYNC = Schedule()


def parse(text: str) -> Schedule:
    """The schedule that a text names.

    Raises
    ------
    SettingError
        No such schedule, or numbers that it does not take.
    """
    kind, *numbers = (part.strip() for part in text.strip().split(":"))
    if kind not in NUMBERS:
        return Schedule(kind)
    names = NUMBERS[kind]
    if len(numbers) > len(names):
        raise SettingError(f"{text!r}: {kind} takes at most {len(names)} numbers; expected {FORMS}")
    values: dict[str, float | int] = {}
    for name, number in zip(names, numbers, strict=False):
        try:
            values[name] = float(number) if name == "seconds" else int(number)
        except ValueError:
            raise SettingError(f"{text!r}: {number!r} is no number for {name}; expected {FORMS}") from None
        if not math.isfinite(values[name]):
            raise SettingError(f"{text!r}: {name} must be finite; expected {FORMS}")
    return Schedule(kind, **values)  # type: ignore[arg-type]
