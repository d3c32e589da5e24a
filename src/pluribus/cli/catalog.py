"""``pluribus catalog``."""

from __future__ import annotations

import click


@click.command(short_help="Every method that is built, with its number in the catalogue.")
@click.option("--json", "as_json", is_flag=True, help="print a JSON list and nothing else")
def catalog(as_json: bool) -> None:
    """List every method that is built: numbers, name, room, where it is in the code, status."""
    from pluribus.cli.show import print_table
    from pluribus.core.catalogue import entries

    found = entries()
    if as_json:
        import json

        click.echo(json.dumps([entry.plain() for entry in found], indent=2))
        return
    rows = [[", ".join(map(str, e.numbers)), e.name, e.room, e.where, e.status] for e in found]
    print_table(["numbers", "name", "room", "where", "status"], rows, words=range(5))
