"""``pluribus laws``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pluribus.cli.app import FAILED

if TYPE_CHECKING:
    from pluribus.core.laws import Verdict

LEGEND = (
    "holds: declared, and no counterexample was found; (holds): none was found, and it is not declared; no: a "
    "counterexample was found, and it is not declared; BROKEN: one was found, though it is declared; –: the law says "
    "nothing about such a rule"
)


@click.command(short_help="Which laws rules obey: a search for counterexamples.")
@click.argument("rules", metavar="[RULE|RULE:PARAMETER=VALUE|MODULE:NAME]...", nargs=-1)
@click.option("--law", "only", multiple=True, metavar="LAW", help="only this law (may be repeated)")
@click.option(
    "--arrays",
    multiple=True,
    metavar="KIND",
    help="contributions as numpy-float64 (what is tried without this), numpy-float32, torch-float64 or torch-float32; "
    "numpy and torch are both widths (may be repeated: the first kind that breaks a law is told)",
)
@click.option("--examples", default=100, show_default=True, type=click.IntRange(1), help="random cases of each law")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="the same seed, the same cases")
@click.option("--json", "as_json", is_flag=True, help="print JSON, with the counterexamples, and nothing else")
@click.option("--store", is_flag=True, help="keep the counterexamples with the package (for its developers)")
def laws(  # noqa: PLR0917 - click gives options by name
    rules: tuple[str, ...],
    only: tuple[str, ...],
    arrays: tuple[str, ...],
    examples: int,
    seed: int,
    as_json: bool,
    store: bool,
) -> int:
    """Try to break the laws of rules by random search.

    Without arguments all named rules are tried. A RULE alone has the parameters of its page in the docs; krum:f=2 and
    nnm:f=1+median say theirs. MODULE:NAME is a rule of your own, or a class or function that gives one. Exits with 1
    if a rule breaks a law that it declares. A line below the table says what its words mean.
    """
    from pluribus.cli.show import print_table
    from pluribus.core import laws as court
    from pluribus.core.catalogue import rules_named
    from pluribus.core.errors import RuleError
    from pluribus.core.law_arrays import DEFAULT
    from pluribus.core.registry import registered

    tried = rules_named(rules)
    strangers = sorted(set(tried) - set(registered()))
    if store and strangers:
        raise RuleError(f"--store keeps what is found of named rules; {strangers[0]} is none, so leave it out")
    names = list(only) or list(court.LAWS)
    found = {}
    for i, (name, rule) in enumerate(tried.items(), start=1):
        progress = None if as_json else _Progress(f"[{i}/{len(tried)}] {name}", names)
        try:
            told = progress or (lambda _: None)
            found[name] = court.check(
                rule, only or None, examples=examples, seed=seed, arrays=arrays or DEFAULT, after=told
            )
        finally:
            if progress:
                progress.end()
    if store:
        court.store(found)
    broken = [
        (name, verdict)
        for name, verdicts in found.items()
        for verdict in verdicts.values()
        if verdict.holds is False and verdict.law in tried[name].laws
    ]
    if as_json:
        import json

        plain = {name: {law: _plain(v) for law, v in verdicts.items()} for name, verdicts in found.items()}
        click.echo(json.dumps({"rules": plain}, indent=2))
        return FAILED if broken else 0
    rows = [[law, *(_mark(law in tried[name].laws, found[name][law].holds) for name in tried)] for law in names]
    print_table(["law", *tried], rows, words=range(len(tried) + 1))
    click.echo(LEGEND)
    for name, verdict in broken:
        click.echo(f"{name} breaks {verdict.law!r}: {verdict.message}\n  case: {verdict.counterexample}")
    return FAILED if broken else 0


class _Progress:
    """Says which law is being tried: in place on a terminal; elsewhere a dot a law."""

    def __init__(self, head: str, names: Sequence[str]) -> None:
        self.head, self.names, self.done = head, names, 0
        self.terminal = sys.stderr.isatty()
        self._say(f"trying {head} ")
        self._next()

    def __call__(self, verdict: object) -> None:
        self.done += 1
        if not self.terminal:
            self._say(".")
        self._next()

    def end(self) -> None:
        """Leave a whole line."""
        self._say("\r\033[K" if self.terminal else f" {self.done} laws\n")

    def _next(self) -> None:
        if self.terminal and self.done < len(self.names):
            count = f"{self.done + 1} of {len(self.names)}"
            self._say(f"\r\033[Ktrying {self.head}: {self.names[self.done]} ({count})")

    @staticmethod
    def _say(text: str) -> None:
        click.echo(text, err=True, nl=False)


def _plain(verdict: Verdict) -> object:
    """``"holds"``, ``"not applicable"``, or the counterexample with what went wrong."""
    if verdict.holds is False:
        return {"counterexample": verdict.counterexample, "message": verdict.message}
    return verdict.word


def _mark(declared: bool, holds: bool | None) -> str:
    if holds is None:
        return "–"
    return ("holds" if holds else "BROKEN") if declared else ("(holds)" if holds else "no")
