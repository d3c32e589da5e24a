"""The errors of the project: each says what was wrong, with which contributor, and what to do."""

from __future__ import annotations

import importlib
from types import ModuleType


class PluribusError(Exception):
    """Base of every error that the library raises on purpose."""


class ContributionError(PluribusError, ValueError):
    """Contributions that cannot be combined: none at all, other names, other shapes, other kinds of number."""


class NonFiniteError(ContributionError):
    """A contribution holds NaN or Inf, or is too large to be squared."""


class WeightError(PluribusError, ValueError):
    """Weights that are no weights: wrong length, negative, NaN, all zero."""


class RuleError(PluribusError, ValueError):
    """A rule that does not exist, or parameters under which it says nothing."""


class UndefinedError(RuleError):
    """Contributions for which a rule has no answer, though its parameters are right: antipodal points on a sphere."""


class FileError(PluribusError, ValueError):
    """A file that is not what its name promises: truncated, overlapping, of an unknown dtype."""


class MissingExtraError(PluribusError, ImportError):
    """An optional package is not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``, or say in one sentence which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs {module.partition('.')[0]}, which is not installed: {install(extra)}"
        ) from error


def install(extra: str) -> str:
    """How to get an extra."""
    return f"pip install 'pluribus[{extra}]' (in a clone: pip install '.[{extra}]')"


def listing(items: list[str], most: int = 5) -> str:
    """Up to ``most`` items in one line, and how many more there are."""
    shown = ", ".join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
