"""Folds: contributions one at a time, in the memory of one model, with partial results that merge."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pluribus.core import dtypes, kernels, leaves, passes, tallies, weights
from pluribus.core.contributions import Contributions, TensorSpec, gather
from pluribus.core.dtypes import Array, DType
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, listing
from pluribus.core.leaves import Leaf
from pluribus.core.passes import Active
from pluribus.core.result import Aggregate
from pluribus.core.tallies import Tally

if TYPE_CHECKING:
    from pluribus.core.rule import Rule


@dataclass(eq=False)
class Fold:
    """A weighted mean under way: float64 sums, one a coordinate, and the weights so far.

    It holds one model of float64 sums, and adds, merges and rounds tile by tile: contributions are never kept, and
    there is never a second model but the result of `result`. `finish` makes that in the memory of the sums.

    Each sum is rounded to float64 as it grows: n contributions x_i of weights w_i give a mean that is off by at most
    ``(n + 2) 2^-53 sum w_i |x_i| / sum w_i``. Rounded to float32 that is the mean of float32 contributions, within one
    unit in the last place unless more than some 28 digits (binary) cancel. For float64 contributions `Mean` on all at
    once keeps the rounding errors too.

    ``add`` and ``merge`` either happen whole or not at all: a contribution is checked before it is added, so one with
    NaN leaves the fold as it was. (A file that changes between the check and the sum cannot be taken back: the fold
    then refuses to go on.) Results do not depend on how parts were merged, up to the rounding of float64 sums; dtypes
    and what becomes of counters are those of `Mean` on all contributions at once.
    """

    rule: Rule
    integers: str = "round"
    _like: Contributions | None = field(default=None, repr=False)
    _tallies: dict[str, Tally] = field(default_factory=dict, repr=False)
    _weights: list[float] = field(default_factory=list, repr=False)
    _labels: list[str] = field(default_factory=list, repr=False)
    _torn: str | None = field(default=None, repr=False)
    _spent: bool = field(default=False, repr=False)

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
        self._whole()
        name = str(label) if label is not None else f"contributor {len(self)}"
        weight = float(weights.check([1.0, weight], 2, ["the fold", name])[1])
        like, arrived = self._fitted(contribution, name)
        active = Active(arrived, (0,))
        bad = passes.scan(active) if weight > 0 else {}
        if bad:
            raise NonFiniteError(f"{name}: NaN or Inf in {listing(bad[0])}; it was not added")
        if self._like is None:
            self._tallies = {spec.name: Tally.empty(spec) for spec in like.specs}
        if weight > 0:
            self._torn = name
            self._accumulate(active, weight)
            self._torn = None
        self._like = like
        self._weights.append(weight)
        self._labels.append(name)
        return self

    def merge(self, other: Fold) -> Fold:
        """Add all that another fold of the same rule has seen. Returns this fold; the other is not changed."""
        if not isinstance(other, Fold):
            raise RuleError(f"only a fold can be merged into a fold, not a {type(other).__name__}")
        if other.rule != self.rule:
            raise RuleError(f"a fold of {other.rule} cannot be merged into one of {self.rule}")
        if other is self:
            raise RuleError("a fold cannot be merged into itself")
        self._whole()
        other._whole()
        if other._like is None:
            return self
        if self._like is None:
            like, tallies = other._like, {spec.name: Tally.empty(spec) for spec in other._like.specs}
        else:
            specs, row = other._like.specs, other._like.rows[0]
            hollow = other._like.structure.build({s.name: leaf for s, leaf in zip(specs, row, strict=True)})
            like, _ = self._fitted(hollow, "the other fold", {s.name: s.dtype for s in specs})
            tallies = self._tallies
        self._torn = "the other fold"
        for name, tally in tallies.items():
            tally.absorb(other._tallies[name])
        self._torn = None
        self._like, self._tallies = like, tallies
        self._weights += other._weights
        self._labels += other._labels
        return self

    def result(self) -> Aggregate:
        """The mean of what was added so far, in memory of its own. The fold can go on."""
        like, given = self._ready()
        stored = like.allocate()
        for spec, array in zip(like.specs, stored, strict=True):
            self._tallies[spec.name].store(given, array.reshape(-1), spec.dtype)
        return self._aggregate(like, given, stored)

    def finish(self) -> Aggregate:
        """The mean of what was added, in the memory of the sums: the fold has none any more, and cannot go on."""
        like, given = self._ready()
        self._spent = True
        stored = [self._tallies.pop(spec.name).become(given, spec) for spec in like.specs]
        return self._aggregate(like, given, stored)

    def _ready(self) -> tuple[Contributions, Array]:
        self._whole()
        if self._like is None:
            raise ContributionError("nothing was added to the fold")
        return self._like, weights.check(self._weights, len(self), self._labels)

    def _aggregate(self, like: Contributions, given: Array, stored: list[Array]) -> Aggregate:
        return Aggregate(like.rebuild(stored), self.rule, tuple(self._labels), weights.normalise(given), {})

    def _whole(self) -> None:
        if self._spent:
            raise ContributionError("the fold is finished; start a new one, or take result() from one that is to go on")
        if self._torn is not None:
            raise ContributionError(
                f"{self._torn} was added in part when it could no longer be read; start a new fold, or merge parts "
                "that are kept apart"
            )

    def _fitted(
        self, value: Any, name: str, dtypes_of: dict[str, DType] | None = None
    ) -> tuple[Contributions, Contributions]:
        """What the fold is like with one contribution more, and that one read as the fold is; both of one row."""
        if self._like is None:
            arrived = replace(gather([value]), labels=(name,))
            return arrived.template(), arrived
        row = self._like.with_extras({name: value}).rows[-1]
        wide = dtypes_of or {s.name: leaf.dtype for s, leaf in zip(self._like.specs, row, strict=True) if leaf}
        specs = tuple(_wider(spec, wide[spec.name], name, self._labels[0]) for spec in self._like.specs)
        kin = tuple(_kin(spec, mine, theirs) for spec, mine, theirs in zip(specs, self._like.rows[0], row, strict=True))
        like = replace(self._like, specs=specs, rows=(kin,))
        return like, replace(like, rows=(row,), labels=(name,))

    def _accumulate(self, active: Active, weight: float) -> None:
        kernel = kernels.select(active.values)
        size = kernels.tile_size(2, 8)
        for discrete in (False, True):
            for block in active.data.blocks(size, discrete=discrete):
                tally = self._tallies[active.data.specs[block.tensor].name]
                per = active.data.specs[block.tensor].dtype.per_item
                place = slice(block.start * per, block.stop * per)
                (view,) = active.data.views(block, active.rows)
                tallies.add(tally, place, view, weight, kernel)
                leaf = active.data.rows[0][block.tensor]
                if discrete and leaf is not None:
                    tally.agree(place, leaf.items(block.start, block.stop))
        for tally in self._tallies.values():
            tally.started = True


def _wider(spec: TensorSpec, dtype: DType, name: str, first: str) -> TensorSpec:
    found = dtypes.common({spec.dtype.name, dtype.name})
    if found is None or found.kind != spec.dtype.kind:
        raise ContributionError(
            f"{name}: {spec.label} is {dtype.name}, which has no common dtype of one kind with {spec.dtype.name} of "
            f"{first} and those after it; convert all to one"
        )
    return replace(spec, dtype=found)


def _kin(spec: TensorSpec, mine: Leaf | None, theirs: Leaf | None) -> Leaf | None:
    """The leaf, without data, whose kind of array the result has: one of the result's dtype if there is one."""
    assert mine is not None
    if theirs is None or mine.dtype == spec.dtype or leaves.device(mine):
        return mine
    return theirs.hollow() if theirs.dtype == spec.dtype or leaves.device(theirs) else mine
