"""The page of one aggregation, and what a notebook shows."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from report_samples import HOSTILE, Page, make_aggregate

from pluribus.report import AggregateReport, Relation, ReportError, fragment, render_aggregate


def test_the_page_shows_weights_influence_distances_and_relation() -> None:
    html = render_aggregate(make_aggregate())
    page = Page(html)
    assert [a["id"] for tag, a in page.elements if tag == "figure"] == ["w", "i", "d", "r"]
    assert page.count("details") == 4
    words = page.words()
    for text in ("One aggregation", "Krum(f=1)", "It takes one.", "A note.", "5 contributors", "3.25 effective"):
        assert text in words
    for text in ("0.5 dispersion", "1 attacker", "equal share 0.2", "distance to the result"):
        assert text in words
    assert len(page.ids()) == len(set(page.ids()))
    assert html == render_aggregate(make_aggregate())


@pytest.mark.parametrize("n", [0, 1, 2, 30, 1000])
def test_any_number_of_contributors(n: int) -> None:
    report = make_aggregate(n)
    Page(render_aggregate(report))
    Page(fragment(report))


def test_what_is_not_known_is_not_shown() -> None:
    bare = AggregateReport("Bare", ("a", "b"))
    page = Page(render_aggregate(bare))
    assert page.count("figure") == 0
    assert "dispersion" not in page.words()
    assert "Bare" in Page(fragment(bare)).words()


def test_numbers_that_are_none() -> None:
    report = AggregateReport(
        "Odd",
        ("a", "b", "c"),
        np.array([np.nan, 0.5, np.inf]),
        np.array([np.nan, np.inf, -1.0]),
        np.full(3, np.nan),
        np.nan,
        np.inf,
        Relation(np.full((3, 3), np.nan), ("a", "b", "c")),
    )
    for html in (render_aggregate(report), fragment(report)):
        Page(html)
        assert ">nan" not in html.lower()


def test_the_fragment_is_confined_and_needs_no_script() -> None:
    html = fragment(make_aggregate())
    page = Page(html)
    assert page.count("script") == page.count("body") == page.count("html") == 0
    css = re.findall(r"<style>(.*?)</style>", html, flags=re.S)[0]
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", css.replace("@media screen and (prefers-color-scheme:dark){", ""))
    selectors = [part.strip() for rule in rules for part in rule.split(",")]
    assert selectors
    assert all(s.startswith(".pluribus") for s in selectors), [s for s in selectors if not s.startswith(".pluribus")]
    drawing = ET.fromstring(re.findall(r"<svg.*?</svg>", html, flags=re.S)[0])
    assert sum(e.get("class", "").startswith("cell ") for e in drawing.iter()) == 25
    assert "site 0, site 1: " in html


def test_fragments_do_not_share_ids() -> None:
    one, other = make_aggregate(), make_aggregate(name="clinic")
    assert fragment(one) == fragment(make_aggregate())
    assert not set(Page(fragment(one)).ids()) & set(Page(fragment(other)).ids())


def test_the_fragment_shows_the_largest_weights_first_when_there_are_many() -> None:
    words = Page(fragment(make_aggregate(40))).words()
    assert "and 28 more, of no larger weight" in words
    assert words.index("site 39") < words.index("site 38")
    assert "site 3 " not in words


def test_hostile_names_stay_text() -> None:
    report = make_aggregate(name=HOSTILE)
    report = dataclasses.replace(
        report, title=HOSTILE, rule=HOSTILE, explanation=HOSTILE, notes=(HOSTILE,), mark_name=HOSTILE
    )
    for html in (render_aggregate(report), fragment(report)):
        assert "<script>alert" not in html
        assert "<script>alert('x')</script>" in Page(html).words()
        for text in re.findall(r"<svg.*?</svg>", html, flags=re.S):
            ET.fromstring(text)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ReportError, match=r"weights has shape \(3,\), expected \(2,\) \(one for each contributor\)"):
        AggregateReport("t", ("a", "b"), np.ones(3))
    with pytest.raises(ReportError, match="marked holds 5"):
        AggregateReport("t", ("a", "b"), marked=(5,))


def test_influence_among_few_is_no_sign_of_an_attack() -> None:
    assert "Influence is no sign of an attack" in render_aggregate(make_aggregate(5))
    assert "Influence is no sign of an attack" not in render_aggregate(make_aggregate(21))
    assert "no sign of an attack" not in render_aggregate(dataclasses.replace(make_aggregate(5), influence=None))
