"""What rules ask of their parameters: errors that name the rule, the parameter and what it may be.

Whole and positive numbers are checked by `pluribus.core.rule.whole_number` and `positive`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from pluribus.core.errors import RuleError


def flag(rule: str, name: str, value: Any) -> None:
    """Raise `RuleError` unless a parameter is True or False: a text such as ``"no"`` would count as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise RuleError(f"{rule}: {name} must be True or False, not {value!r}")


def one_of(rule: str, name: str, value: Any, allowed: Sequence[str] | Sequence[int]) -> None:
    """Raise `RuleError` unless a parameter is one of some words, or of some whole numbers; True is no number."""
    kind = str if isinstance(allowed[0], str) else (int, np.integer)
    if not isinstance(value, kind) or isinstance(value, bool) or value not in allowed:
        told = [repr(one) for one in allowed]
        either = " or ".join(told) if len(told) == 2 else f"one of {', '.join(told)}"
        raise RuleError(f"{rule}: {name} must be {either}, not {value!r}")


def is_real(value: Any) -> bool:
    """Whether a parameter is a real number, infinite or NaN ones too, that float64 holds; True is none."""
    if isinstance(value, (bool, np.bool_)):
        return False
    if isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return isinstance(value, (float, np.floating, np.integer))
