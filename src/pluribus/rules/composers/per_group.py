"""A rule for each group of tensors: layer by layer, or by names."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pluribus.core import parts, weights
from pluribus.core.contributions import Contributions
from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError, listing
from pluribus.core.passes import Active
from pluribus.core.rule import Execute, Rule, register
from pluribus.rules.composers.checks import a_rule
from pluribus.rules.composers.several import Several
from pluribus.rules.coordinates.median import Median

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome

TENSOR = "tensor"
_WILD = frozenset("*?[")
_LOST = frozenset({"rotation", "mergeable"})  # what holds of every part but not of the whole


@dataclass(frozen=True)
class Group:
    """Tensors, by number, and the rule that combines them."""

    name: str
    tensors: tuple[int, ...]
    rule: Rule


@register
@dataclass(frozen=True)
class PerGroup(Several):
    """A rule for each group of tensors, blind to all others: each group has its own distances, choices and weights.

    Every tensor belongs to exactly one group, and an error names those that belong to none or to several. A group
    without any float (counters and masks only) has nothing to decide by, and is averaged under the given weights.
    With ``missing="absent"`` a contributor that lacks a whole group takes no part in it, whatever the rule reads.

    Parameters
    ----------
    rule
        For each group that has no rule of its own, and for all tensors that no pattern matches, taken together; None
        when there must be none of either.
    groups
        ``"tensor"``: each tensor is a group. A sequence of patterns: a group each. A mapping from patterns to rules.
        A pattern is a name, the beginning of names up to a ``.`` or ``/`` (``"encoder.3"``), or has wildcards
        (``"*.bias"``).
    """

    rule: Rule | None
    groups: Any = TENSOR

    name = "per_group"
    formula = "z^(g) = A_g(x_1^(g), ..., x_n^(g)) for each group g of tensors"
    source = "layer-wise rules, as in Wortsman et al.'s soups by layer and Jang et al., Model Stock, ECCV 2024"
    example = (("rule", Median()),)

    def __post_init__(self) -> None:
        if isinstance(self.groups, Mapping):
            object.__setattr__(self, "groups", tuple(self.groups.items()))
        elif isinstance(self.groups, str):
            if self.groups != TENSOR:
                raise RuleError(f"PerGroup: groups are {TENSOR!r}, patterns or a mapping, not {self.groups!r}")
        else:
            object.__setattr__(self, "groups", tuple(_pair(g, self.rule) for g in _listed(self.groups)))
        if self.groups == TENSOR or self.rule is not None:
            a_rule("PerGroup", "rule", self.rule)
        if self.groups != TENSOR:
            if not self.groups:
                raise RuleError("PerGroup: no groups; give patterns, or 'tensor' for each tensor by itself")
            for pattern, rule in self.groups:
                if not isinstance(pattern, str):
                    raise _no_groups(pattern)
                a_rule("PerGroup", f"the rule of {pattern!r}", rule)

    @property
    def _rules(self) -> tuple[Rule, ...]:
        own = () if self.groups == TENSOR else tuple(rule for _, rule in self.groups)
        return own if self.rule is None else (*own, self.rule)

    @property
    def laws(self) -> frozenset[str]:  # type: ignore[override]
        """What all declare, but for the rotation of one tensor into another, and folds."""
        return frozenset.intersection(*(rule.laws for rule in self._rules)) - _LOST

    def breakdown_factor(self, n: int, d: int) -> float:
        """Each group is off by no more than its rule's factor; there are no more groups than coordinates."""
        most = d if self.groups == TENSOR else min(d, len(self._rules))
        return float(np.sqrt(most)) * max(rule.breakdown_factor(n, d) for rule in self._rules)

    def assigned(self, names: Sequence[str]) -> list[Group]:
        """The groups of tensors of these names, in order.

        Raises
        ------
        RuleError
            A tensor in several groups, or in none; a pattern that matches no tensor.
        """
        if self.groups == TENSOR:
            assert self.rule is not None, "checked when it was made"
            return [Group(name, (k,), self.rule) for k, name in enumerate(names)]
        found: list[list[int]] = [[] for _ in self.groups]
        rest: list[int] = []
        for k, name in enumerate(names):
            hits = [g for g, (pattern, _) in enumerate(self.groups) if _matches(pattern, name)]
            if len(hits) > 1:
                told = " and ".join(repr(self.groups[g][0]) for g in hits)
                raise RuleError(f"PerGroup: tensor {name!r} is in the groups {told}; make the patterns disjoint")
            (found[hits[0]] if hits else rest).append(k)
        for (pattern, _), tensors in zip(self.groups, found, strict=True):
            if not tensors:
                near = difflib.get_close_matches(pattern.strip("*"), names, n=3, cutoff=0.3) or list(names)
                raise RuleError(f"PerGroup: no tensor matches {pattern!r}; there are {listing(near, 3)}")
        made = [Group(p, tuple(t), rule) for (p, rule), t in zip(self.groups, found, strict=True)]
        if rest and self.rule is None:
            told = listing([repr(names[k]) for k in rest])
            raise RuleError(f"PerGroup: {told} belong to no group; add a pattern, or rule= for the rest")
        if rest:
            assert self.rule is not None, "checked when it was made"
            made.append(Group("the rest", tuple(rest), self.rule))
        return made

    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """Run each group's rule on its tensors."""
        from pluribus.core.execution import Outcome, counted

        data = active.data
        result = data.allocate()
        outcomes = []
        for group in self.assigned([spec.name for spec in data.specs]):
            part = data.subset(group.tensors)
            places = [k for k, row in enumerate(active.rows) if any(leaf is not None for leaf in part.rows[row])]
            among = shares if len(places) == len(shares) else weights.normalise(shares[places])
            there = replace(active, data=part, rows=tuple(active.rows[k] for k in places))
            if not part.coordinates and group.rule.any_vectors:
                parts.average(active, shares, group.tensors, result)
                continue
            try:
                group.rule.check(len(places))
                outcome = execute(group.rule, there, among)
            except RuleError as error:
                raise type(error)(f"group {group.name!r}: {error}") from None
            parts.put(result, group.tensors, outcome.results[0])
            outcomes.append((group.rule, outcome, places, _size(part)))

        def of_all() -> Array:
            total = np.zeros(len(active.rows))
            for rule, outcome, places, size in outcomes:
                total[places] += size * counted(rule, outcome)
            return total / sum(size for *_, size in outcomes) if outcomes else shares

        return Outcome(active, [result], counted=of_all)

    def __str__(self) -> str:
        told = repr(TENSOR) if self.groups == TENSOR else "{" + ", ".join(f"{p!r}: {r}" for p, r in self.groups) + "}"
        return f"PerGroup({self.rule}, {told})"


