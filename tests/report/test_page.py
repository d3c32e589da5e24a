"""The page of a run: complete, self-contained, escaped, the same bytes every time."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from report_samples import HOSTILE, Page, make_run

from pluribus.report import Relation, ReportError, RuleReport, RunReport, render, write_text
from pluribus.report.findings import attackers_share, findings, mean_weights


def changed(report: RunReport, **values: object) -> RunReport:
    return dataclasses.replace(report, **values)  # type: ignore[arg-type]


def svgs(html: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, flags=re.S)]


def rows_of(html: str, table: str) -> list[list[str]]:
    """Texts of the cells of the body rows of a table class."""
    body = re.search(rf'<table class="{table}"[^>]*>.*?<tbody>(.*?)</tbody>', html, flags=re.S)
    assert body
    rows = re.findall(r"<tr.*?>(.*?)</tr>", body[1], flags=re.S)
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, flags=re.S) for row in rows]
    return [[re.sub(r"<svg.*?</svg>|<[^>]+>", "", cell).strip() for cell in row] for row in cells]


def test_the_page_has_all_its_parts() -> None:
    html = render(make_run())
    page = Page(html)
    assert html.startswith("<!doctype html>")
    sections = [a["id"] for tag, a in page.elements if tag == "section"]
    assert sections == ["summary", "accuracy", "rule0", "rule1", "rule2", "counted", "data", "config"]
    figures = [a["id"] for tag, a in page.elements if tag == "figure"]
    expected = ["curves", "rule0w", "rule0r", "rule0b", "rule2w", "rule2r", "rule2b", "labels"]
    assert figures == expected
    assert page.count("details") == len(figures), "every chart has its numbers"
    ids = page.ids()
    assert len(ids) == len(set(ids))
    links = [a["href"] for tag, a in page.elements if tag == "a"]
    assert {f"#{s}" for s in sections} == set(links)
    assert page.count("caption") == page.count("table")
    for tag, attributes in page.elements:
        if tag == "th":
            assert attributes.get("scope") in {"row", "col"}
    words = page.words()
    for text in ("A run", "of three rules", "What FedAvg does.", "A note.", "decides coordinate by coordinate"):
        assert text in words


def test_many_rules_are_folded_but_the_first_and_the_best() -> None:
    report = make_run()
    plain = Page(render(report))
    assert all(attributes.get("class") != "rule-charts" for _, attributes in plain.elements)
    extra = tuple(
        dataclasses.replace(report.rules[0], name=f"r{i}", label=f"r{i}", formal=f"R{i}(f=1)", final={"accuracy": a})
        for i, a in enumerate((0.3, 0.99, 0.5))
    )
    html = render(changed(report, rules=(*report.rules, *extra)))
    page = Page(html)
    sections = dict(re.findall(r'<section id="(rule\d)".*?</h2>(.*?)</section>', html, flags=re.S))
    folded = [key for key, text in sections.items() if '<details class="rule-charts">' in text]
    assert folded == ["rule1", "rule2", "rule3", "rule5"]
    assert {"rule2w", "rule3w"} <= set(page.ids()), "what is folded is there"
    assert "R1(f=1)" in page.words()


def test_cosines_of_all_rules_have_one_scale() -> None:
    report = make_run()
    values = report.rules[2].relation.values  # type: ignore[union-attr]
    faint = Relation(np.where(np.eye(6) > 0, 1.0, 0.01 * values), report.clients, "cosine")
    other = dataclasses.replace(report.rules[2], name="o", label="O", relation=faint)
    html = render(changed(report, rules=(*report.rules, other)))
    ends = [
        re.findall(r">([−\d.]+)</text>", re.findall(rf'<figure id="{key}".*?<svg.*?</svg>', html, flags=re.S)[0])[:3]
        for key in ("rule2r", "rule3r")
    ]
    assert ends[0] == ends[1]


def test_every_drawing_is_xml_and_named_or_hidden() -> None:
    drawings = svgs(render(make_run()))
    assert len(drawings) > 10
    for root in drawings:
        named = root[0].tag.endswith("title") and root[1].tag.endswith("desc") and root.get("aria-labelledby")
        assert named or root.get("aria-hidden") == "true"


def test_nothing_is_fetched_from_outside() -> None:
    html = render(make_run())
    assert not re.search(r"https?:|@import|@font-face", html.replace("http://www.w3.org/2000/svg", ""))
    for tag, attributes in Page(html).elements:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert tag not in {"img", "iframe", "object", "embed"}
        if "href" in attributes:
            assert str(attributes["href"]).startswith(("#", "data:,"))
    assert re.findall(r"url\((?!#)", html) == []


def test_only_our_script_may_run() -> None:
    import base64

    html = render(make_run())
    scripts = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert "default-src 'none'" in html


def test_the_summary_compares_with_the_first_rule() -> None:
    report = make_run()
    rules = [
        dataclasses.replace(
            rule, final={"accuracy": a, "spread": 0.01, "worst_client": w, "effective_clients": e, "bytes_sent": b}
        )
        for rule, a, w, e, b in zip(
            report.rules, (0.5, 0.8, 0.45), (0.3, 0.6, math.nan), (6, 5.5, 2), (1e7, 2e7, 3e7), strict=True
        )
    ]
    html = render(changed(report, rules=tuple(rules)))
    rows = rows_of(html, "summary")
    assert rows[0][0] == "FedAvg baseline"
    assert rows[0][1:] == ["50.0 ± 1.0", "", "30.0", "6.0", percent_of_attackers(report, 0), "1e7"]
    assert rows[1][1] == "80.0 ± 1.0+30.0"
    assert rows[1][3] == "60.0+30.0"
    assert rows[2][1] == "45.0 ± 1.0−5.0"
    assert rows[2][3] == "–"
    assert rows[2][4] == "2.0−4.0"
    assert rows[2][5] == f"0.0−{percent_of_attackers(report, 0)}"
    assert rows[1][6] == "2e7+1e7"
    assert len(re.findall(r'class="best"', html)) == 2


def percent_of_attackers(report: RunReport, rule: int) -> str:
    return f"{100 * attackers_share(report, report.rules[rule]):.1f}"


def test_the_attackers_weight_of_the_summary_goes_before_that_of_the_first_seed() -> None:
    report = make_run()
    first = dataclasses.replace(report.rules[0], final={**report.rules[0].final, "attackers_weight": 0.123})
    report = changed(report, rules=(first, *report.rules[1:]))
    assert rows_of(render(report), "summary")[0][-1] == "12.3"
    assert "held 12.3\u00a0% of the weight under FedAvg" in " ".join(findings(report))


def test_who_counted_adds_up() -> None:
    report = make_run(attackers=(1,))
    html = render(report)
    rows = rows_of(html, "weights")
    assert [row[0] for row in rows] == ["client 0", "client 1 attacker", *(f"client {i}" for i in range(2, 6))]
    means = mean_weights(report.rules[0])
    assert means is not None
    assert [row[2] for row in rows] == [f"{100 * m:.1f}" for m in means]
    assert sum(float(row[1]) for row in rows) == pytest.approx(100, abs=0.4)
    assert {row[3] for row in rows} == {"–"}
    assert rows[1][4] == "0.0"
    foot = re.findall(r"<tfoot>(.*?)</tfoot>", html, flags=re.S)[0]
    assert re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", foot) == ["1 attacker together", *rows[1][1:]]


def test_curves_are_over_the_seeds_that_were_measured() -> None:
    accuracy = np.array([[0.2, np.nan, np.nan], [0.4, 0.5, np.nan]])
    rule = RuleReport("r", "R", accuracy)
    html = render(RunReport("t", "", {}, 3, (rule,), ("a",)))
    assert rows_of(html, "numbers") == [["1", "30 (20 to 40)"], ["2", "50 (50 to 50)"], ["3", "–"]]
    single = render(RunReport("t", "", {}, 3, (RuleReport("r", "R", accuracy[1:]),), ("a",)))
    assert [row[1] for row in rows_of(single, "numbers")] == ["40", "50", "–"]
    assert "the band" not in single


def test_a_round_without_a_client_counts_as_zero() -> None:
    rule = RuleReport("a", "A", np.zeros((1, 2)), np.array([[1.0, np.nan], [np.nan, 1.0], [np.nan, np.nan]]))
    means = mean_weights(rule)
    assert means is not None
    assert means.tolist() == [0.5, 0.5, 0.0]


def test_findings_say_what_the_numbers_say() -> None:
    def run(*accuracies: float, spread: float = 0.01, seeds: int = 3) -> str:
        rules = [
            RuleReport(f"r{i}", f"R{i}", np.zeros((seeds, 1)), None, None, {"accuracy": a, "spread": spread})
            for i, a in enumerate(accuracies)
        ]
        return " ".join(findings(RunReport("t", "", {}, 1, tuple(rules), ("a", "b")))).replace("\u00a0", " ")

    assert run(0.4, 0.9) == "R1 reached the highest accuracy, 90.0 %: 50.0 points above R0."
    assert run(0.4, 0.41) == (
        "R1 reached the highest accuracy, 41.0 %: 1.0 points above R0, which is within the spread over 3 seeds."
    )
    assert run(0.4, 0.41, seeds=1).endswith("above R0.")
    assert run(0.9, 0.4) == "R0, the baseline, reached 90.0 % accuracy and no other rule came above it."
    assert run(0.9) == "R0, the baseline, reached 90.0 % accuracy."
    assert run(math.nan, 0.4) == "R1 reached the highest accuracy, 40.0 %."
    assert run(math.nan) == ""
    assert run() == ""
    told = " ".join(findings(make_run())).replace("\u00a0", " ")
    assert "The 2 attackers (33 % of the clients) held" in told
    assert "and 0.0 % under Krum." in told
    assert "The client served worst has 45.0 % under Krum and 20.0 % under FedAvg." in told


@pytest.mark.parametrize(
    "report",
    [
        RunReport("Nothing", "", {}, 0, (), ()),
        RunReport("No rule", "", {"a": 1}, 5, (), ("x",), np.ones((1, 3))),
        RunReport("No round", "", {}, 0, (RuleReport("r", "R", np.empty((2, 0)), np.empty((1, 0))),), ("x",)),
        RunReport("No seed", "", {}, 3, (RuleReport("r", "R", np.empty((0, 3))),), ("x", "y")),
        RunReport(
            "All NaN",
            "",
            {},
            3,
            (RuleReport("r", "R", np.full((2, 3), np.nan), np.full((2, 3), np.nan), None, {"accuracy": np.nan}),),
            ("x", "y"),
            np.zeros((2, 0)),
            (0, 1),
        ),
        make_run(1, 1, 1, attackers=()),
        make_run(attackers=(0, 1, 2, 3, 4, 5)),
        make_run(participation=0.0),
    ],
    ids=lambda r: r.title,
)
def test_runs_of_degenerate_data(report: RunReport) -> None:
    html = render(report)
    Page(html)
    svgs(html)
    assert ">nan" not in html.lower()


def test_hostile_names_stay_text() -> None:
    names = tuple(f"{HOSTILE}{i}" for i in range(6))
    report = make_run(names=names)
    rules = tuple(
        dataclasses.replace(r, name=HOSTILE, label=f"{HOSTILE}{i}", explanation=HOSTILE, final={HOSTILE: 1.0})
        for i, r in enumerate(report.rules)
    )
    report = changed(
        report,
        rules=rules,
        title=HOSTILE,
        subtitle=HOSTILE,
        config={HOSTILE: HOSTILE, "n": {HOSTILE: [HOSTILE]}},
        notes=(HOSTILE,),
        class_labels=tuple(f"{HOSTILE}{i}" for i in range(10)),
    )
    html = render(report)
    page, plain = Page(html), Page(render(make_run()))
    assert page.count("script") == plain.count("script") == 1
    assert "<script>alert" not in html
    assert "\u202e" not in html
    assert "\x00" not in html
    assert "<script>alert('x')</script>" in page.words(), "it is shown as it was written"
    svgs(html)


def test_names_of_other_scripts_are_kept() -> None:
    names = ("東京", "عيادة", "Zoë", "👩‍🔬", "e\u0301", "x" * 300)
    words = Page(render(make_run(names=names))).words()
    for name in names:
        assert name in words


def test_configuration_is_flat_and_readable() -> None:
    config = {
        "a": {"b": {"c": 0.1}, "empty": {}},
        "on": True,
        "none": None,
        "list": [1, 2.5, "x"],
        "array": np.array([1, 2]),
        "number": np.float64(0.5),
        "truth": np.bool_(False),
    }
    rows = rows_of(render(changed(make_run(), config=config)), "config")
    assert rows == [
        ["a.b.c", "0.1"],
        ["a.empty", "–"],
        ["on", "true"],
        ["none", "–"],
        ["list", "1, 2.5, x"],
        ["array", "1, 2"],
        ["number", "0.5"],
        ["truth", "false"],
    ]


def test_data_that_do_not_fit_are_refused_with_names_and_shapes() -> None:
    rule = RuleReport("krum", "Krum", np.zeros((2, 3)), np.zeros((2, 3)))
    ok = {"title": "t", "subtitle": "", "config": {}, "rounds": 3, "rules": (rule,), "clients": ("a", "b")}
    RunReport(**ok)  # type: ignore[arg-type]
    for change, message in (
        ({"rounds": 4}, r"rule 'krum': accuracy has shape \(2, 3\), expected \(2, 4\) \(seeds x rounds\)"),
        ({"clients": ("a", "b", "c")}, r"rule 'krum': weights has shape \(2, 3\), expected \(3, 3\)"),
        ({"clients": ("a", "a")}, "'a' is there 2 times"),
        ({"clients": "ab"}, "sequence of texts"),
        ({"attackers": (2,)}, "attackers holds 2, but there are only clients 0 to 1"),
        ({"attackers": (-1,)}, "attackers holds -1"),
        ({"label_counts": np.zeros((3, 2))}, r"label_counts has shape \(3, 2\), expected \(2, 2\)"),
        ({"label_counts": np.zeros((2, 2)), "class_labels": ("x",)}, "class_labels names 1 classes"),
        ({"notes": "text"}, "the notes must be a sequence"),
    ):
        with pytest.raises(ReportError, match=message):
            RunReport(**{**ok, **change})  # type: ignore[arg-type]
    with pytest.raises(ReportError, match=r"expected \(seeds, rounds\)"):
        RuleReport("krum", "Krum", np.zeros(3))
    with pytest.raises(ReportError, match="the values of a relation"):
        Relation(np.zeros((2, 3)), ("a", "b"))
    with pytest.raises(ReportError, match="'squared distance' or 'cosine', not 'euclid'"):
        Relation(np.zeros((1, 1)), ("a",), "euclid")  # type: ignore[arg-type]


def test_inputs_are_not_changed() -> None:
    report = make_run()
    before = [r.accuracy.copy() for r in report.rules], report.rules[0].weights.copy()  # type: ignore[union-attr]
    render(report)
    assert all((a == b.accuracy).all() for a, b in zip(before[0], report.rules, strict=True))
    assert np.array_equal(before[1], report.rules[0].weights, equal_nan=True)  # type: ignore[arg-type]


def test_the_same_run_gives_the_same_bytes_in_another_process() -> None:
    here = hashlib.sha256(render(make_run()).encode()).hexdigest()
    assert hashlib.sha256(render(make_run()).encode()).hexdigest() == here
    code = (
        "import hashlib; from pluribus.report import render; from report_samples import make_run;"
        "print(hashlib.sha256(render(make_run()).encode()).hexdigest())"
    )
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "TZ": "Asia/Tokyo",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here


def test_importing_the_report_is_light() -> None:
    code = "import sys, pluribus.report; print({'jinja2', 'torch', 'matplotlib', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_large_run_stays_a_page() -> None:
    html = render(make_run(100, 1000, 3, attackers=tuple(range(0, 100, 9)), participation=0.5))
    assert len(html) < 2_500_000
    assert "mean over 5 neighbouring rounds" in html


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    html = render(make_run(names=("東京", *"abcde")))
    write_text(tmp_path / "report.html", html)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
