"""How a rule is run: check, relate, weigh, combine, and again without whoever sent NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pluribus import engines
from pluribus.core import medium, passes, points, stores, weights
from pluribus.core.contributions import Contributions, gather
from pluribus.core.dtypes import Array
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, UndefinedError, listing
from pluribus.core.passes import Active, Tainted
from pluribus.core.relations import Gram, Norms, Reads, Relation
from pluribus.core.result import Aggregate
from pluribus.core.rule import CompositeRule, CoordinateRule, PointRule, PreRule, Rule, WeightRule, steps
from pluribus.core.stores import Result


@dataclass(frozen=True)
class Options:
    """What to do with NaN and Inf, with absent tensors, and with counters and masks; see `Rule.__call__`."""

    nonfinite: str = "raise"
    missing: str = "error"
    integers: str = "round"
    engine: Any = None
    out: Path | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("nonfinite", self.nonfinite, ("raise", "drop", "zero")),
            ("missing", self.missing, ("error", "absent")),
            ("integers", self.integers, ("round", "max", "first", "error")),
        ):
            if value not in allowed:
                raise RuleError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


@dataclass(frozen=True, eq=False)
class Outcome:
    """One run.

    Attributes
    ----------
    active
        Who took part.
    results
        k results: for each tensor stored items, in memory or in a file.
    relation
        What was read to decide, if anything was.
    coefficients
        Over the active rows, shape (m,) or (k, m), where the result is linear; else None.
    mixing
        Of the pre-rules, shape (k, m), ahead of a rule of coordinates; else None.
    shares
        The weights that a rule of coordinates saw, shape (n,) or, behind pre-rules, (k,); else None.
    counted
        What each active contributor counted for, shape (n,), where the rule says so; or a function that finds it, where
        that takes another pass.
    """

    active: Active
    results: list[Result]
    relation: Relation | None = None
    coefficients: Array | None = None
    mixing: Array | None = None
    shares: Array | None = None
    counted: Array | Callable[[], Array] | None = None


@dataclass(frozen=True, eq=False)
class Mixed:
    """What pre-rules made: mixing of shape (k + extra rows, m), the relation after it and the weights, shape (k,)."""

    mixing: Array
    relation: Relation | None
    shares: Array


def run(rule: Rule, contributions: Any, given: Any, extras: Mapping[str, Any], options: Options) -> Aggregate:
    """Run a rule on contributions; see `Rule.__call__`. ``extras``: reference and previous, None where not given."""
    data = gather(contributions, options.missing)  # type: ignore[arg-type]
    if options.integers == "error":
        _refuse_integers(data)
    checked = weights.check(given, data.n, data.labels)
    last = steps(rule)[1]
    if checked.ndim > 1 and not (isinstance(last, WeightRule) and last.reads is Reads.NOTHING):
        raise RuleError(f"weights of shape (k, n) give k results, which {rule} cannot; the mean can")
    more = {name: extra for name, extra in extras.items() if extra is not None}
    if "reference" in more and not rule.uses_reference:
        raise RuleError(f"{rule} has no use for a reference")
    if "reference" not in more and rule.needs_reference:
        raise RuleError(f"{rule} needs reference=, a contribution more: {rule.needs_reference}")
    if "previous" in more and not rule.uses_previous:
        raise RuleError(f"{rule} has no use for previous=, what the reference was a round before")
    data = data.with_extras(more) if more else data
    checked = weights.lost_are_zero(checked)
    positive = checked.max(axis=0) > 0 if checked.ndim > 1 else checked > 0
    rows = tuple(np.flatnonzero(positive).tolist())
    engine = engines.make(options.engine)
    if engine is not None and engine.remote and options.out is None:
        raise RuleError("an engine of other processes writes its result to a file: give out='result.safetensors'")
    if engine is None or isinstance(engine, engines.Torch):
        data = data.within(medium.choose(data, asked=engine is not None))
    if options.out is not None:
        stores.target_of(data, options.out)  # before there is anything to lose
    active = Active(data, rows, integers=options.integers, engine=engine, out=options.out)
    left_out: dict[str, str] = {}
    while True:
        shares = weights.normalise(_somebody(checked, active))
        rule.check(len(active.rows))
        try:
            outcome = execute(rule, active, shares)
        except Tainted as tainted:
            active, told = _respond(active, tainted.found, options.nonfinite)
            left_out |= told
        else:
            # What is asked of the result later is measured here: an engine may be gone by then.
            outcome = replace(outcome, active=replace(outcome.active, engine=None))
            return Aggregate.of(rule, outcome, shares, left_out)


def _somebody(checked: Array, active: Active) -> Array:
    """The weights of those who take part, each row of which must have something above zero."""
    left = checked[..., list(active.rows)]
    empty = np.flatnonzero(~(np.atleast_2d(left) > 0).any(axis=1))
    if empty.size:
        raise NonFiniteError(f"row {empty[0]} of the weights counts only contributors that were dropped")
    return left


def execute(rule: Rule, active: Active, shares: Array) -> Outcome:
    """Relate, weigh and combine, once. ``shares`` are the active contributors' weights, each row of sum one."""
    pre, last = steps(rule)
    if isinstance(last, (CompositeRule, PointRule)):
        return _in_memory(last, active, shares)
    relation = relate(needed(pre, last, active.data.extras), active, *pre, last)
    if isinstance(last, WeightRule):
        coefficients = coefficients_of(pre, last, relation, shares, len(active.all_rows))
        results = passes.weighted_sums(active, np.atleast_2d(coefficients))
        return Outcome(active, results, relation, coefficients)
    if not pre:
        result = passes.coordinatewise(active, last, shares)
        return Outcome(active, [result], relation, shares=shares)
    passes.all_there(active, "mixtures of whole contributions")
    made = mixed(pre, relation, shares, len(active.all_rows))
    mixing = made.mixing[: len(made.shares)]
    result = passes.coordinatewise(active, last, made.shares, mixing)
    return Outcome(active, [result], relation, mixing=mixing, shares=made.shares)


