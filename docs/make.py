"""Write the pages that come from the code: a page a rule, the tables of rules, laws and server rules, the pictures.

    python docs/make.py            # write
    python docs/make.py --check    # exit with 1 if something written differs from what the code says

What rules are is told by their docstrings; what they satisfy by the declared laws, which the tests check, and by the
stored counterexamples. Nothing here is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluribus import laws, rules
from pluribus.core.errors import PluribusError
from pluribus.core.files import write_text
from pluribus.core.rule import PointRule, PreRule, Rule
from pluribus.core.ruletext import default_of
from pluribus.federated import server

HERE = Path(__file__).parent
SIZE, REACH = 320, 4.0  # pixels, and the half-width of what a picture shows
Points = NDArray[np.float64]


def cloud() -> tuple[Points, Points]:
    """Twenty honest points about (1, 0.5) and five outliers that agree with each other."""
    rng = np.random.default_rng(7)
    return rng.normal([1.0, 0.5], [0.9, 0.6], size=(20, 2)), rng.normal([-2.6, 2.4], 0.35, size=(5, 2))


def brought(rule: Rule) -> bool:
    """Whether the cloud is not what a rule takes, and is brought into its space as for the laws."""
    return isinstance(rule, PointRule) or not rule.any_vectors


def picture(rule: Rule) -> str | None:
    """Where a rule puts the result for the cloud, as SVG; None for rules whose points have no place in the plane."""
    if rule.least > 25:
        return None
    points = np.vstack(cloud())
    if brought(rule):
        points = np.asarray(rule.draw(points))
        if points.shape != (25, 2) or points.dtype.kind != "f":
            return None
    honest, outliers = points[:20], points[20:]
    reference = np.array([0.6, 0.1]) if rule.needs_reference else None
    try:
        found = rule(list(points), reference=reference)
    except PluribusError:
        return None
    shown = np.asarray(found.value, dtype=float)
    if shown.shape != (2,):
        return None
    if np.abs(points).max() <= 1:  # a ball, a sphere or a simplex fills the picture
        zoom = REACH / 1.1
        honest, outliers, shown = zoom * honest, zoom * outliers, zoom * shown
    weights = np.nan_to_num(np.abs(found.weights), nan=1 / 25)
    most = max(float(weights.max()), 1e-12)
    marks = [_ring(p, 2.5 + 5 * w / most, "#3b6ea5") for p, w in zip(honest, weights[:20], strict=True)]
    marks += [_ring(p, 2.5 + 5 * w / most, "#c0392b") for p, w in zip(outliers, weights[20:], strict=True)]
    marks.append(_cross(honest.mean(axis=0), "#888888"))
    if reference is not None:
        marks.append(_cross(reference, "#8e44ad"))
    outside = bool(np.abs(shown).max() > REACH)
    told = "the result lies outside of the picture" if outside else "the result"
    marks.append(_star(np.clip(shown, -REACH + 0.15, REACH - 0.15)))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}"',
            ' role="img">',
            f"<title>{rule}: {told} for 20 honest points and 5 outliers</title>",
            f'<rect width="{SIZE}" height="{SIZE}" fill="#ffffff" stroke="#d0d0d0"/>',
            *marks,
            "</svg>",
            "",
        ]
    )


def _at(point: Points) -> tuple[float, float]:
    x, y = (np.array([point[0], -point[1]]) / REACH + 1) * SIZE / 2
    return round(float(x), 2), round(float(y), 2)


def _ring(point: Points, radius: float, colour: str) -> str:
    x, y = _at(point)
    return f'<circle cx="{x}" cy="{y}" r="{radius:.2f}" fill="{colour}" fill-opacity="0.35" stroke="{colour}"/>'


def _cross(point: Points, colour: str) -> str:
    x, y = _at(point)
    return f'<path d="M{x - 6} {y}h12M{x} {y - 6}v12" stroke="{colour}" stroke-width="2"/>'


def _star(point: Points) -> str:
    x, y = _at(point)
    corners = []
    for k in range(10):
        radius, angle = (10 if k % 2 == 0 else 4), np.pi * k / 5
        corners.append(f"{x + radius * np.sin(angle):.2f},{y - radius * np.cos(angle):.2f}")
    return f'<polygon points="{" ".join(corners)}" fill="#f39c12" stroke="#000000"/>'


def page(name: str, rule: Rule, drawn: bool) -> str:
    """The page of one rule."""
    cls = type(rule)
    held = [law for law in laws.LAWS if law in rule.laws]
    broken = laws.stored().get(name, {})
    rows = [f"| {law} | {'holds' if law in held else _why(broken.get(law))} |" for law in laws.LAWS]
    numbers = f", catalogue number {', '.join(map(str, rule.numbers))}" if rule.numbers else ""
    lines = [
        f"# {cls.__name__}",
        "",
        f"`{name}`{numbers}. Reads {rule.reads}. `{_signature(cls)}`",
        "",
        f"**Formula:** {_plain(rule.formula)}",
        "",
        _sections(inspect.cleandoc(cls.__doc__ or "")),
        "",
        f"**Source:** {rule.source}",
        "",
    ]
    if drawn:
        lines += [
            f"![Where it puts the result](../images/rules/{name}.svg)",
            "",
            f"`{rule}` on 20 honest points (blue) and 5 outliers (red)"
            + (", brought into its space" if brought(rule) else "")
            + "; a mark is as large as its weight.",
            "The star is the result, the grey cross the honest mean"
            + (", the purple cross the reference." if rule.needs_reference else "."),
            "",
        ]
    lines += [f"## Laws of `{rule}`", "", "| law | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _signature(cls: type[Rule]) -> str:
    told = str(inspect.signature(cls)).removesuffix(" -> None").replace("'", "")
    return f"{cls.__name__}{told}"


def _sections(text: str) -> str:
    """A docstring's sections as lists: a name on a line, what it is indented below."""
    lines, made = text.splitlines(), list[str]()
    underlined = {k for k, line in enumerate(lines) if line and set(line) == {"-"} and k and lines[k - 1].strip()}
    within = False
    for k, line in enumerate(lines):
        if k + 1 in underlined:
            made.append(f"**{line}**")
            within = True
        elif k in underlined:
            made.append("")
        elif within and line.startswith("    "):
            made.append(f"  {line.strip()}")
        elif within and line.strip():
            made.append(f"- `{line.strip()}`:")
        else:
            made.append(line)
    return "\n".join(made)


