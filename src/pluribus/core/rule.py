"""Rules: a choice of how to relate, how to weigh and how to combine.

Most rules are one of three kinds, each small algebra that never sees a whole contribution:

* `WeightRule`: weights from a relation, then a weighted mean (Krum, geometric median, ...);
* `CoordinateRule`: something done at each coordinate alone (median, trimmed mean, ...);
* `PreRule`: contributions made from contributions, X' = M X, ahead of another rule (clipping, NNM, ...).

A `PointRule` combines points of a space that is not flat, such as rows on a sphere or labels.
`chain` puts pre-rules ahead of a rule, and a `PresetRule` is a chain under a name of its own; a `CompositeRule` is made
of rules in some other way.
How a rule is run is in `pluribus.core.execution`; how names and rules find each other, in `pluribus.core.registry`.
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError
from pluribus.core.kernels.weighted import covered_shares
from pluribus.core.parameters import is_real
from pluribus.core.passes import Active, TileRule, shares_in_order
from pluribus.core.registry import get as get  # noqa: PLC0414 - rules find here what they need
from pluribus.core.registry import register as register  # noqa: PLC0414 - likewise
from pluribus.core.registry import registered as registered  # noqa: PLC0414 - likewise
from pluribus.core.relations import Gram, Norms, Reads, Relation

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome
    from pluribus.core.fold import Fold
    from pluribus.core.result import Aggregate


Execute = Callable[["Rule", Active, Array], "Outcome"]


@dataclass(frozen=True)
class Rule(ABC):  # noqa: B024 - its three kinds have the abstract methods
    """``rule(contributions, weights=None) -> Aggregate``: immutable, printable, picklable, composable.

    Class attributes of a named rule
    --------------------------------
    name
        What `pluribus.rules.get` and ``aggregate(rule=...)`` call it.
    reads
        The statistic that it needs to decide.
    laws
        Names of the laws that it declares (`pluribus.laws`).
    numbers
        Its numbers in the catalogue, if it is there.
    formula, source
        The rule in one line, and where it was published.
    uses_reference
        Whether ``reference=`` (a previous result or a trusted contribution) means something to it.
    needs_reference
        What the reference is to a rule that means nothing without one: ``"the base model"``.
    uses_previous
        Whether ``previous=``, the reference of the round before, means something to it.
    of_models
        Whether contributions are models, and the reference the one that they were trained from, where that makes a
        difference: a server then gives it models, and not updates.
    precision
        Relative precision of an iterative rule, beyond rounding.
    example
        Parameters with which its laws are checked.
    any_vectors
        Whether contributions may be any vectors. Laws about moving, scaling and turning vectors say nothing of other
        rules, unless these declare them; their law checks `draw` contributions that they take.
    takes_tensors
        Whether contributions and results may be torch tensors on their device. A rule that does not take them sees
        numpy arrays, whatever the contributions are. (Tile rules of coordinates say so one by one: `passes.by_kernel`.)
    """

    name: ClassVar[str] = ""
    reads: ClassVar[Reads] = Reads.NOTHING
    laws: ClassVar[frozenset[str]] = frozenset()
    numbers: ClassVar[tuple[int, ...]] = ()
    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""
    uses_reference: ClassVar[bool] = False
    needs_reference: ClassVar[str] = ""
    uses_previous: ClassVar[bool] = False
    of_models: ClassVar[bool] = False
    precision: ClassVar[float] = 0.0
    example: ClassVar[tuple[tuple[str, Any], ...]] = ()
    any_vectors: ClassVar[bool] = True
    takes_tensors: ClassVar[bool] = True

    def __call__(
        self,
        contributions: Any,
        weights: Any = None,
        *,
        reference: Any = None,
        previous: Any = None,
        nonfinite: str = "raise",
        missing: str = "error",
        integers: str = "round",
        engine: Any = None,
        out: str | Path | None = None,
    ) -> Aggregate:
        """Combine contributions into one result.

        Parameters
        ----------
        contributions
            n contributions of one shape; see `pluribus.core.contributions.gather`. They are never modified.
        weights
            n non-negative numbers, of any scale; None is uniform. A contributor of weight zero is as good as absent.
        reference
            One more contribution, for rules that use one: the previous result, a trusted update, a base model.
        previous
            Another one, for rules that look at the last step: what the reference was a round before.
        nonfinite
            What becomes of a contributor with NaN or Inf: ``"raise"`` an error that names it, ``"drop"`` it, or
            read its bad numbers as ``"zero"``.
        missing
            ``"error"``, or ``"absent"``: tensors that some contributors lack are combined from those that have them.
        integers
            Counters and masks take no part in distances. ``"round"``: combined like the rest with weights of sum
            one, then rounded; ``"max"``, ``"first"``; or ``"error"``.

        engine
            Where passes run: None or ``"threads"``; ``"processes"``, ``"ray"`` or any ``concurrent.futures`` executor,
            for contributions that are files. The bits do not depend on it. Torch tensors that all lie on one CUDA
            device are combined there, and on the CPU with ``"torch"``; the bits are that device's, and on the CPU
            those of the other engines. ``"threads"`` takes tensors through the CPU's memory, wherever they lie.
        out
            Path of a ``.safetensors`` file for the result, written range by range, which need not fit in memory. The
            result's ``value`` is then the path.

        Returns
        -------
        Aggregate
            The result and why.
        """
        from pluribus.core import execution

        options = execution.Options(nonfinite, missing, integers, engine, _path(out))
        return execution.run(self, contributions, weights, {"reference": reference, "previous": previous}, options)

    def __rshift__(self, then: Rule) -> Chain:
        """``first >> then`` is ``chain(first, then)``."""
        return chain(self, then)

    @property
    def least(self) -> int:
        """Fewest contributors under which the rule means something."""
        return 1

    def tolerates(self, n: int) -> int:
        """How many arbitrary contributors of n it withstands: its declared breakdown point."""
        return 0

    def breakdown_factor(self, n: int, d: int) -> float:
        """With `tolerates` attackers of n the result stays within this factor of the honest spread of honest ones.

        The honest spread is the largest distance between two honest contributions.
        """
        return float(np.sqrt(d))

    def draw(self, x: Array) -> Array:
        """Contributions that the rule takes, shape (n, ...), made from any matrix (n, d), for its law checks.

        Each is made of its own row alone, so that equal rows give equal contributions.
        """
        return x

    def reads_beside(self, extras: Sequence[str]) -> Reads:
        """The statistic that it needs when these extra rows are given: ``reads``, or less where some are missing."""
        return self.reads

    def check(self, n: int) -> None:
        """Raise `RuleError` when n contributors are too few."""
        if n < self.least:
            raise RuleError(f"{self} needs at least {self.least} contributors, and got {n}")

    def fold(self, integers: str = "round") -> Fold:
        """An empty fold that takes contributions one at a time, for rules that are folds."""
        raise RuleError(f"{self} must see all contributions at once; only the mean can take them one at a time")

    def __str__(self) -> str:
        told = ", ".join(
            f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default
        )
        return f"{type(self).__name__}({told})"


def _path(out: Any) -> Path | None:
    """Where a result is written, if it is."""
    if out is None:
        return None
    path = os.fspath(out) if isinstance(out, os.PathLike) else out
    if not isinstance(path, str):
        raise RuleError(f"out must be the path of a .safetensors file, such as 'result.safetensors', not {out!r}")
    return Path(path)


class WeightRule(Rule):
    """A rule whose result is a weighted sum of the contributions (and of the reference, if it uses one)."""

    @abstractmethod
    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients over the rows, shape (m,), from the relation and the given weights, shape (n,), of sum one.

        Extra rows may be left out, shape (n,): they count for nothing then.

        ``relation`` is a `Gram`, a `Norms` or None, as ``reads`` says; m = n + number of extra rows.
        """


