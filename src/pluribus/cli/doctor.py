"""``pluribus doctor``."""

from __future__ import annotations

import click


@click.command(short_help="What is installed, and what runs here.")
@click.option("--json", "as_json", is_flag=True, help="print JSON and nothing else")
def doctor(as_json: bool) -> None:
    """Versions, extras that were found, processors, and which kernels are used."""
    from pluribus.cli.show import print_table
    from pluribus.core.diagnosis import diagnose

    facts = diagnose()
    if as_json:
        import json

        click.echo(json.dumps(facts, indent=2))
        return
    print_table(["", ""], [[name, str(value)] for name, value in facts.items()], words=(0, 1))
