"""The pages in a real browser: the charts are there, the console is silent, pointing at them tells their numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from report_samples import HOSTILE, Visit, make_aggregate, make_run

from pluribus.report import fragment, render, render_aggregate

Open = Callable[..., Visit]

PROBE = """<pre id="probe"></pre><script>
var found = [];
document.querySelectorAll("svg").forEach(function (svg) {
  if (svg.getBoundingClientRect().width === 0) { return; }
  var box = svg.getBBox(), place = svg.getBoundingClientRect(), figure = svg.closest("figure");
  var entry = {figure: figure && figure.id, width: box.width, height: box.height, shown: place.width,
    label: svg.getAttribute("aria-label"), fill: null};
  var cell = svg.querySelector(".cells path, .curve, .bar, .part, .cell");
  if (cell) { var style = getComputedStyle(cell); entry.fill = style.fill + " " + style.stroke; }
  if (svg.dataset.hover) {
    var plot = svg.dataset.plot.split(" ").map(Number), scale = place.width / svg.viewBox.baseVal.width;
    svg.scrollIntoView();
    place = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent("pointermove", {clientX: place.left + scale * (plot[0] + 1),
      clientY: place.top + scale * (plot[1] + 1)}));
    var tip = document.querySelector(".tip");
    entry.tip = tip.hidden ? null : tip.textContent;
    svg.dispatchEvent(new PointerEvent("pointerleave"));
    entry.gone = tip.hidden;
  }
  found.push(entry);
});
document.getElementById("probe").textContent = JSON.stringify(
  {found: found, title: document.title, overflow: document.documentElement.scrollWidth - innerWidth});
</script></body>"""


def with_script(html: str, script: str) -> str:
    """The page with one more script, which its policy would not let run: the copy has a policy that does."""
    assert html.count("script-src 'sha256-") == 1
    return re.sub(r"script-src 'sha256-[^']*'", "script-src 'unsafe-inline'", html).replace("</body>", script)


def probe(visit: Open, html: str, **options: Any) -> dict[str, Any]:
    seen = visit(with_script(html, PROBE), **options)
    assert seen.console == []
    text = re.search(r'<pre id="probe">(.*?)</pre>', seen.dom, flags=re.S)
    assert text
    result: dict[str, Any] = json.loads(unescape(text[1]))
    return result


def test_a_run_opens_without_a_word_on_the_console(visit: Open) -> None:
    assert visit(render(make_run())).console == []


def test_the_page_that_the_command_writes(visit: Open, tmp_path: Path) -> None:
    options = "--clients 5 --rounds 2 --seeds 1 --rules fedavg,median --attack sign_flip:1 --model softmax --quiet"
    command = [sys.executable, "-m", "pluribus.cli", "federate", *options.split(), "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    figures = {entry["figure"] for entry in probe(visit, html)["found"] if entry["figure"]}
    assert {"curves", "labels", "rule0w", "rule0r"} <= figures


def test_a_console_error_would_be_seen(visit: Open) -> None:
    html = with_script(render(make_run()), '<script>console.error("deliberate")</script></body>')
    assert any("deliberate" in line for line in visit(html).console)
    html = with_script(render(make_run()), "<script>nowhere.at.all</script></body>")
    assert any("nowhere is not defined" in line for line in visit(html).console)


def test_a_foreign_script_does_not_run(visit: Open) -> None:
    html = render(make_run()).replace("</body>", '<script>document.title = "taken"</script></body>')
    seen = visit(html)
    assert "<title>taken" not in seen.dom
    assert any("Content Security Policy" in line for line in seen.console)


def test_the_charts_are_there(visit: Open) -> None:
    result = probe(visit, render(make_run()))
    figures = {entry["figure"]: entry for entry in result["found"] if entry["figure"]}
    assert set(figures) == {"curves", "rule0w", "rule0r", "rule0b", "rule2w", "rule2r", "rule2b", "labels"}
    for entry in result["found"]:
        assert entry["width"] > 0
        assert entry["height"] > 0
    for name, entry in figures.items():
        assert entry["width"] > 100, name
        assert entry["height"] > 100, name
        assert re.search(r"rgb\((?!0, 0, 0\))", entry["fill"]), f"{name} has the colours of the style"
    assert result["overflow"] <= 0


def test_pointing_at_a_chart_tells_the_numbers_of_its_table(visit: Open) -> None:
    report = make_run(participation=1.0)
    figures = {entry["figure"]: entry for entry in probe(visit, render(report))["found"] if entry["figure"]}
    assert figures["rule0w"]["tip"] == "client client 0\nround 1\n0.167"
    assert figures["rule0r"]["tip"] == "contributor client 0\ncontributor client 0\n0"
    assert figures["curves"]["tip"].startswith("round 1\nFedAvg: ")
    assert figures["curves"]["tip"].count("\n") == 3
    for name in ("rule0w", "rule0r", "curves"):
        assert figures[name]["gone"]
        assert figures[name]["label"], "the drawing keeps its name"


@pytest.mark.parametrize("size", ["500,900", "1600,900"])
def test_no_width_makes_the_page_scroll_sideways(visit: Open, size: str) -> None:
    result = probe(visit, render(make_run(12, 30)), size=size)
    assert result["overflow"] <= 0
    assert [entry["figure"] for entry in result["found"]].count("curves") == 1, "one of the two drawings"


def test_hostile_names_do_nothing(visit: Open) -> None:
    attack = "<img src=x onerror=\"document.title='taken'\">" + HOSTILE
    report = make_run(names=tuple(f"{attack}{i}" for i in range(6)))
    result = probe(visit, render(report))
    assert result["title"] == "A run"
    tips = [entry["tip"] for entry in result["found"] if entry.get("tip")]
    assert any("<img src=x" in tip for tip in tips), "the tooltip shows the name as text"


def test_an_aggregate_and_its_fragment(visit: Open) -> None:
    result = probe(visit, render_aggregate(make_aggregate()))
    assert [entry["figure"] for entry in result["found"]] == ["w", "i", "d", "r"]
    assert all(entry["width"] > 100 for entry in result["found"])
    page = f"<!doctype html><meta charset=utf-8><title>n</title><body>{fragment(make_aggregate())}</body>"
    seen = visit(page.replace("</body>", PROBE))
    assert seen.console == []
    (drawing,) = json.loads(unescape(re.findall(r'<pre id="probe">(.*?)</pre>', seen.dom, flags=re.S)[0]))["found"]
    assert drawing["width"] > 100