class CoordinateRule(Rule):
    """A rule that works on each coordinate alone."""

    reads = Reads.COORDINATES

    @abstractmethod
    def tile_rule(self, weights: Array) -> TileRule:
        """A function ``(kernel, views, out) -> finite`` for one tile, under given weights of sum one, shape (n,).

        Wrapped in `pluribus.core.passes.Placed` where it must know the tile's place. Marked by
        `pluribus.core.passes.by_kernel` where all that it does is to call the kernel.
        """

    def tile_shares(self, tile: Array, weights: Array) -> Array | None:
        """What each value of a tile, shape (n, T), counts for at its coordinate; None where that means nothing.

        ``weights`` are those given to `tile_rule`: of sum one, shape (n,).
        """
        return None


class RankRule(CoordinateRule):
    """A rule that works on the sorted values at each coordinate."""

    @abstractmethod
    def levels(self, n: int) -> tuple[float, float]:
        """Between which levels of cumulative weight the values of n contributors are averaged; twice a quantile's."""

    def tile_shares(self, tile: Array, weights: Array) -> Array:
        """How much of the weight between the levels is whose; values that tie share it by their weights."""
        levels = self.levels(len(tile))
        return shares_in_order(tile, weights, lambda values, held: np.asarray(covered_shares(held, *levels)))


