"""Who imports whom: the core knows no room, a room knows no other room's inside, `cli` and `report` stand on top."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pluribus

SOURCE = Path(pluribus.__file__).parent
BASE, TOP = ("core", "engines"), ("cli", "report")
PARTS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())
ROOMS = [part for part in PARTS if part not in (*BASE, *TOP, "rules")]


def imports(text: str, module: str) -> Iterator[tuple[int, list[str]]]:
    """Line and dotted name, below the package, of everything of ours that a module imports, wherever in it."""
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = [*start, *(node.module or "").split(".")] if node.module else start
            # `from pluribus import rules` imports a part; `from pluribus.rules import Mean`, a name of its front door.
            names = [[*source, alias.name] for alias in node.names] if source == ["pluribus"] else [source]
        yield from ((node.lineno, name[1:]) for name in names if name[0] == "pluribus" and len(name) > 1)


def complaint(part: str, name: list[str]) -> str | None:
    """What is wrong with a part's import of a name, if anything is."""
    target, inside = name[0], len(name) > 1
    if target == part or target not in PARTS:
        return None
    if target in TOP:
        return None if part in TOP else f"{target} stands on top: only the command and reports may need it"
    if part in BASE:
        return None if target in BASE else f"{part} knows no room"
    if target in BASE or part in TOP:
        return None
    if part == "rules":
        return "rules knows no other room"
    if target == "rules":
        return None if not inside else "take it from the front door, pluribus.rules"
    return "another room's: what two rooms share moves to core"


# Imports inside of a function that are there for the user, and not for what a part does:
ALLOWED = {
    ("core", "report"): "Aggregate.report and how it shows itself in a notebook",
    ("federated", "report"): "the page of a simulation",
}


def found(files: list[Path]) -> list[str]:
    told = []
    for path in files:
        module = ".".join(["pluribus", *path.relative_to(SOURCE).with_suffix("").parts])
        part = path.relative_to(SOURCE).parts[0]
        for line, name in imports(path.read_text(encoding="utf-8"), module):
            wrong = complaint(part, name)
            if wrong and (part, name[0]) not in ALLOWED:
                told.append(f"{path.relative_to(SOURCE)}:{line} imports pluribus.{'.'.join(name)}: {wrong}")
    return told


def test_arrows_point_down():
    files = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE)
    assert len(files) > 100
    assert not found(files)


@pytest.mark.parametrize(
    ("part", "text", "name"),
    [
        ("core", "from pluribus.rules import Mean", ["rules"]),
        ("core", "def f():\n    import pluribus.federated.server", ["federated", "server"]),
        ("engines", "from pluribus import federated", ["federated"]),
        ("rules", "from pluribus.federated.server.base import Round", ["federated", "server", "base"]),
        ("federated", "from pluribus.rules.robust.krum import Krum", ["rules", "robust", "krum"]),
        ("rules", "from ..federated import server", ["federated"]),
        ("rules", "from pluribus.cli.app import main", ["cli", "app"]),
    ],
)
def test_an_arrow_that_points_up_is_seen(part, text, name):
    ((_, seen),) = imports(text, f"pluribus.{part}.module")
    assert seen == name
    assert complaint(part, seen)


@pytest.mark.parametrize(
    ("part", "name"),
    [("rules", ["core", "rule"]), ("federated", ["rules"]), ("federated", ["core"]), ("cli", ["federated", "config"]),
     ("core", ["engines", "base"]), ("core", ["errors"])],
)  # fmt: skip
def test_an_arrow_that_points_down_is_fine(part, name):
    assert complaint(part, name) is None
