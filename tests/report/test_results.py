"""Results of the core show themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from report_samples import Page

import pluribus
from pluribus import rules


@pytest.fixture
def updates(rng: np.random.Generator) -> dict[str, np.ndarray]:
    found = {f"site <{i}>": rng.normal(size=50) for i in range(8)}
    found["site <3>"] = found["site <3>"] + 1e5
    return found


def figures(html: str) -> list[str]:
    return [str(a["id"]) for tag, a in Page(html).elements if tag == "figure"]


@pytest.mark.parametrize("rule", ["mean", "median", "multi_krum", "geometric_median"])
def test_a_report_has_weights_influence_distances_and_relation(
    tmp_path: Path, updates: dict[str, np.ndarray], rule: str
) -> None:
    options = {"f": 1} if rule == "multi_krum" else {}
    aggregate = pluribus.aggregate(updates, rule, **options)
    path = aggregate.report(tmp_path / "page.html")
    html = path.read_text(encoding="utf-8")
    assert figures(html) == ["w", "i", "d", "r"]
    words = Page(html).words()
    assert "site <3>" in words
    assert str(aggregate.rule) in words
    assert "8 contributors, one result" in words
    assert f"{aggregate.weights[0]:.4g}" in words
    aggregate.report(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == html


@pytest.mark.parametrize("rule", ["mean", "median", "geometric_median"])
def test_a_notebook_shows_it(updates: dict[str, np.ndarray], rule: str) -> None:
    html = pluribus.aggregate(updates, rule)._repr_html_()
    page = Page(html)
    assert "site <0>" in page.words()
    assert ("Squared distance" in page.words()) == (rule == "geometric_median"), "only what the rule has seen"


def test_who_was_left_out_is_marked(tmp_path: Path, updates: dict[str, np.ndarray]) -> None:
    updates["site <5>"] = np.full(50, np.nan)
    aggregate = rules.GeometricMedian()(updates, nonfinite="drop")
    words = Page(aggregate.report(tmp_path / "p.html").read_text(encoding="utf-8")).words()
    assert "site <5> dropped or cleaned" in words
    assert "site <5> was dropped or cleaned: NaN" in words
    assert "site <5> dropped or cleaned" in Page(aggregate._repr_html_()).words()


@pytest.mark.parametrize("name", ["it's", 'a "b"', "back\\slash", "'", "contributor 'x'", "1", "東京"])
def test_names_are_shown_as_they_were_given(name: str) -> None:
    assert name in Page(pluribus.aggregate({name: np.ones(3), "other": np.zeros(3)})._repr_html_()).words()


def test_one_contributor(tmp_path: Path) -> None:
    aggregate = pluribus.aggregate([np.ones(3)])
    Page(aggregate.report(tmp_path / "p.html").read_text(encoding="utf-8"))
    Page(aggregate._repr_html_())


def test_several_results(tmp_path: Path, updates: dict[str, np.ndarray]) -> None:
    aggregate = pluribus.aggregate(list(updates.values()), "mean", np.eye(8)[:3])
    html = aggregate.report(tmp_path / "p.html").read_text(encoding="utf-8")
    assert "8 contributors, 3 results" in Page(html).words()
    assert "k" in figures(html)
    Page(aggregate._repr_html_())
