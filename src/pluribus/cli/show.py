"""Results on the terminal: a table, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pluribus.federated.comparison import Told
    from pluribus.federated.config import Config
    from pluribus.federated.experiment import Outcome
    from pluribus.federated.grid import Cell
    from pluribus.federated.grid import Outcome as GridOutcome

MISSING = "–"


def results(outcome: Outcome, as_json: bool, quiet: bool) -> None:
    """The table rules x numbers and where the files are, or all of it as JSON."""
    if as_json:
        import json

        facts = {
            "out": str(outcome.folder),
            "made_now": outcome.made_now,
            "told": list(outcome.notes),
            "timing": outcome.timing,
        }
        click.echo(json.dumps({**outcome.summary, **facts}, indent=2))
        return
    if not quiet:
        for note in (*outcome.notes, *outcome.summary["notes"]):
            click.echo(note, err=True)
    heads, rows = table(outcome.summary, outcome.timing)
    print_table(heads, rows)
    if not quiet:
        for sentence in outcome.summary["verdict"]["sentences"]:
            click.echo(sentence)
        click.echo(f"report: {outcome.folder / 'report.html'}")


def table(summary: Mapping[str, Any], timing: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows; per cent, the baseline first."""
    base = summary["rules"][0]["rule"]
    attacked = any(summary["attackers"].values())
    noisy = any(summary["noisy"].values())
    heads = ["rule", "accuracy", f"against\n{base}", "worst\nclient", "effective\nclients"]
    heads += ["attackers'\nweight"] if attacked else []
    heads += ["noisy clients'\nweight"] if noisy else []
    backdoor = any("attack_success" in row for row in summary["rules"])
    heads += ["attack\nsuccess"] if backdoor else []
    heads.append("MB\nmoved")
    still = {"schedule": "sync", "speeds": "even", "link": "none"}
    clocked = any(summary["binding"].get(name, value) != value for name, value in still.items())
    heads += [f"seconds to\n{100 * summary['binding']['target']:g} %"] if clocked else []
    heads.append("CPU s\na run")
    rows = []
    for row in summary["rules"]:
        cells = [row["rule"], _with_spread(row["accuracy"])]
        cells.append("baseline" if row is summary["rules"][0] else _with_spread(row["gain"], signed=True))
        cells.append(_percent(row["worst_client"]["mean"]))
        cells.append(_plain(row["effective_clients"]["mean"], 1))
        cells += [_percent(row["attackers_weight"]["mean"])] if attacked else []
        cells += [_percent(row["noisy_weight"]["mean"])] if noisy else []
        cells += [_percent(row["attack_success"]["mean"])] if backdoor else []
        cells.append(_plain(_times(row["bytes"]["mean"], 1e-6), 1))
        cells += [_plain(row["seconds_to_target"]["mean"], 0)] if clocked else []
        seconds = timing.get("seconds", {}).get(row["rule"], {}).get("cpu", [])
        cells.append(_plain(sum(seconds) / len(seconds), 2) if seconds else MISSING)
        rows.append(cells)
    return heads, rows


def plan(settings: Config, as_json: bool) -> None:
    """Settings, and who has what under the first seed."""
    from pluribus.federated.config_file import to_toml
    from pluribus.federated.setup import build, load

    setup = build(settings, load(settings), settings.seed)
    if as_json:
        import json

        facts = {
            "config": settings.plain(),
            "label_counts": setup.label_counts.tolist(),
            "attackers": list(setup.attackers),
            "noisy": list(setup.noisy),
        }
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(to_toml(settings))
    heads = ["client", "samples", *setup.class_names, ""]
    rows = []
    for i, counts in enumerate(setup.label_counts):
        mark = "attacks" if i in setup.attackers else "wrong labels" if i in setup.noisy else ""
        rows.append([str(i), str(counts.sum()), *(str(n) if n else "." for n in counts), mark])
    print_table(heads, rows, words=(0, len(heads) - 1))


def cells(found: Sequence[Cell], as_json: bool) -> None:
    """The experiments of a grid, before they are run."""
    if as_json:
        import json

        click.echo(json.dumps({"cells": {cell.name: cell.settings.plain() for cell in found}}, indent=2))
        return
    for cell in found:
        click.echo(cell.name)
    runs = sum(len(cell.settings.rules) * cell.settings.seeds for cell in found)
    click.echo(f"{len(found)} experiments, {runs} runs")


def grid(outcome: GridOutcome, as_json: bool, quiet: bool) -> None:
    """A grid's table and where its page is, or all of it as JSON."""
    if as_json:
        import json

        facts = {"out": str(outcome.folder), "made_now": outcome.made_now, "told": list(outcome.notes)}
        click.echo(json.dumps({**outcome.summary, **facts}, indent=2))
        return
    for note in () if quiet else outcome.notes:
        click.echo(note, err=True)
    comparison(outcome.experiments, False, quiet)
    if not quiet:
        click.echo(f"report: {outcome.folder / 'report.html'}")


def comparison(found: Sequence[Told], as_json: bool, quiet: bool = False) -> None:
    """Accuracy rule x experiment, what the experiments differ in, and which rule is ahead where."""
    from pluribus.federated import comparison as side_by_side

    if as_json:
        import json

        click.echo(json.dumps(side_by_side.as_plain(found), indent=2))
        return
    apart = side_by_side.differing(found)
    numbers = [f"[{k + 1}]" for k in range(len(found))]
    print_table(
        ["", "experiment", *apart],
        [[numbers[k], one.name, *(_told(apart[key][k]) for key in apart)] for k, one in enumerate(found)],
        words=range(2 + len(apart)),
    )
    rows = []
    for rule in side_by_side.rules_of(found):
        cells = [_marked(one, rule) for one in found]
        rows.append([rule, *cells])
    click.echo()
    print_table(["rule", *numbers], rows)
    if quiet:
        return
    click.echo("* ahead of every other rule by more than the paired spread; ~ not told apart from the highest")
    for sentence in side_by_side.sentences(found):
        click.echo(sentence)


def _marked(one: Told, rule: str) -> str:
    from pluribus.federated.comparison import mark

    row = one.row(rule)
    if row is None:
        return MISSING
    return _with_spread(row["accuracy"]) + {"best": " *", "tied": " ~", "": "  "}[mark(one, rule)]


def _told(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> None:
    """A table on the output stream.

    Columns are numbers, but for those at the positions ``words``. Without heads there is no line of them.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), show_header=any(heads))
    for i, head in enumerate(heads):
        grid.add_column(Text(head), justify="left" if i in words else "right", no_wrap=True, vertical="bottom")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    # Of its own width, whatever the terminal's: a number that is cut off is worse than a line that is folded.
    Console(width=10_000).print(grid, crop=False)


def _with_spread(value: Mapping[str, Any], signed: bool = False) -> str:
    mean, spread = value["mean"], value["spread"]
    if mean is None:
        return MISSING
    text = f"{100 * mean:+.1f}" if signed else f"{100 * mean:.1f}"
    return text if spread is None else f"{text}±{100 * spread:.1f}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f}"


def _times(value: float | None, by: float) -> float | None:
    return None if value is None else by * value


def _plain(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"
