"""Server rules from the text of a command line: ``fedlaw:gamma=1``, ``multi_krum:f=2``, ``nnm+median``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from pluribus.core.errors import RuleError
from pluribus.core.rule import Rule, chain
from pluribus.federated.server.rule import Server, default_of, registered
from pluribus.federated.server.stateless import Stateless
from pluribus.rules import registered as registered_rules

# What a text cannot say, or says by itself.
_UNSPOKEN = ("buffers", "rule")
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}


def parse(text: str, attackers: int = 0) -> Server:
    """The server rule that a text names.

    Parameters
    ----------
    text
        ``name`` or ``name:option=value:option=value``. The name is a server rule's (`registered`) or that of a rule of
        `pluribus.rules`; of the latter several may follow one another with ``+`` or ``>`` between them, as in
        ``nnm+median``. Options of the frame around such rules (``server_lr``, ``weighting``, ``nonfinite``) may stand
        with any of them.
    attackers
        How many attackers there are: a rule's ``f`` is this many, and at least 1, unless the text says it.

    Raises
    ------
    RuleError
        No such name (near ones are listed), or options that it does not take (those that it takes are listed).
    """
    parts = [_split(part, text) for part in re.split(r"[+>]", text)]
    server_rules, core_rules = registered(), registered_rules()
    for name, _ in parts:
        if name not in server_rules and name not in core_rules:
            raise RuleError(f"no rule is called {name!r}; did you mean {_near(name, [*server_rules, *core_rules])}?")
        if name in server_rules and len(parts) > 1:
            raise RuleError(
                f"{text!r}: {name} is a whole server rule and stands alone; only {', '.join(core_rules)} can be chained"
            )
    if parts[0][0] in server_rules:
        name, options = parts[0]
        return server_rules[name](**_known(name, options, _legal(server_rules[name])))
    frame_legal = _legal(Stateless)
    frame: dict[str, Any] = {}
    steps = []
    for name, options in parts:
        frame |= {key: value for key, value in options.items() if key in frame_legal}
        own = {key: value for key, value in options.items() if key not in frame_legal}
        steps.append(_core(name, core_rules[name], own, attackers))
    return Stateless(steps[0] if len(steps) == 1 else chain(*steps), **frame)


def _core(name: str, cls: type[Rule], options: dict[str, Any], attackers: int) -> Rule:
    legal = _legal(cls)
    options = _known(name, options, legal, also=_legal(Stateless))
    if "f" in legal:
        options.setdefault("f", max(attackers, 1))
    needed = [f.name for f in fields(cls) if default_of(f) is MISSING and f.name not in options]
    if needed:
        example = ":".join(f"{key}={dict(cls.example).get(key, 1)}" for key in needed)
        raise RuleError(f"{name} needs {', '.join(needed)}: write {f'{name}:{example}'!r}")
    return cls(**options)


def _split(part: str, text: str) -> tuple[str, dict[str, Any]]:
    head, *rest = (piece.strip() for piece in part.split(":"))
    name = re.sub(r"[\s-]+", "_", head.lower())
    if not name:
        raise RuleError(f"{text!r} has an empty place where a rule's name belongs, as in 'fedavg' or 'nnm+median'")
    options: dict[str, Any] = {}
    for piece in rest:
        key, equals, value = (bit.strip() for bit in piece.partition("="))
        if not (key and equals and value):
            raise RuleError(f"{text!r}: {piece!r} is no option; write {name}:name=value")
        if key in options:
            raise RuleError(f"{text!r}: {key} is given twice")
        options[key] = _value(value)
    return name, options


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _WORDS.get(text.lower(), text)


def _legal(cls: type[Any]) -> list[str]:
    own_first = sorted(fields(cls), key=lambda f: bool(f.kw_only))
    return [f.name for f in own_first if f.name not in _UNSPOKEN]


def _known(name: str, options: Mapping[str, Any], legal: list[str], also: Iterable[str] = ()) -> dict[str, Any]:
    legal_here = [*legal, *also]
    for key in options:
        if key not in legal:
            near = difflib.get_close_matches(key, legal_here, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RuleError(f"{name} takes {', '.join(legal_here)}, not {key}{hint}")
    return dict(options)


def _near(name: str, names: list[str]) -> str:
    return ", ".join(difflib.get_close_matches(name, names, n=3, cutoff=0.5) or sorted(names))
