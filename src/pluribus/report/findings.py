"""What a run shows, in sentences that follow from its numbers; and the numbers they need."""

from __future__ import annotations

import math

import numpy as np

from .data import RuleReport, RunReport
from .scales import FloatArray
from .text import counted, fixed, percent


def mean_weights(rule: RuleReport) -> FloatArray | None:
    """(clients,) mean weight over all rounds; a round without the client counts as zero."""
    if rule.weights is None or rule.weights.shape[1] == 0:
        return None
    return np.asarray(np.nan_to_num(rule.weights, nan=0.0, posinf=np.inf, neginf=-np.inf).mean(axis=1))


def attackers_share(report: RunReport, rule: RuleReport) -> float:
    """The attackers' part of all the weight that a rule gave; NaN without attackers or weights.

    As the summary gives it (over all seeds), else from the weights of the first seed.
    """
    if "attackers_weight" in rule.final:
        return rule.final["attackers_weight"]
    means = mean_weights(rule)
    if means is None or not report.attackers or not np.isfinite(means).all() or means.sum() <= 0:
        return math.nan
    return float(means[list(report.attackers)].sum() / means.sum())


def final(rule: RuleReport, name: str) -> float:
    """A number of the summary, NaN where it is missing."""
    return rule.final.get(name, math.nan)


def most_accurate(report: RunReport) -> RuleReport | None:
    """The rule of highest accuracy, the first of equals; None where none is known."""
    known = [r for r in report.rules if math.isfinite(final(r, "accuracy"))]
    return max(known, key=lambda r: final(r, "accuracy"), default=None)


def findings(report: RunReport) -> tuple[str, ...]:
    """One to four sentences; none that the numbers do not carry."""
    if not report.rules:
        return ()
    return tuple(
        sentence
        for sentence in (_best(report), _attackers(report), _worst_client(report), _concentrated(report))
        if sentence
    )


def _best(report: RunReport) -> str:
    base = report.rules[0]
    known = [r for r in report.rules if math.isfinite(final(r, "accuracy"))]
    best = most_accurate(report)
    if best is None:
        return ""
    reached = f"{percent(final(best, 'accuracy'))}\u00a0%"
    seeds = best.accuracy.shape[0]
    if best is base:
        others = " and no other rule came above it" if len(known) > 1 else ""
        return f"{base.label}, the baseline, reached {reached} accuracy{others}."
    gain = final(best, "accuracy") - final(base, "accuracy")
    if not math.isfinite(gain):
        return f"{best.label} reached the highest accuracy, {reached}."
    text = f"{best.label} reached the highest accuracy, {reached}: {percent(gain)} points above {base.label}"
    spreads = final(best, "spread") + final(base, "spread")
    if math.isfinite(spreads) and seeds > 1 and gain <= spreads:
        return text + f", which is within the spread over {counted(seeds, 'seed')}."
    return text + "."


def _attackers(report: RunReport) -> str:
    shares = [(r, attackers_share(report, r)) for r in report.rules]
    known = [(r, s) for r, s in shares if math.isfinite(s)]
    if not known:
        return ""
    n = len(report.attackers)
    part = percent(n / len(report.clients), 0)
    who = f"The {counted(n, 'attacker')} ({part}\u00a0% of the clients) held"
    least, most = min(known, key=lambda x: x[1]), max(known, key=lambda x: x[1])
    if least[0] is most[0] or percent(least[1]) == percent(most[1]):
        under = most[0].label if len(known) == 1 else "every rule that has weights"
        return f"{who} {percent(most[1])}\u00a0% of the weight under {under}."
    return (
        f"{who} {percent(most[1])}\u00a0% of the weight under {most[0].label} and {percent(least[1])}\u00a0% under "
        f"{least[0].label}."
    )


def _worst_client(report: RunReport) -> str:
    known = [r for r in report.rules if math.isfinite(final(r, "worst_client"))]
    if len(known) < 2:
        return ""
    best = max(known, key=lambda r: final(r, "worst_client"))
    worst = min(known, key=lambda r: final(r, "worst_client"))
    if percent(final(best, "worst_client")) == percent(final(worst, "worst_client")):
        return ""
    return (
        f"The client served worst has {percent(final(best, 'worst_client'))}\u00a0% under {best.label} and "
        f"{percent(final(worst, 'worst_client'))}\u00a0% under {worst.label}."
    )


def _concentrated(report: RunReport) -> str:
    known = [r for r in report.rules if math.isfinite(final(r, "effective_clients"))]
    if not known:
        return ""
    least = min(known, key=lambda r: final(r, "effective_clients"))
    size = final(least, "effective_clients")
    if size > 0.5 * len(report.clients):
        return ""
    return (
        f"{least.label} listens to the fewest: its weights are as concentrated as {fixed(size, 1)} clients of equal "
        f"weight, of {len(report.clients)}."
    )
