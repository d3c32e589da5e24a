"""The named rules: which class a name means, and rules made from names or one line of text."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from pluribus.core.errors import RuleError

if TYPE_CHECKING:
    from pluribus.core.rule import Rule

_REGISTRY: dict[str, type[Rule]] = {}
Named = TypeVar("Named", bound="type[Rule]")


def register(cls: Named) -> Named:
    """Class decorator: make a rule known under its ``name``."""
    if not cls.name or cls.name in _REGISTRY:
        raise RuleError(f"{cls.__name__} needs a name of its own, and {cls.name!r} is none")
    _REGISTRY[cls.name] = cls
    return cls


def registered() -> dict[str, type[Rule]]:
    """All named rules, by name."""
    return dict(sorted(_REGISTRY.items()))


def get(name: str, /, **parameters: Any) -> Rule:
    """The rule of that name: ``get("multi_krum", f=2, m=3)``, or as one text, ``get("nnm:f=1+geometric_median")``.

    The names in a text make a chain; parameters beside it go to each part that takes them and does not say them.

    Raises
    ------
    RuleError
        No such rule (the message lists near names), or parameters that it does not take.
    """
    from pluribus.core import ruletext
    from pluribus.core.rule import chain

    parts = ruletext.split(name)
    for key, _ in parts:
        if key not in _REGISTRY:
            raise ruletext.unknown(key, _REGISTRY)
    legal = {f.name for key, _ in parts for f in fields(_REGISTRY[key])}
    label = _REGISTRY[parts[0][0]].__name__ if len(parts) == 1 else name
    ruletext.check_options(label, parameters, sorted(legal))
    made = []
    for key, options in parts:
        cls = _REGISTRY[key]
        own = {f.name: parameters[f.name] for f in fields(cls) if f.name in parameters}
        made.append(ruletext.build(cls, own | options, cls.__name__))
    return made[0] if len(made) == 1 else chain(*made)