def _why(found: dict[str, object] | None) -> str:
    if not found:
        return "not applicable"
    message = str(found["message"]).replace("|", "\\|").replace("\n", " ")
    return f"broken: {message if len(message) < 160 else message[:157] + '...'}"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


def index(found: dict[str, Rule]) -> str:
    """The table of all rules, and the table rule x law."""
    lines = [
        "# Rules",
        "",
        "Written by `docs/make.py` from the code. What each is for: [Which rule when](which-rule.md).",
        "",
        "| rule | what it does | reads | of 10 withstands | catalogue |",
        "|---|---|---|---|---|",
    ]
    for name, rule in found.items():
        withstands = rule.tolerates(10) if rule.tolerates(1000) else ""
        kind = " (pre-rule)" if isinstance(rule, PreRule) else ""
        lines.append(
            f"| [{name}](rules/{name}.md){kind} | {_plain(rule.formula)} | {rule.reads} | {withstands} "
            f"| {', '.join(map(str, rule.numbers))} |"
        )
    lines += ["", "## Laws", ""]
    lines += [f"- **{law.name}**: {law.statement}" for law in laws.LAWS.values()]
    lines += [
        "",
        "The tests check each declared law by random search, on numpy arrays and torch tensors of float64 and float32,",
        "and each other law by its stored counterexample. `pluribus laws NAME` does it for one rule, `pluribus laws",
        "krum:f=2` with other parameters, `pluribus laws my_module:MyRule` for yours; `--arrays torch` on tensors.",
        "",
        "| rule | " + " | ".join(laws.LAWS) + " |",
        "|---|" + "---|" * len(laws.LAWS),
    ]
    known = laws.stored()
    for name, rule in found.items():
        marks = ["●" if law in rule.laws else ("–" if law in known.get(name, {}) else "") for law in laws.LAWS]
        lines.append(f"| [{name}](rules/{name}.md) | " + " | ".join(marks) + " |")
    lines += ["", "● holds, – has a counterexample (on the rule's page), empty: does not apply.", ""]
    return "\n".join(lines)


