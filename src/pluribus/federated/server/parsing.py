"""Server rules from the text of a command line: ``fedlaw:gamma=1``, ``multi_krum:f=2``, ``nnm+median``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pluribus.core import ruletext
from pluribus.core.errors import RuleError
from pluribus.core.rule import Rule, chain
from pluribus.federated.server.rule import UNSPOKEN, Server, registered
from pluribus.federated.server.stateless import Stateless
from pluribus.rules import registered as registered_rules

# What a text cannot say, or says by itself.
_UNSPOKEN = (*UNSPOKEN, "rule")


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
    parts = ruletext.split(text)
    server_rules, core_rules = registered(), registered_rules()
    for name, _ in parts:
        if name not in server_rules and name not in core_rules:
            raise ruletext.unknown(name, [*server_rules, *core_rules])
        if name in server_rules and len(parts) > 1:
            raise RuleError(
                f"{text!r}: {name} is a whole server rule and stands alone; only {', '.join(core_rules)} can be chained"
            )
    if parts[0][0] in server_rules:
        name, options = parts[0]
        ruletext.check_options(name, options, _legal(server_rules[name]))
        return server_rules[name](**options)
    frame_legal = _legal(Stateless)
    frame: dict[str, Any] = {}
    steps = []
    for name, options in parts:
        frame |= {key: value for key, value in options.items() if key in frame_legal}
        own = {key: value for key, value in options.items() if key not in frame_legal}
        steps.append(_core(name, core_rules[name], own, attackers))
    return Stateless(steps[0] if len(steps) == 1 else chain(*steps), **frame)


def _core(name: str, cls: type[Rule], options: dict[str, Any], attackers: int) -> Rule:
    if any(f.name == "f" for f in fields(cls)):
        options.setdefault("f", max(attackers, 1))
    return ruletext.build(cls, options, name, also=_legal(Stateless))


def _legal(cls: type[Any]) -> list[str]:
    own_first = sorted(fields(cls), key=lambda f: bool(f.kw_only))
    return [f.name for f in own_first if f.name not in _UNSPOKEN]
