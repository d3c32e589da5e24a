"""Rules in one line of text: ``median``, ``multi_krum:f=2``, ``nnm:f=1+geometric_median``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any

from pluribus.core.errors import RuleError

if TYPE_CHECKING:
    from pluribus.core.rule import Rule

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
_COMMON = ("fedavg", "mean", "median", "trimmed_mean", "geometric_median", "multi_krum", "nnm")
_ELSEWHERE = {
    "average": "mean",
    "avg": "mean",
    "arithmetic_mean": "mean",
    "fedavg": "mean, with the clients' numbers of samples as weights",
    "coordinate_median": "median",
    "coordinate_wise_median": "median",
    "cwmed": "median",
    "trmean": "trimmed_mean",
    "geomed": "geometric_median",
    "multikrum": "multi_krum",
    "fedopt": "fedadam",
}


def key(name: str) -> str:
    """A name as rules are registered: ``"Trimmed-Mean "`` is ``"trimmed_mean"``."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def split(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and options of the parts of a chain, which have ``+`` or ``>`` between them.

    No name begins with a digit, so a ``+`` ahead of one belongs to a number: ``1e+3``.

    Raises
    ------
    RuleError
        A place for a name is empty, or an option is not ``name=value``, or is there twice.
    """
    return [_part(part, text) for part in re.split(r"\+(?!\d)|>", text)]


def _part(part: str, text: str) -> tuple[str, dict[str, Any]]:
    head, *rest = (piece.strip() for piece in part.split(":"))
    name = key(head)
    if not name:
        raise RuleError(f"{text!r} has an empty place where a rule's name belongs, as in 'mean' or 'nnm+median'")
    options: dict[str, Any] = {}
    for piece in rest:
        option, equals, value = (bit.strip() for bit in piece.partition("="))
        if not (option and equals and value):
            raise RuleError(f"{text!r}: {piece!r} is no option; write {name}:name=value")
        if option in options:
            raise RuleError(f"{text!r}: {option} is given twice")
        options[option] = _value(value)
    return name, options


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _WORDS.get(text.lower(), text)


def unknown(name: str, names: Collection[str]) -> RuleError:
    """The error for a name that is none of ``names``: its name here, near names, or a few and where all are."""
    there = _ELSEWHERE.get(name, "")
    if there.partition(",")[0] in names:
        return RuleError(f"no rule is called {name!r}; here it is {there}")
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return RuleError(f"no rule is called {name!r}; did you mean {', '.join(near)}?")
    common = ", ".join(known for known in _COMMON if known in names) or ", ".join(sorted(names)[:5])
    return RuleError(f"no rule is called {name!r}; there are {common} and more: see pluribus catalog, or docs/rules.md")


def check_options(label: str, options: Iterable[str], legal: Collection[str]) -> None:
    """Raise `RuleError` where an option is none of the legal ones; it lists these, and a near one."""
    for option in options:
        if option not in legal:
            near = difflib.get_close_matches(option, legal, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RuleError(f"{label} takes {', '.join(legal) or 'no parameters'}, not {option}{hint}")


def default_of(field: Field[Any]) -> Any:
    """A field's default, ``MISSING`` if it has none."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def build(cls: type[Rule], options: Mapping[str, Any], label: str, also: Iterable[str] = ()) -> Rule:
    """A rule from its class and parameters.

    ``label`` is what messages call it; ``also`` are options that messages list beside its own.

    Raises
    ------
    RuleError
        Parameters that it does not take, or of which it can make nothing, or one that it needs and is not there.
    """
    check_options(label, options, [*(f.name for f in fields(cls)), *also])
    needed = [f.name for f in fields(cls) if default_of(f) is MISSING and f.name not in options]
    if needed:
        example = ":".join(f"{name}={dict(cls.example).get(name, 1)}" for name in needed)
        raise RuleError(f"{label} needs {', '.join(needed)}: write {f'{cls.name}:{example}'!r}")
    try:
        return cls(**options)
    except RuleError:
        raise
    except (TypeError, OverflowError, ValueError) as error:
        raise RuleError(f"{label}: {error}") from None