class PreRule(Rule):
    """A rule that makes contributions from contributions. Called alone it is followed by the mean.

    Class attribute
    ---------------
    merges
        Whether what it makes may hold several contributions. Norms follow no such thing: a rule behind it that reads
        norms is given the Gram matrix, which holds them.
    """

    merges: ClassVar[bool] = True

    @abstractmethod
    def mix(self, relation: Relation | None, weights: Array) -> Array:
        """M of shape (k, m): new contribution i is ``sum_j M_ij x_j``. Most pre-rules keep their number, k = n."""

    def carry(self, mixing: Array, weights: Array) -> Array:
        """Weights of the new contributions, shape (k,), from M and the old ones: the old ones, where k = n."""
        return weights

    def leaves(self, n: int) -> int:
        """How many contributions it makes of n."""
        return n


class CompositeRule(Rule):
    """A rule made of other rules that is neither weights, nor coordinates, nor a chain of these.

    One that sees contributions and results through passes and other rules alone may say that it ``takes_tensors``.
    """

    reads = Reads.COORDINATES
    takes_tensors = False

    @abstractmethod
    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """Run: ``execute(rule, active, shares)`` runs a part of it. ``shares`` are weights of sum one, shape (n,)."""


class PointRule(Rule):
    """A rule on points of a space: the last axes of every tensor are a point, the others index many of them.

    Class attributes
    ----------------
    axes
        How many last axes are a point: 0 for a label, 1 for a vector, 2 for a matrix.
    whole
        Whether points are made of whole numbers (labels, ranks). Then tensors of integers and booleans are points, and
        others are refused; else tensors of floats are points, and counters and masks are averaged as ever.
    masks
        Whether booleans are points of a rule on whole numbers.
    """

    reads = Reads.POINTS
    any_vectors = False
    takes_tensors = False
    axes: ClassVar[int] = 1
    whole: ClassVar[bool] = False
    masks: ClassVar[bool] = True

    @abstractmethod
    def combine(self, points: Array, weights: Array) -> Array:
        """m points of shape (m, ...) from n contributors' points, shape (n, m, ...), under weights of sum one, (n,).

        float64 in and out, or the tensor's own integers. Raises `UndefinedError` where the points have no answer.
        """

    @abstractmethod
    def complaint(self, points: Array, rounding: float) -> tuple[int, str] | None:
        """The number of the first of one contributor's points, shape (m, ...), that is none, and what is wrong with it.

        As in ``(3, "has norm 1.2; points must ...")``; None where all are points. ``rounding`` is the relative spacing
        of the numbers as the contributor stored them.
        """

    @abstractmethod
    def squared_distances(self, points: Array, others: Array) -> Array:
        """Squared distances of pairs of points in the space, shape (m,), from two arrays (m, ...)."""


class PresetRule(Rule):
    """A chain under a name of its own; pre-rules may go ahead of it."""

    @abstractmethod
    def chained(self) -> Chain:
        """What it is a name for."""

    @property
    def takes_tensors(self) -> bool:  # type: ignore[override]
        """As what it is a name for."""
        return self.chained().takes_tensors


