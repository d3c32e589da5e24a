"""``pluribus federate compare``: finished experiments side by side."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    short_help="Finished experiments side by side.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", metavar="PAGE.html", type=click.Path(path_type=Path), help="write a page too")
@click.option("--json", "as_json", is_flag=True, help="print all of it as JSON and nothing else")
def compare(folders: tuple[Path, ...], *, out: Path | None, as_json: bool) -> None:
    """Put what `pluribus federate --out DIR` left in several folders side by side.

    The accuracy of each rule in each experiment, the settings in which the experiments differ, and which rule is
    ahead where. The folder of a grid stands for all of its experiments.
    """
    from pluribus.cli import show
    from pluribus.core.files import write_text
    from pluribus.federated import comparison

    found = [one for folder in folders for one in comparison.read(folder)]
    if out is not None:
        write_text(out, comparison.page(found, f"{len(found)} experiments", out.parent))
    show.comparison(found, as_json)
    if out is not None and not as_json:
        click.echo(f"report: {out}")
