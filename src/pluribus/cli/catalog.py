"""``pluribus catalog``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pluribus.core.catalogue import Entry


@click.command(short_help="Every method that is built, or all about one.")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--json", "as_json", is_flag=True, help="print JSON and nothing else")
def catalog(name: str | None, as_json: bool) -> None:
    """List every method that is built, or tell about one: formula, parameters, laws, source.

    The numbers are those of the project's catalogue, a list of published methods; a method without a number is built
    and not on that list. NAME is what the list calls a method, as in "pluribus catalog multi_krum".
    """
    from pluribus.cli.show import print_table
    from pluribus.core.catalogue import entries

    found = entries()
    if name is not None:
        found = _named(name, found)
    if as_json:
        import json

        plain = [entry.plain() | (dict(_facts(entry)) if name else {}) for entry in found]
        click.echo(json.dumps(plain, indent=2))
    elif name is not None:
        for entry in found:
            told = {"name": entry.name, "numbers": _listed(entry.numbers), "room": entry.room, "where": entry.where}
            print_table(["", ""], [[k, _listed(v)] for k, v in (told | _facts(entry)).items() if v], words=(0, 1))
            click.echo(f"\n{_description(entry)}")
    else:
        rows = [[_listed(e.numbers), e.name, e.room, e.where, e.status] for e in found]
        print_table(["numbers", "name", "room", "where", "status"], rows, words=range(5))


def _named(name: str, found: list[Entry]) -> list[Entry]:
    from pluribus.core import ruletext

    wanted = ruletext.key(name)
    chosen = [entry for entry in found if entry.name == wanted]
    if not chosen:
        raise ruletext.unknown(wanted, [entry.name for entry in found])
    return chosen


def _class(entry: Entry) -> Any:
    import importlib

    module, _, name = entry.where.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _facts(entry: Entry) -> dict[str, Any]:
    """What a method says of itself; plain values."""
    from dataclasses import MISSING, fields, is_dataclass

    from pluribus.core.ruletext import default_of

    method = _class(entry)
    defaults = {f.name: default_of(f) for f in fields(method)} if is_dataclass(method) else {}
    # Of a rule made of rules some are properties: they depend on its parts.
    reads, laws = getattr(method, "reads", None), getattr(method, "laws", None)
    formula, source = getattr(method, "formula", ""), getattr(method, "source", "")  # what is no rule has them in words
    return {
        "formula": formula if isinstance(formula, str) else "",
        "parameters": [n if d is MISSING else f"{n}={_listed(d)}" for n, d in defaults.items()],
        "reads": str(getattr(reads, "value", "as its parts do" if isinstance(reads, property) else "")),
        "laws": sorted(laws) if isinstance(laws, frozenset) else [],
        "source": source if isinstance(source, str) else "",
    }


def _description(entry: Entry) -> str:
    import inspect

    return inspect.getdoc(_class(entry)) or ""


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
