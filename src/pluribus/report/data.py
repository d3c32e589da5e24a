"""What a page is made of: plain numbers and names, checked once. Nothing here knows HTML or a rule's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pluribus.core.errors import PluribusError

from .heat import RelationKind
from .scales import FloatArray


class ReportError(PluribusError, ValueError):
    """Data that do not fit together into a page."""


@dataclass(frozen=True, eq=False)
class Relation:
    """An (n, n) relation of contributors: ``values``, a name for each row, and what the numbers are."""

    values: FloatArray
    labels: tuple[str, ...]
    kind: RelationKind = "squared distance"

    def __post_init__(self) -> None:
        _set(self, "labels", _names(self.labels, "the labels of a relation", unique=False))
        n = len(self.labels)
        _set(self, "values", _array(self.values, (n, n), "the values of a relation", "label x label"))
        if self.kind not in ("squared distance", "cosine"):
            raise ReportError(f"a relation is of 'squared distance' or 'cosine', not {self.kind!r}")


@dataclass(frozen=True, eq=False)
class RuleReport:
    """What one rule did in a run.

    name, label, formal
        The rule as it is called, as a reader should see it, and, small beside that in its own section, with all
        parameters as the code names it (or nothing).
    accuracy
        (seeds, rounds), shares in [0, 1]; NaN where it was not measured.
    weights
        (clients, rounds) of the first seed; NaN where a client did not take part; None for a rule that has no one
        weight for a client (a coordinate-wise median).
    relation
        What the rule saw in the last round, or None.
    final
        Numbers of the summary over all seeds: ``accuracy``, ``spread``, ``worst_client``, ``attackers_weight``
        (shares; the last is computed from ``weights`` where it is missing), ``effective_clients``; others get a
        column of their own under their name (``worst_tenth`` and ``attack_success`` are shares too). What is missing
        is shown as a dash.
    explanation
        One sentence: what the rule does.
    time
        (seeds, rounds) seconds on the run's own clock after each round, never falling; None where there is no clock.
    contributions
        What each client contributed by several measures, each (clients,), by their names; of the first seed.
    """

    name: str
    label: str
    accuracy: FloatArray
    weights: FloatArray | None = None
    relation: Relation | None = None
    final: Mapping[str, float] = field(default_factory=dict)
    explanation: str = ""
    formal: str = ""
    time: FloatArray | None = None
    contributions: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        accuracy = np.asarray(self.accuracy, dtype=np.float64)
        if accuracy.ndim != 2:
            raise ReportError(f"rule {self.name!r}: accuracy has shape {accuracy.shape}, expected (seeds, rounds)")
        _set(self, "accuracy", accuracy)
        if self.time is not None:
            _set(self, "time", _array(self.time, accuracy.shape, f"rule {self.name!r}: time", "seeds x rounds"))
        if self.weights is not None:
            _set(self, "weights", np.asarray(self.weights, dtype=np.float64))
        _set(self, "final", {str(k): float(v) for k, v in self.final.items()})


@dataclass(frozen=True, eq=False)
class RunReport:
    """A run of several rules on the same clients; the first rule is the baseline of the others.

    ``attackers`` are positions in ``clients``; ``label_counts`` is (clients, classes) or None; ``config`` is shown as
    a table, nested mappings with dotted names. ``verdict`` are sentences on which rule is best, shown after the
    findings; ``timed`` draws accuracy over the rules' ``time`` too.
    """

    title: str
    subtitle: str
    config: Mapping[str, Any]
    rounds: int
    rules: tuple[RuleReport, ...]
    clients: tuple[str, ...]
    label_counts: FloatArray | None = None
    attackers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    class_labels: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    timed: bool = False

    def __post_init__(self) -> None:
        _set(self, "rules", tuple(self.rules))
        _set(self, "clients", _names(self.clients, "the clients"))
        _set(self, "notes", _names(self.notes, "the notes", unique=False))
        _set(self, "verdict", _names(self.verdict, "the verdict", unique=False))
        n = len(self.clients)
        _set(self, "attackers", _positions(self.attackers, n, "attackers"))
        for rule in self.rules:
            who = f"rule {rule.name!r}: "
            _array(rule.accuracy, (rule.accuracy.shape[0], self.rounds), f"{who}accuracy", "seeds x rounds")
            for name, values in rule.contributions.items():
                _array(values, (n,), f"{who}contributions, {name}", "one for each client")
            if rule.weights is not None:
                _array(rule.weights, (n, self.rounds), f"{who}weights", "clients x rounds")
        if self.label_counts is not None:
            counts = np.asarray(self.label_counts, dtype=np.float64)
            classes = counts.shape[1] if counts.ndim == 2 else 0
            _set(self, "label_counts", _array(counts, (n, classes), "label_counts", "clients x classes"))
            labels = _names(self.class_labels, "class_labels") or tuple(str(i) for i in range(classes))
            if len(labels) != classes:
                raise ReportError(f"class_labels names {len(labels)} classes, label_counts has {classes}")
            _set(self, "class_labels", labels)


@dataclass(frozen=True, eq=False)
class AggregateReport:
    """One aggregation: n contributors became one result.

    ``weights`` are (n,), or (k, n) for k results; ``influence`` (how far the result moves when one is left out) and
    ``distances`` (of each to the result) are (n,); each may be None, as may the numbers ``dispersion`` and
    ``effective_size``. ``marked`` are positions to be flagged, under ``mark_name``.
    """

    title: str
    names: tuple[str, ...]
    weights: FloatArray | None = None
    influence: FloatArray | None = None
    distances: FloatArray | None = None
    dispersion: float | None = None
    effective_size: float | None = None
    relation: Relation | None = None
    rule: str = ""
    explanation: str = ""
    notes: tuple[str, ...] = ()
    marked: tuple[int, ...] = ()
    mark_name: str = "attacker"

    def __post_init__(self) -> None:
        _set(self, "names", _names(self.names, "the contributors", unique=False))
        _set(self, "notes", _names(self.notes, "the notes", unique=False))
        n = len(self.names)
        _set(self, "marked", _positions(self.marked, n, "marked"))
        for name in ("weights", "influence", "distances"):
            given = getattr(self, name)
            if given is not None and np.ndim(given) == 2 and name == "weights":
                _set(self, name, _array(given, (len(given), n), name, "results x contributors"))
            elif given is not None:
                _set(self, name, _array(given, (n,), name, "one for each contributor"))

    @property
    def mean_weights(self) -> FloatArray | None:
        """(n,) weights, of several results their mean."""
        if self.weights is None or self.weights.ndim == 1:
            return self.weights
        return self.weights.mean(axis=0) if len(self.weights) else None


def _set(thing: object, name: str, value: object) -> None:
    object.__setattr__(thing, name, value)  # the dataclasses are frozen; only their own checks write


def _array(values: ArrayLike, shape: tuple[int, ...], what: str, axes: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape:
        raise ReportError(f"{what} has shape {array.shape}, expected {shape} ({axes})")
    return array


def _names(names: Sequence[str], what: str, *, unique: bool = True) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ReportError(f"{what} must be a sequence of texts, not the one text {names!r}")
    texts = tuple(str(name) for name in names)
    if unique and len(set(texts)) < len(texts):
        twice = next(name for name in texts if texts.count(name) > 1)
        raise ReportError(f"{what} must differ, but {twice!r} is there {texts.count(twice)} times")
    return texts


def _positions(positions: Sequence[int], n: int, what: str) -> tuple[int, ...]:
    for position in positions:
        if not 0 <= position < n:
            raise ReportError(f"{what} holds {position}, but there are only clients 0 to {n - 1}")
    return tuple(sorted({int(position) for position in positions}))
