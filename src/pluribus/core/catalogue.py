"""Every named method that is built, read from the code itself."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pluribus.core import ruletext
from pluribus.core.errors import RuleError
from pluribus.core.registry import get, registered
from pluribus.core.rule import Rule

# Rooms that register methods: the room, and the module whose `registered()` gives classes or entries by name. They are
# named here and imported when asked for, because the core knows no room.
REGISTRIES = (
    ("rules", "pluribus.rules"),
    ("federated", "pluribus.federated.server"),
    ("federated", "pluribus.federated.methods"),
)


@dataclass(frozen=True)
class Entry:
    """One method: its numbers in the catalogue (none if it is not there), name, room and place in the code."""

    numbers: tuple[int, ...]
    name: str
    room: str
    where: str
    status: str = "built"

    def plain(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {**asdict(self), "numbers": list(self.numbers)}


def entries() -> list[Entry]:
    """All methods: those with numbers by number, then the others by room and name."""
    found = [
        entry(name, room, method)
        for room, module in REGISTRIES
        for name, method in importlib.import_module(module).registered().items()
    ]
    return sorted(found, key=lambda e: (not e.numbers, e.numbers, e.room, e.name))


def entry(name: str, room: str, method: Any) -> Entry:
    """The entry of a class with its ``numbers``, or the one that a room made itself for a method without a class."""
    if isinstance(method, Entry):
        return method
    return Entry(tuple(getattr(method, "numbers", ())), name, room, f"{method.__module__}.{method.__qualname__}")


def rules_named(texts: Iterable[str]) -> dict[str, Rule]:
    """Rules by name, with the parameters under which their laws are checked, by text, or by place.

    A text that begins with the name of a rule is read as `pluribus.rules.get` reads it: ``krum:f=2``,
    ``nnm:f=1+median``. Any other with a colon is a place: ``module:NAME``, where a rule stands, or a class or function
    that gives one without arguments. The current folder is looked at first, as Python does for scripts. Without texts,
    all named rules.

    Raises
    ------
    RuleError
        No such rule, module or name.
    """
    from pluribus.core.laws import example_rules

    examples = example_rules()
    return {text: _found(text, examples) for text in list(texts) or examples}


def _found(text: str, examples: Mapping[str, Rule]) -> Rule:
    name = ruletext.key(text)
    if name in examples:
        return examples[name]
    head = ruletext.key(re.split(r"[:+>]", text, maxsplit=1)[0])
    return _at(text) if ":" in text and head not in examples else get(text)  # which raises, and lists near names


def _at(place: str) -> Rule:
    import sys

    module, _, name = place.partition(":")
    if "=" in name:  # parameters, of no rule
        raise ruletext.unknown(ruletext.key(module), registered())
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise RuleError(f"{place!r} is neither a named rule nor a place; write krum:f=2, or my_module:MyRule")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise RuleError(
            f"{place}: {module!r} is no rule's name, and as a module it cannot be imported: {error}"
        ) from None
    except AttributeError:
        raise RuleError(f"{place}: the module has no {name!r}") from None
    if not isinstance(found, Rule) and callable(found):
        try:
            found = found()
        except TypeError as error:
            raise RuleError(f"{place}: cannot be called without arguments ({error}); give an instance") from None
    if not isinstance(found, Rule):
        raise RuleError(f"{place} is a {type(found).__name__}; expected a pluribus.Rule")
    return found
