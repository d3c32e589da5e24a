"""Learning on the server's own small clean set: what the rules that have one share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.server.base import Objective, Round

Point = TypeVar("Point")


def objective(rule: str, round: Round) -> Objective:
    """The round's proxy objective, or `RuleError`."""
    if round.proxy is None:
        raise RuleError(
            f"{rule} learns on a small clean set that the server holds, and the round has no proxy objective; "
            "keep some samples for the server, or take a rule that needs none"
        )
    return round.proxy


def lowest(
    start: Point,
    evaluate: Callable[[Point], tuple[float, Point]],
    advance: Callable[[Point, Point, int], Point],
    steps: int,
) -> tuple[Point, tuple[float, float]]:
    """The point with the lowest loss among a start and the ``steps`` points after it, and two losses.

    ``evaluate(point) -> (loss, slope)`` is called ``steps + 1`` times, ``advance(point, slope, number)`` with number =
    1, 2, ... makes the next point. So the loss found is never above the start's. A loss that is not finite counts as
    infinite, and ends the walk.

    Returns
    -------
    point, (float, float)
        The best point, and the loss at the start and there.
    """
    point, best, losses = start, start, [np.inf, np.inf]
    for number in range(steps + 1):
        loss, slope = evaluate(point)
        loss = float(loss) if np.isfinite(loss) else np.inf
        if number == 0:
            losses = [loss, loss]
        elif loss < losses[1]:
            best, losses[1] = point, loss
        if number == steps or not np.isfinite(loss):
            break
        point = advance(point, slope, number + 1)
    return best, (losses[0], losses[1])
