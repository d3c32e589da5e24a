"""What a rule made of several others asks for: as much as the most demanding of them."""

from __future__ import annotations

from abc import abstractmethod

from pluribus.core.dtypes import Array
from pluribus.core.relations import Reads
from pluribus.core.rule import CompositeRule, Rule


class Several(CompositeRule):
    """A rule that runs several rules on the same contributors."""

    @property
    @abstractmethod
    def _rules(self) -> tuple[Rule, ...]:
        """The rules, one at least."""

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        """The dearest of all."""
        return max((rule.reads for rule in self._rules), key=list(Reads).index)

    @property
    def uses_reference(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(rule.uses_reference for rule in self._rules)

    @property
    def needs_reference(self) -> str:  # type: ignore[override]
        """What the first that needs one needs."""
        return next((rule.needs_reference for rule in self._rules if rule.needs_reference), "")

    @property
    def uses_previous(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(rule.uses_previous for rule in self._rules)

    @property
    def of_models(self) -> bool:  # type: ignore[override]
        """Whether one of them is."""
        return any(rule.of_models for rule in self._rules)

    @property
    def precision(self) -> float:  # type: ignore[override]
        """The coarsest of all."""
        return max(rule.precision for rule in self._rules)

    @property
    def any_vectors(self) -> bool:  # type: ignore[override]
        """Whether all take any vectors."""
        return all(rule.any_vectors for rule in self._rules)

    @property
    def takes_tensors(self) -> bool:  # type: ignore[override]
        """Whether all do."""
        return all(rule.takes_tensors for rule in self._rules)

    def draw(self, x: Array) -> Array:
        """As the first draws that is choosy."""
        return next((rule for rule in self._rules if not rule.any_vectors), self._rules[0]).draw(x)

    @property
    def least(self) -> int:
        """What all need."""
        return max(rule.least for rule in self._rules)

    def check(self, n: int) -> None:
        """All must do with n."""
        for rule in self._rules:
            rule.check(n)

    def tolerates(self, n: int) -> int:
        """What all withstand."""
        return min(rule.tolerates(n) for rule in self._rules)