@dataclass(frozen=True)
class Chain(Rule):
    """Pre-rules, then a rule. Built by `chain`."""

    steps: tuple[Rule, ...]

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        """The dearest statistic that a step reads to decide."""
        return max((step.reads for step in self.steps), key=list(Reads).index)

    @property
    def uses_reference(self) -> bool:  # type: ignore[override]
        """Whether a step uses it."""
        return any(step.uses_reference for step in self.steps)

    @property
    def needs_reference(self) -> str:  # type: ignore[override]
        """What the first step that needs one needs."""
        return next((step.needs_reference for step in self.steps if step.needs_reference), "")

    @property
    def uses_previous(self) -> bool:  # type: ignore[override]
        """Whether a step uses it."""
        return any(step.uses_previous for step in self.steps)

    @property
    def of_models(self) -> bool:  # type: ignore[override]
        """Whether a step is of models."""
        return any(step.of_models for step in self.steps)

    @property
    def takes_tensors(self) -> bool:  # type: ignore[override]
        """Whether all steps do."""
        return all(step.takes_tensors for step in self.steps)

    @property
    def least(self) -> int:
        """The most that a step needs."""
        return next(n for n in itertools.count(1) if self._complaint(n) is None)

    def tolerates(self, n: int) -> int:
        """What the last rule withstands of what the pre-rules leave."""
        for step in self.steps[:-1]:
            n = step.leaves(n) if isinstance(step, PreRule) else n
        return self.steps[-1].tolerates(n)

    def check(self, n: int) -> None:
        """Check each step on what the one before it leaves."""
        complaint = self._complaint(n)
        if complaint is not None:
            raise complaint

    def _complaint(self, n: int) -> RuleError | None:
        for step in self.steps:
            try:
                step.check(n)
            except RuleError as error:
                return error
            n = step.leaves(n) if isinstance(step, PreRule) else n
        return None

    def __str__(self) -> str:
        return f"chain({', '.join(map(str, self.steps))})"

    __repr__ = __str__


def chain(*rules: Rule) -> Chain:
    """Pre-rules ahead of a rule: ``chain(NNM(f=2), GeometricMedian())``.

    All but the last must be pre-rules (or chains of them); a last pre-rule is followed by the mean.
    """
    flat: list[Rule] = []
    for rule in rules:
        if not isinstance(rule, Rule):
            raise RuleError(f"chain takes rules, not a {type(rule).__name__}")
        flat.extend(rule.steps if isinstance(rule, Chain) else [rule])
    if not flat:
        raise RuleError("chain needs at least one rule")
    for step in flat[:-1]:
        if not isinstance(step, PreRule):
            raise RuleError(f"{step} gives one result, so nothing can follow it; put it last in the chain")
    return Chain(tuple(flat))


Last = WeightRule | CoordinateRule | CompositeRule | PointRule


def steps(rule: Rule) -> tuple[tuple[PreRule, ...], Last]:
    """The pre-rules of a rule and what follows them; the mean after pre-rules alone."""
    parts: Sequence[Rule] = rule.steps if isinstance(rule, Chain) else (rule,)
    pre = tuple(p for p in parts if isinstance(p, PreRule))
    last = parts[-1]
    if isinstance(last, PresetRule):
        inner, final = steps(last.chained())
        return (*pre, *inner), final
    if isinstance(last, PreRule):
        return pre, _GivenWeights()
    if not isinstance(last, Last):
        raise RuleError(f"{last} is not a WeightRule, CoordinateRule, PointRule, PreRule or CompositeRule")
    if pre and isinstance(last, CompositeRule):
        raise RuleError(f"{last} is made of rules; put {pre[0]} inside of it, ahead of one of them")
    if pre and isinstance(last, PointRule):
        raise RuleError(f"{last} combines points of a space, and weighted sums made by {pre[0]} would leave it")
    return pre, last


@dataclass(frozen=True)
class _GivenWeights(WeightRule):
    """The mean with the given weights."""

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        return weights


def expect_gram(relation: Relation | None) -> Gram:
    """The relation of a rule that reads the Gram matrix."""
    assert isinstance(relation, Gram), "the execution gives what the rule reads"
    return relation


def expect_norms(relation: Relation | None) -> Norms | Gram:
    """The relation of a rule that reads norms; the Gram matrix, when a chain has it, holds them too."""
    assert relation is not None, "the execution gives what the rule reads"
    return relation


def whole_number(rule: str, name: str, value: Any, low: int) -> None:
    """Raise `RuleError` unless a parameter is a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise RuleError(f"{rule}: {name} must be a whole number of at least {low}, not {value!r}")


def positive(rule: str, name: str, value: Any, *, zero: bool = False, infinite: bool = False) -> None:
    """Raise `RuleError` unless a parameter is a positive number."""
    real = is_real(value)
    number = float(value) if real else np.nan
    if not (number > 0 or (zero and number == 0)) or (np.isinf(number) and not infinite):
        what = f"a {'non-negative' if zero else 'positive'} number"
        if isinstance(value, int) and not isinstance(value, bool) and not real:
            also = ", or float('inf')" if infinite else ""
            raise RuleError(
                f"{rule}: {name} must be {what} that float64 holds (below 1.8e308){also}; it has "
                f"{value.bit_length()} bits"
            )
        raise RuleError(f"{rule}: {name} must be {what}, not {value!r}")