FAMILIES = {
    "": "Weights, optimisers and trees on the server",
    "contribution": "Weights by what a client contributes",
    "asynchronous": "Late and absent clients",
    "control": "What clients do while they train",
    "compact": "Less to send",
    "personal": "A model for each client",
    "heads": "Features and heads",
    "distillation": "Distillation on the server",
}
"""Families of server rules: their package below `pluribus.federated.server`, and a title."""


def server_rules() -> str:
    """The table of all named server rules, by family, from the registry."""
    lines = [
        "# Server rules",
        "",
        "Written by `docs/make.py` from the code. `pluribus federate --rules KEY[:parameter=value...]` runs them side",
        "by side; [Federated learning](federated.md) says how. Every rule on vectors ([Rules](rules.md)) is a server",
        "rule too. x is the server's model, y_i a client's after its training, delta_i = y_i - x, n_i its samples.",
    ]
    families: dict[str, list[type[server.Server]]] = {name: [] for name in FAMILIES}
    for cls in server.registered().values():
        below = cls.__module__.removeprefix("pluribus.federated.server.").split(".")
        families.setdefault(below[0] if len(below) > 1 else "", []).append(cls)
    for family, found in families.items():
        if not found:
            continue
        lines += ["", f"## {FAMILIES.get(family, family.capitalize())}", ""]
        lines += ["| key | what it does | formula | parameters | source | catalogue |", "|---|---|---|---|---|---|"]
        for cls in found:
            needs = " Each client ends with a model of its own." if cls.personal_models else ""
            lines.append(
                f"| `{cls.key}` | {_plain(cls.explanation)}{needs} | {_plain(cls.formula)} | {_parameters(cls)} "
                f"| {_plain(cls.source)} | {', '.join(map(str, cls.numbers))} |"
            )
    return "\n".join([*lines, ""])


def _parameters(cls: type[server.Server]) -> str:
    """A rule's own parameters with their defaults, as the command takes them."""
    shared = {f.name for f in dataclasses.fields(server.Server)}
    shown = []
    for own in dataclasses.fields(cls):
        if own.name in shared or not own.init:
            continue
        default = default_of(own)
        told = "" if default is dataclasses.MISSING else f"={default}"
        shown.append(f"`{own.name}{told}`".replace("|", "\\|"))
    return ", ".join(shown)


def pages() -> dict[Path, str]:
    """All files that this writes, and their texts."""
    found = laws.example_rules()
    made = {HERE / "rules.md": index(found), HERE / "server-rules.md": server_rules()}
    for name, rule in found.items():
        drawn = picture(rule)
        if drawn is not None:
            made[HERE / "images" / "rules" / f"{name}.svg"] = drawn
        made[HERE / "rules" / f"{name}.md"] = page(name, rule, drawn is not None)
    return made


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    chosen = parser.parse_args()
    assert rules.registered(), "the rules are imported"
    stale = 0
    for path, text in pages().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        print(path.relative_to(HERE.parent))
        if not chosen.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
    sys.exit(1 if chosen.check and stale else 0)


if __name__ == "__main__":
    main()