def _in_memory(last: CompositeRule | PointRule, active: Active, shares: Array) -> Outcome:
    """Run a rule whose result is made in memory, here, and write it to a file afterwards if it goes to one."""
    if not last.takes_tensors:
        active = replace(active, data=active.data.within(medium.NUMPY))
    here = replace(active, out=None, engine=None)
    if isinstance(last, CompositeRule):
        outcome = last.compose(here, shares, execute)
    else:
        outcome = Outcome(here, [points.pointwise(here, last, shares)], counted=shares)
    if active.out is None:
        return outcome
    return replace(outcome, active=active, results=[stores.save(active.data, outcome.results[0], active.out)])


def needed(pre: Sequence[PreRule], last: Rule, extras: Sequence[str]) -> Reads:
    """The dearest statistic that must be known before combining, when these extra rows are given."""
    asked = [step.reads_beside(extras) for step in (*pre, last)]
    merged = next((k + 1 for k, step in enumerate(pre) if step.merges), len(asked))
    asked[merged:] = [Reads.GRAM if reads is Reads.NORMS else reads for reads in asked[merged:]]
    read = [reads for reads in asked if reads not in (Reads.COORDINATES, Reads.POINTS)]
    return max(read, key=list(Reads).index, default=Reads.NOTHING)


def relate(reads: Reads, active: Active, *rules: Rule) -> Relation | None:
    """Compute the statistic, and no more than it, for rules that will read it.

    If all of them declare the law of scale they decide alike on rows in another unit, and may be given one.
    """
    if reads is not Reads.NOTHING:
        refuse_unreadable(active.data, str(reads))
    if reads is Reads.NORMS:
        return passes.norms(active, scaled=any_unit(*rules))
    if reads is Reads.GRAM:
        return passes.gram(active, scaled=any_unit(*rules))
    return None


def refuse_unreadable(data: Contributions, what: str) -> None:
    """Raise where contributions hold counters and masks alone; ``what`` a rule reads."""
    counters = [spec.label for spec in data.specs if spec.dtype.discrete and spec.size]
    if counters and not data.coordinates:
        raise ContributionError(
            f"a rule that reads {what} has nothing to read in {listing(counters)}: integers and bools are counters or "
            "masks, which take no part in distances; convert what is measured to floats"
        )


def any_unit(*rules: Rule) -> bool:
    """Whether what rules decide does not depend on the unit of the rows: all that read these say that it does not."""
    return all("scale" in rule.laws for rule in rules if rule.reads in (Reads.NORMS, Reads.GRAM))


def coefficients_of(
    pre: Sequence[PreRule], last: WeightRule, relation: Relation | None, shares: Array, rows: int
) -> Array:
    """Coefficients over the rows, shape (rows,) or (k, rows): pure algebra, whatever the contributions' size."""
    if shares.ndim > 1:
        return np.stack([coefficients_of(pre, last, relation, row, rows) for row in shares])
    if not pre:
        return _padded(_weighed(last, relation, shares, rows), rows)
    made = mixed(pre, relation, shares, rows)
    size = len(made.mixing)
    return np.asarray(_padded(_weighed(last, made.relation, made.shares, size), size) @ made.mixing)


def _weighed(last: WeightRule, relation: Relation | None, shares: Array, rows: int) -> Array:
    """What a rule weighs, checked: rules may be anybody's."""
    found = np.asarray(last.weigh(relation, shares), dtype=np.float64)
    if found.ndim != 1 or not len(shares) <= len(found) <= rows:
        raise RuleError(f"{last} gave coefficients of shape {found.shape}; expected ({len(shares)},) or ({rows},)")
    if not np.isfinite(found).all():
        raise UndefinedError(f"{last} gave coefficients that are not finite: {listing([f'{c:g}' for c in found])}")
    return found


def mixed(pre: Sequence[PreRule], relation: Relation | None, shares: Array, rows: int) -> Mixed:
    """Run the pre-rules on a relation."""
    made = Mixed(np.eye(rows), relation, shares)
    for step in pre:
        n, size = len(made.shares), len(made.mixing)
        mixing = step.mix(made.relation, made.shares)
        full = np.zeros((len(mixing) + size - n, size))
        full[: len(mixing), : mixing.shape[1]] = mixing
        full[len(mixing) :, n:] = np.eye(size - n)
        after = None if made.relation is None else made.relation.mixed(full)
        made = Mixed(full @ made.mixing, after, step.carry(mixing, made.shares))
    return made


