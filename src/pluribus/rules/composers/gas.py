"""Gradient splitting: a robust rule on groups of coordinates tells who is to be trusted with the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pluribus.core import parts, passes
from pluribus.core.contributions import Block, Contributions
from pluribus.core.dtypes import Array
from pluribus.core.errors import ContributionError
from pluribus.core.passes import Active, Tainted
from pluribus.core.relations import Reads
from pluribus.core.rule import CompositeRule, Execute, Rule, WeightRule, register, steps, whole_number
from pluribus.rules.composers.checks import a_rule
from pluribus.rules.coordinates.median import Median

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome

_PIECE = 1 << 15  # items of the longest run of coordinates that stays together
_SHORT = 1 << 13  # items from which a run is worth a block of its own
_PIECES = 64  # runs that a group has, where there are coordinates enough


@register
@dataclass(frozen=True)
class Gas(CompositeRule):
    """Weighted mean of the n - f contributors that lie nearest to a robust result, group by group of coordinates.

    Coordinates are split into p groups of equal size. On each the base rule gives a result, and a contributor's score
    is the sum over groups of its distance to that result. The f with the highest scores are dropped; ties go to the
    earlier contributor. In a group of few coordinates honest contributors differ less, so a base rule that fails on the
    whole (by the curse of dimension, or since honest ones are unlike) finds attackers there.

    The paper deals single coordinates to groups at random, which would gather from all over memory. Here runs of up to
    32768 neighbours are dealt, at random by the seed, at least 64 to a group where there are coordinates enough (so
    single coordinates, where there are few): groups are as mixed, and the stream stays a stream. Distances to a linear
    base rule's result come from each group's Gram matrix; other base rules take a pass to run and one to measure.

    Parameters
    ----------
    base
        Any rule; n must suffice for it.
    f
        How many contributors are dropped; n >= 2f + 1. Zero gives the plain weighted mean.
    p
        How many groups; as many as coordinates, if these are fewer. One compares whole contributions.
    seed
        Deals the runs of coordinates to groups; None leaves neighbours together, in p contiguous groups.
    """

    base: Rule
    f: int
    p: int = 100
    seed: int | None = 0

    name = "gas"
    numbers = (78,)
    formula = "weighted mean of the n-f lowest s_i = sum_g |x_i^(g) - A(x_1^(g), ..., x_n^(g))|"
    source = "Liu et al., Byzantine-Robust Learning on Heterogeneous Data via Gradient Splitting, ICML 2023"
    example = (("base", Median()), ("f", 1), ("p", 2))

    def __post_init__(self) -> None:
        a_rule("Gas", "base", self.base)
        whole_number("Gas", "f", self.f, 0)
        whole_number("Gas", "p", self.p, 1)
        if self.seed is not None:
            whole_number("Gas", "seed", self.seed, 0)

    @property
    def laws(self) -> frozenset[str]:  # type: ignore[override]
        """Who is chosen turns on distances, so what moves and scales these alike is kept if the base keeps it."""
        always = {"unanimity", "null", "betweenness", "deterministic"}
        return frozenset(always | (self.base.laws & {"anonymity", "translation", "scale", "breakdown"}))

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        """As the base rule, and distances besides."""
        return max((self.base.reads, Reads.GRAM), key=list(Reads).index)

    @property
    def uses_reference(self) -> bool:  # type: ignore[override]
        """As the base rule."""
        return self.base.uses_reference

    @property
    def needs_reference(self) -> str:  # type: ignore[override]
        """As the base rule."""
        return self.base.needs_reference

    @property
    def uses_previous(self) -> bool:  # type: ignore[override]
        """As the base rule."""
        return self.base.uses_previous

    @property
    def of_models(self) -> bool:  # type: ignore[override]
        """As the base rule."""
        return self.base.of_models

    @property
    def any_vectors(self) -> bool:  # type: ignore[override]
        """As the base rule."""
        return self.base.any_vectors

    @property
    def takes_tensors(self) -> bool:  # type: ignore[override]
        """As the base rule."""
        return self.base.takes_tensors

    def draw(self, x: Array) -> Array:
        """As the base rule."""
        return self.base.draw(x)

    @property
    def least(self) -> int:
        """An honest majority, and what the base rule needs."""
        return max(2 * self.f + 1, self.base.least)

    def tolerates(self, n: int) -> int:
        """What is dropped, as far as the base rule withstands it."""
        return min(self.f, self.base.tolerates(n))

    def breakdown_factor(self, n: int, d: int) -> float:
        """Nobody is kept who is farther from the base results, summed over groups, than all honest ones."""
        return (2 * self.base.breakdown_factor(n, d) + 1) * min(self.p, d)

    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """Score group by group, drop the f highest, and average the others."""
        from pluribus.core.execution import Outcome

        scores = self.scores(active, shares, execute)
        kept = np.argsort(scores, kind="stable")[: len(shares) - self.f]
        coefficients = np.zeros(len(active.all_rows))
        coefficients[kept] = shares[kept] / shares[kept].sum()
        return Outcome(active, passes.weighted_sums(active, coefficients[None]), coefficients=coefficients)

    def scores(self, active: Active, shares: Array, execute: Execute) -> Array:
        """Sum over groups of each contributor's distance to the base rule's result, shape (n,)."""
        if active.data.incomplete:
            raise ContributionError(f"{self} compares whole contributions, and some lack tensors")
        total = np.zeros(len(shares))
        try:
            for blocks in split(active.data, self.p, self.seed):
                with np.errstate(over="ignore"):  # farther than float64 goes: as far as can be
                    total += self._distances(replace(active, data=_part(active.data, blocks)), shares, execute)
        except Tainted:
            passes.blame(active)  # by the names of tensors, not of their ranges
            raise
        return total

    def _distances(self, group: Active, shares: Array, execute: Execute) -> Array:
        from pluribus.core.execution import any_unit, as_read, coefficients_of, needed

        pre, last = steps(self.base)
        if isinstance(last, WeightRule):
            gram = passes.gram(group, scaled=any_unit(*pre, last))
            read = as_read(needed(pre, last, gram.extras), gram)
            coefficients = coefficients_of(pre, last, read, shares, len(group.all_rows))
            return gram.distances_to(coefficients)[: gram.n]
        result = execute(self.base, group, shares).results[0]
        return passes.distances_to(group, result)


def gas(base: Rule, f: int, p: int = 100, seed: int | None = 0) -> Gas:
    """Gradient splitting over a base rule; see `Gas`."""
    return Gas(base, f, p, seed)


def _part(data: Contributions, blocks: Sequence[Block]) -> Contributions:
    """A group of ranges, in place where they are long, and in a copy where they are short."""
    longest = max((block.stop - block.start for block in blocks), default=0)
    return data.ranges(blocks) if len(blocks) == 1 or longest >= _SHORT else parts.gathered(data, blocks)


def split(data: Contributions, p: int, seed: int | None) -> list[list[Block]]:
    """p groups of ranges of floats, whose sizes differ by one item at most; counters belong to none.

    Parameters
    ----------
    data
        Contributions with d items.
    p
        How many groups; d, if that is fewer.
    seed
        Deals runs of items to groups; None deals none, so that each group is one stretch of all tensors in a row.
    """
    whole = [Block(k, 0, spec.size) for k, spec in enumerate(data.specs) if not spec.dtype.discrete and spec.size]
    items = sum(block.stop for block in whole)
    p = max(1, min(p, items))
    if seed is None:
        return _cut(whole, items, p)
    runs: Sequence[Block] = data.blocks(max(1, min(_PIECE, items // (p * _PIECES))), discrete=False)
    order = np.random.default_rng(seed).permutation(len(runs))
    groups = _cut([runs[int(k)] for k in order], items, p)
    return [_joined(sorted(group, key=lambda b: (b.tensor, b.start))) for group in groups]


def _cut(blocks: Sequence[Block], items: int, p: int) -> list[list[Block]]:
    """Cut a row of blocks into p groups of nearly equal size."""
    groups: list[list[Block]] = [[] for _ in range(p)]
    number, room = 0, items // p + (items % p > 0)
    for block in blocks:
        start = block.start
        while start < block.stop:
            if not room:
                number += 1
                room = items // p + (number < items % p)
            stop = min(block.stop, start + room)
            groups[number].append(Block(block.tensor, start, stop))
            room -= stop - start
            start = stop
    return groups


def _joined(blocks: Sequence[Block]) -> list[Block]:
    """Neighbours made one."""
    made: list[Block] = []
    for block in blocks:
        if made and made[-1].tensor == block.tensor and made[-1].stop == block.start:
            made[-1] = Block(block.tensor, made[-1].start, block.stop)
        else:
            made.append(block)
    return made