def _listed(groups: Any) -> list[Any]:
    try:
        return list(groups)
    except TypeError:
        raise _no_groups(groups) from None


def _pair(group: Any, rule: Rule | None) -> tuple[Any, Any]:
    if isinstance(group, str):
        return group, rule
    if not isinstance(group, (tuple, list)) or len(group) != 2:
        raise _no_groups(group)
    return group[0], group[1]


def _no_groups(given: Any) -> RuleError:
    return RuleError(
        f"PerGroup: groups are {TENSOR!r}, a list of patterns of tensors' names, or a mapping from patterns to rules, "
        f"not {given!r}"
    )


def per_group(rule: Rule | None, groups: Any = TENSOR) -> PerGroup:
    """A rule for each group of tensors; see `PerGroup`.

    ``per_group(Krum(f=2), "tensor")``, ``per_group(None, {"encoder": Median(), "head": Mean()})``.
    """
    return PerGroup(rule, groups)


def _matches(pattern: str, name: str) -> bool:
    if _WILD & set(pattern):
        return fnmatch.fnmatchcase(name, pattern)
    return name == pattern or (name.startswith(pattern) and name[len(pattern)] in "./")


def _size(data: Contributions) -> int:
    """Coordinates, or items where all are whole numbers."""
    return data.coordinates or sum(spec.size for spec in data.specs)