def counted(rule: Rule, outcome: Outcome) -> Array:
    """What each active contributor counted for in an outcome of a rule, shape (n,); NaN where that means nothing."""
    n = len(outcome.active.rows)
    if outcome.coefficients is not None:
        return outcome.coefficients[..., :n]
    if outcome.counted is not None:
        return outcome.counted() if callable(outcome.counted) else outcome.counted
    last = steps(rule)[1]
    if not isinstance(last, CoordinateRule) or outcome.shares is None:
        return np.full(n, np.nan)
    return passes.coordinate_shares(outcome.active, last.tile_shares, outcome.shares, outcome.mixing)


def distances(rule: Rule, active: Active, arrays: Result) -> Array:
    """Distances of the active contributors to a result, shape (n,), in the space that a rule works in."""
    last = steps(rule)[1]
    if isinstance(last, PointRule):
        return np.asarray(np.sqrt(points.squared_distances(active, last, arrays)))
    return passes.distances_to(active, arrays)


@contextmanager
def telling(active: Active) -> Iterator[None]:
    """Turn what only a later measurement meets (squares that overflow) into an error that names the contributor."""
    try:
        yield
    except Tainted as tainted:
        _respond(active, tainted.found, "raise")


def leave_one_out(rule: Rule, outcome: Outcome, shares: Array) -> Array:
    """How far the result moves when each active contributor is left out: Euclidean distances, shape (n,).

    Linear rules are solved again on the relation without it; others run again. NaN where the rest is too few.
    """
    pre, last = steps(rule)
    active = outcome.active
    linear = isinstance(last, WeightRule) and not active.data.incomplete
    relation: Gram | None = None
    asked: Relation | None = None
    if linear:
        unit = any_unit(*pre, last)
        relation = outcome.relation if isinstance(outcome.relation, Gram) else passes.gram(active, scaled=unit)
        asked = as_read(needed(pre, last, active.data.extras), relation)  # what decides may be less than what measures
    moved = np.full(len(active.rows), np.nan)
    for k in range(len(active.rows)):
        rest = np.delete(shares, k)
        if not len(rest):
            continue
        try:
            rule.check(len(rest))
            if relation is not None and isinstance(last, WeightRule):
                read = None if asked is None else asked.without(k)
                rows = len(active.all_rows) - 1
                without = coefficients_of(pre, last, read, weights.normalise(rest), rows)
                assert outcome.coefficients is not None
                gap = relation.squared_gap(outcome.coefficients - np.insert(without, k, 0.0))
                moved[k] = np.sqrt(gap) * relation.scale
            else:
                moved[k] = _distance(rule, outcome, execute(rule, active.without(k), weights.normalise(rest)))
        except NonFiniteError:
            raise
        except (RuleError, ContributionError):  # the rest is too few, has no answer, or lacks a tensor
            continue
    return moved


def as_read(reads: Reads, relation: Gram) -> Relation | None:
    """What a rule reads, taken from a Gram relation that is there already."""
    if reads is Reads.NORMS:
        return Norms(relation.squared_norms, relation.n, relation.extras, relation.labels, relation.scale)
    return relation if reads is Reads.GRAM else None


def _distance(rule: Rule, one: Outcome, other: Outcome) -> float:
    as_contribution = other.active.data.rebuild(other.results[0])
    data = one.active.data.with_extras({"without": as_contribution})
    active = replace(one.active, data=data, rows=(len(data.rows) - 1,))
    return float(distances(rule, active, one.results[0])[0])


def _padded(coefficients: Array, rows: int) -> Array:
    return np.concatenate([coefficients, np.zeros(rows - len(coefficients))])


def _refuse_integers(data: Contributions) -> None:
    found = [spec.label for spec in data.specs if spec.dtype.discrete]
    if found:
        raise ContributionError(
            f"{listing(found)}: integers and booleans are counters or masks; choose integers='round', 'max' or 'first'"
        )


def _respond(active: Active, found: dict[int, list[str]], policy: str) -> tuple[Active, dict[str, str]]:
    """Leave out or clean the bad rows, or raise an error that names them."""
    labels = active.data.labels
    told = {
        labels[row]: f"NaN or Inf in {listing(names)}" if names else "too large to be squared in float64"
        for row, names in found.items()
    }
    references = [row for row in found if row >= active.data.n]
    if policy == "raise" or references:
        advice = "the reference must be finite" if references else "pass nonfinite='drop' or 'zero', or leave it out"
        raise NonFiniteError(f"{listing([f'{who}: {what}' for who, what in told.items()])}; {advice}")
    if policy == "zero" and all(found.values()):
        return replace(active, cleaned=active.cleaned | frozenset(found)), told
    rows = tuple(row for row in active.rows if row not in found)
    if not rows:
        raise NonFiniteError(f"every contributor is dropped: {listing([f'{w}: {x}' for w, x in told.items()])}")
    return replace(active, rows=rows), told
