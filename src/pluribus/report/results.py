"""From a result of the core to its page and its piece of a notebook."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pluribus.core.errors import PluribusError
from pluribus.core.files import write_text
from pluribus.core.relations import Gram

from .aggregate import fragment, render_aggregate
from .data import AggregateReport, Relation
from .scales import FloatArray

if TYPE_CHECKING:
    from pluribus.core.result import Aggregate

_MANY = 64
T = TypeVar("T")


def aggregate_page(aggregate: Aggregate, path: Path) -> Path:
    """Write the whole page of ``aggregate`` to ``path``, whole or not at all, and return the path.

    What was not computed yet is computed now: the Gram matrix takes a pass over the contributions, and so does each
    influence under a rule of coordinates (left out beyond 64 contributors).
    """
    gram = _known(lambda: aggregate.gram)
    through_gram = isinstance(aggregate.relation, Gram)
    influence = _known(aggregate.influence) if through_gram or aggregate.n <= _MANY else None
    report = _report(aggregate, gram, influence=influence, measure=True)
    write_text(path, render_aggregate(report))
    return path


def aggregate_fragment(aggregate: Aggregate) -> str:
    """HTML for a notebook, from what the rule has seen already; no Gram matrix is computed for it."""
    relation = aggregate.relation
    gram = relation if isinstance(relation, Gram) else None
    return fragment(_report(aggregate, gram, influence=None, measure=gram is not None))


def _report(aggregate: Aggregate, gram: Gram | None, *, influence: FloatArray | None, measure: bool) -> AggregateReport:
    results = len(aggregate.given) if aggregate.given.ndim > 1 else 1
    notes = [f"{_plain(name)} was dropped or cleaned: {why}." for name, why in aggregate.left_out.items()]
    if influence is None and measure and aggregate.n > _MANY:
        notes.append(f"The influence was not computed: under this rule it takes a run for each of {aggregate.n}.")
    return AggregateReport(
        title=f"{aggregate.n} contributors, {'one result' if results == 1 else f'{results} results'}",
        names=tuple(map(_plain, aggregate.labels)),
        weights=aggregate.weights,
        influence=influence,
        distances=_known(lambda: aggregate.distances) if measure else None,
        dispersion=_known(lambda: aggregate.dispersion) if measure else None,
        effective_size=_known(lambda: aggregate.effective_size) if results == 1 else None,
        relation=None if gram is None else _relation(aggregate, gram),
        rule=str(aggregate.rule),
        explanation=aggregate.rule.formula,
        notes=tuple(notes),
        marked=tuple(i for i, name in enumerate(aggregate.labels) if name in aggregate.left_out),
        mark_name="dropped or cleaned",
    )


def _relation(aggregate: Aggregate, gram: Gram) -> Relation:
    names = gram.labels if len(gram.labels) == len(gram.gram) else (*aggregate.labels, *gram.extras)
    return Relation(np.asarray(gram.squared_distances * gram.scale * gram.scale), tuple(map(_plain, names)))


def _plain(label: str) -> str:
    """The name alone: the core's labels are made for its sentences, as in ``contributor 'clinic 3'``."""
    name = label.removeprefix("contributor ")
    try:
        quoted = ast.literal_eval(name) if name[:1] in "'\"" else name
    except (SyntaxError, ValueError):
        return name
    return str(quoted)


def _known(compute: Callable[[], T]) -> T | None:
    """What ``compute`` gives, None where the result does not have it (of a fold, of several results, too large)."""
    try:
        return compute()
    except PluribusError:
        return None
