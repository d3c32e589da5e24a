"""Folds: contributions one at a time, in the memory of one model, with partial results that merge."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pluribus.core import dtypes, kernels, passes, weights
from pluribus.core.contributions import Contributions, gather
from pluribus.core.dtypes import Array
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, listing
from pluribus.core.passes import Active
from pluribus.core.result import Aggregate

if TYPE_CHECKING:
    from pluribus.core.rule import Rule


@dataclass(eq=False)
class Fold:
    """A weighted mean under way: float64 sums, one a coordinate, and the weights so far.

    ``add`` and ``merge`` either happen whole or not at all: a contribution is checked before it is added, so one with
    NaN leaves the fold as it was. Results do not depend on how parts were merged, up to the rounding of float64 sums.
    """

    rule: Rule
    integers: str = "round"
    _like: Contributions | None = field(default=None, repr=False)
    _sums: list[Array] = field(default_factory=list, repr=False)
    _weights: list[float] = field(default_factory=list, repr=False)
    _labels: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.integers != "round":
            raise RuleError(f"a fold rounds counters and masks (integers='round'), it cannot do {self.integers!r}")

    def __len__(self) -> int:
        return len(self._weights)

    def add(self, contribution: Any, weight: float = 1.0, label: str | None = None) -> Fold:
        """Add one contribution with a non-negative weight; of weight zero it is only counted. Returns the fold.

        Raises
        ------
        ContributionError, NonFiniteError, WeightError
            It does not fit the first, is not finite, or its weight is no weight. The fold is as it was.
        """
        name = label if label is not None else f"contributor {len(self)}"
        weight = float(weights.check([1.0, weight], 2, ["the fold", name])[1])
        arrived = self._fitted(contribution, name)
        active = Active(arrived, (0,))
        bad = passes.scan(active) if weight > 0 else {}
        if bad:
            raise NonFiniteError(f"{name}: NaN or Inf in {listing(bad[0])}; it was not added")
        if self._like is None:
            self._like = arrived.template()
            self._sums = [np.zeros(spec.size * spec.dtype.per_item) for spec in arrived.specs]
        if weight > 0:
            self._accumulate(active, weight)
        self._weights.append(weight)
        self._labels.append(name)
        return self

    def merge(self, other: Fold) -> Fold:
        """Add all that another fold of the same rule has seen. Returns this fold; the other is not changed."""
        if other.rule != self.rule:
            raise RuleError(f"a fold of {other.rule} cannot be merged into one of {self.rule}")
        if other is self:
            raise RuleError("a fold cannot be merged into itself")
        if other._like is None:
            return self
        if self._like is None:
            self._like, self._sums = other._like, [s.copy() for s in other._sums]
        else:
            self._like.with_extras({"the other fold": other._like.rebuild(other._like.allocate())})
            for mine, theirs in zip(self._sums, other._sums, strict=True):
                np.add(mine, theirs, out=mine)
        self._weights += other._weights
        self._labels += other._labels
        return self

    def result(self) -> Aggregate:
        """The mean of what was added so far. The fold can go on."""
        if self._like is None:
            raise ContributionError("nothing was added to the fold")
        given = weights.check(self._weights, len(self), self._labels)
        total = float(np.sum(given))
        stored = self._like.allocate()
        for index, (array, sums) in enumerate(zip(stored, self._sums, strict=True)):
            dtypes.store(sums / total, array.reshape(-1), self._like.specs[index].dtype)
        return Aggregate(self._like.rebuild(stored), self.rule, tuple(self._labels), weights.normalise(given), {})

    def _fitted(self, contribution: Any, name: str) -> Contributions:
        """The contribution alone in a container, checked against those before it."""
        if self._like is None:
            return replace(gather([contribution]), labels=(name,))
        found = self._like.with_extras({name: contribution})
        return replace(found, labels=(name,), extras=(), rows=found.rows[-1:])

    def _accumulate(self, active: Active, weight: float) -> None:
        kernel = kernels.select(active.values)
        size = kernels.tile_size(2, 8)
        both = np.array([1.0, weight])
        for discrete in (False, True):
            for block in active.data.blocks(size, discrete=discrete):
                per = active.data.specs[block.tensor].dtype.per_item
                sums = self._sums[block.tensor][block.start * per : block.stop * per]
                (view,) = active.data.views(block, active.rows)
                kernel.weighted_sum([sums, view.astype(np.float64)], both, sums)
