"""Which rule when: sentences that follow from an experiment's numbers alone, and none that they do not carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Row = Mapping[str, Any]
WORTH = 1.1  # costs that differ by less than a tenth are no reason to choose


def judge(rows: Sequence[Row], target: float | None = None) -> dict[str, Any]:
    """The best rule of an experiment, if the seeds tell it from the others.

    The rule of highest mean accuracy leads another if the mean of the paired differences over the seeds (the seeds
    share clients, so what they share cancels) exceeds the differences' standard deviation (n - 1).

    Parameters
    ----------
    rows
        ``rules`` of a summary.
    target
        The accuracy that ``seconds_to_target`` is about, to be named in the sentences.

    Returns
    -------
    dict
        ``first``: the rule of highest mean accuracy; ``best``: the same if it leads all others, else None; ``tied``:
        the rules that it does not lead, itself first; ``leads``: mean and spread of its lead over each other rule;
        ``sentences``.
    """
    known = [row for row in rows if row["accuracy"]["mean"] is not None]
    if not known:
        return {"first": None, "best": None, "tied": [], "leads": {}, "sentences": []}
    first = max(known, key=lambda row: row["accuracy"]["mean"])  # of equals the first named
    leads = {row["rule"]: _lead(first, row) for row in known if row is not first}
    tied = [first, *(row for row in known if row is not first and not _leads(leads[row["rule"]]))]
    best = first["rule"] if len(tied) == 1 and len(known) > 1 else None
    return {
        "first": first["rule"],
        "best": best,
        "tied": [row["rule"] for row in tied] if len(tied) > 1 else [],
        "leads": {name: {"mean": mean, "spread": spread} for name, (mean, spread) in leads.items()},
        "sentences": [*_order(first, leads, tied, len(known)), *_cost(tied, known, target)],
    }


def _lead(first: Row, other: Row) -> tuple[float, float | None]:
    gaps = np.subtract(first["accuracy"]["by_seed"], other["accuracy"]["by_seed"])
    return float(gaps.mean()), float(gaps.std(ddof=1)) if len(gaps) > 1 else None


def _leads(lead: tuple[float, float | None]) -> bool:
    mean, spread = lead
    return spread is not None and mean > spread


def _order(first: Row, leads: Mapping[str, tuple[float, float | None]], tied: Sequence[Row], known: int) -> list[str]:
    reached = f"{_percent(first['accuracy']['mean'])} accuracy"
    if known == 1:
        return [f"{first['rule']} reached {reached}; there is nothing beside it."]
    seeds = len(first["accuracy"]["by_seed"])
    if seeds == 1:
        return [f"{first['rule']} reached {reached}, the highest; one seed does not tell how far that is chance."]
    if len(tied) == 1:
        near = min(leads, key=lambda name: leads[name][0])
        return [
            f"{first['rule']} is ahead of every other rule: {reached}, {_points(leads[near])} above {near}, the next "
            f"(paired over {seeds} seeds)."
        ]
    others = [row["rule"] for row in tied[1:]]
    gaps = ", ".join(f"{name} by {_points(leads[name])}" for name in others)
    names = ", ".join(row["rule"] for row in tied)
    return [
        f"These do not separate over {seeds} seeds: {names}. {first['rule']} reached {reached}, ahead of {gaps}, "
        "which is within the paired spread."
    ]


def _cost(tied: Sequence[Row], known: Sequence[Row], target: float | None) -> list[str]:
    """What the choice costs: of the leader against the cheapest, or of those that do not separate."""
    if len(known) == 1:
        return []
    goal = "the target" if target is None else f"{100 * target:g} % accuracy"
    told = []
    for name, what, say in (
        ("bytes", "bytes moved", size),
        ("seconds_to_target", f"simulated time to {goal}", clock),
    ):
        there = [(row, row[name]["mean"]) for row in (tied if len(tied) > 1 else known) if row.get(name)]
        there = [(row, value) for row, value in there if value is not None]
        values = [value for _, value in there]
        if len(there) < 2 or max(values) < WORTH * min(values):
            continue
        least, most = min(there, key=lambda pair: pair[1]), max(there, key=lambda pair: pair[1])
        if len(tied) > 1:
            told.append(
                f"Of these {least[0]['rule']} has the least {what}, {say(least[1])}; {most[0]['rule']} the most, "
                f"{say(most[1])}."
            )
        elif least[0] is not tied[0]:
            own = tied[0][name]["mean"]
            if own is not None and own < WORTH * least[1]:
                continue
            cost = f"is at {say(own)}" if own is not None else "did not get there under every seed"
            told.append(f"The least {what} is {least[0]['rule']}'s, {say(least[1])}; {tied[0]['rule']} {cost}.")
    return told


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(lead: tuple[float, float | None]) -> str:
    mean, spread = lead
    return f"{100 * mean:.1f} ± {100 * (spread or 0.0):.1f} points"


def size(count: float) -> str:
    """A number of bytes as a reader likes it: ``12.3 MB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}" if count < 1000 * scale else f"{count / scale:,.0f} {unit}"
    return f"{count:.0f} B"


def clock(seconds: float) -> str:
    """Simulated seconds: ``1,234 s``."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"
