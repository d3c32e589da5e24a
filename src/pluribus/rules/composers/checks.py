"""What composers ask of the rules that they are given."""

from __future__ import annotations

from typing import Any

from pluribus.core.errors import RuleError
from pluribus.core.rule import Rule


def a_rule(composer: str, name: str, value: Any) -> None:
    """Raise `RuleError` unless a parameter is a rule."""
    if not isinstance(value, Rule):
        advice = f"; pluribus.rules.get({value!r}) makes one" if isinstance(value, str) else ""
        raise RuleError(f"{composer}: {name} must be a rule, not {value!r}{advice}")
