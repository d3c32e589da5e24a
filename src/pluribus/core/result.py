"""The result of an aggregation, and why it is what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pluribus.core import passes, weights
from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.relations import Gram, Norms

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome
    from pluribus.core.rule import Rule


@dataclass(frozen=True, eq=False)
class Aggregate:
    """One result of n contributions.

    What needs a further pass over the contributions is computed when it is first asked for; they must not have been
    changed until then.

    Attributes
    ----------
    value
        The result: the same structure and array kind as one contribution (a list of k for weights of shape (k, n)), or
        the path of the file that it was written to.
    rule
        The rule that made it.
    labels
        The contributors' names, n of them.
    given
        The weights that were given, normalised, shape (n,) or (k, n); zero for contributors that were left out.
    left_out
        Contributors that were dropped or cleaned, and why.
    """

    value: Any
    rule: Rule
    labels: tuple[str, ...]
    given: Array
    left_out: Mapping[str, str]
    _outcome: Outcome | None = field(repr=False, default=None)
    _shares: Array | None = field(repr=False, default=None)

    @classmethod
    def of(cls, rule: Rule, outcome: Outcome, shares: Array, left_out: Mapping[str, str]) -> Aggregate:
        """From a run. ``shares`` are the normalised weights of the active contributors."""
        data = outcome.active.data
        values = [outcome.active.out or data.rebuild(result) for result in outcome.results]
        given = np.zeros((*shares.shape[:-1], data.n))
        given[..., list(outcome.active.rows)] = shares
        value = values if shares.ndim > 1 else values[0]
        return cls(value, rule, data.labels[: data.n], given, dict(left_out), outcome, shares)

    @property
    def n(self) -> int:
        """Number of contributors."""
        return len(self.labels)

    @cached_property
    def weights(self) -> Array:
        """What each contributor counted for, shape (n,) or (k, n).

        For a linear rule its coefficient in the result (the sum is below one when a rule shrinks). For a rule of
        coordinates its mean share over the coordinates, which takes a pass over the data; for a rule on points the
        weight that it was given; NaN where none of these means anything.
        """
        from pluribus.core import execution

        if self._outcome is None:
            return self.given
        full = np.zeros(self.given.shape)
        full[..., list(self._outcome.active.rows)] = execution.counted(self.rule, self._outcome)
        return full

    @cached_property
    def relation(self) -> Gram | Norms | None:
        """What the rule saw of the contributions, before any pre-rule; NaN for contributors that were left out."""
        if self._outcome is None or self._outcome.relation is None:
            return None
        active, found = self._outcome.active, self._outcome.relation
        if len(active.rows) == self.n:
            return found
        if isinstance(found, Gram):
            return found.spread_out(active.rows, self.n, active.data.labels)
        squares = np.full(self.n + len(found.extras), np.nan)
        squares[list(active.all_rows)] = found.squared_norms
        return Norms(squares, self.n, found.extras, active.data.labels, found.scale)

    @cached_property
    def gram(self) -> Gram:
        """The Gram relation, computed now if the rule did not need it."""
        if isinstance(self.relation, Gram):
            return self.relation
        from pluribus.core import execution

        active = self._needed("Gram matrix").active
        with execution.telling(active):
            found = passes.gram(active)
        whole = len(active.rows) == self.n
        return found if whole else found.spread_out(active.rows, self.n, active.data.labels)

    @property
    def effective_size(self) -> float:
        """Effective number of contributors: (sum |w|)^2 / sum w^2 of `weights`."""
        return weights.effective_size(self.weights)

    @cached_property
    def distances(self) -> Array:
        """Distance of each contributor to the result, shape (n,); NaN for those left out.

        Euclidean; for a rule on points, the root of the sum over all points of their squared distances in the space.
        """
        from pluribus.core import execution

        outcome = self._needed("distances")
        rows = list(outcome.active.rows)
        if isinstance(outcome.relation, Gram) and outcome.coefficients is not None and outcome.coefficients.ndim == 1:
            found = outcome.relation.distances_to(outcome.coefficients)[: len(rows)]
        else:
            with execution.telling(outcome.active):
                found = execution.distances(self.rule, outcome.active, outcome.results[0])
        full = np.full(self.n, np.nan)
        full[rows] = found
        return full

    @property
    def dispersion(self) -> float:
        """Root of the mean squared distance of the contributors to the result, under the given weights."""
        counted = self.given > 0
        distances = self.distances[counted]
        unit = passes.unit_of(float(distances.max()))
        return float(np.sqrt(self.given[counted] @ (distances / unit) ** 2) * unit)

    def influence(self) -> Array:
        """How far the result moves when each contributor is left out: Euclidean distances, shape (n,).

        Through the Gram matrix for linear rules, so without the data, but with n decisions: at n = 200 a hundredth of a
        second for norms, 3 s for UPGrad, 5 s for PCGrad and GradVac, 7 s for SMEA. A run each for rules of coordinates
        and of other rules, GAS and residual reweighting among them (44 s for 200 short rows under GAS). NaN for those
        that were left out already, and where the rule cannot do with one less.
        """
        return self._influence

    @cached_property
    def _influence(self) -> Array:
        from pluribus.core import execution, influence

        outcome = self._needed("influence")
        assert self._shares is not None
        full = np.full(self.n, np.nan)
        with execution.telling(outcome.active):
            full[list(outcome.active.rows)] = influence.leave_one_out(self.rule, outcome, self._shares)
        return full

    def _needed(self, what: str) -> Outcome:
        if self._outcome is None:
            raise RuleError(f"a fold keeps no contributions, so it has no {what}; call the rule on all of them at once")
        if self.given.ndim > 1:
            raise RuleError(f"{what} is of one result; this aggregate holds {len(self.given)}")
        return self._outcome

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page: weights, relation, influence, and the numbers as a table."""
        from pluribus.report import aggregate_page

        return aggregate_page(self, Path(path))

    def _repr_html_(self) -> str:
        from pluribus.report import aggregate_fragment

        return aggregate_fragment(self)

    def __repr__(self) -> str:
        left = f", left out {len(self.left_out)}" if self.left_out else ""
        if self.given.ndim > 1:
            return f"<Aggregate of {self.n} by {self.rule}: {len(self.given)} results{left}>"
        return f"<Aggregate of {self.n} by {self.rule}{left}>"
