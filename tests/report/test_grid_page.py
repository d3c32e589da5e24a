"""The page of several experiments, and what a run's page says about time and contributions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pluribus import report
from pluribus.report.page import _held


def grid(**changes) -> report.GridReport:
    given = {
        "title": "two",
        "subtitle": "",
        "cells": (report.GridCell("a<b", "x/report.html", {"attack": "none"}), report.GridCell("c", "y")),
        "rules": ("fedavg", "median"),
        "accuracy": np.array([[0.5, np.nan], [0.625, 0.25]]),
        "spread": np.array([[0.1, np.nan], [np.nan, 0.0]]),
        "marks": (("", ""), ("best", "tied")),
    }
    return report.GridReport(**(given | changes))


def test_cells_marks_and_links():
    page = report.render_grid(grid())
    assert 'href="x/report.html"' in page
    assert "a&lt;b" in page
    assert "★ 62.5" in page
    assert "≈ 25.0" in page
    assert "± 10.0" in page
    assert '<td><span class="">–</span></td>' in page
    assert page == report.render_grid(grid())


@pytest.mark.parametrize(
    "changes",
    [{"accuracy": np.zeros((1, 2))}, {"marks": (("", ""),)}, {"marks": (("", "good"), ("", ""))}],
)
def test_what_does_not_fit(changes):
    with pytest.raises(report.ReportError):
        grid(**changes)


def test_accuracy_is_held_between_measurements():
    time, accuracy = np.array([1.0, 2.0, 4.0]), np.array([0.3, np.nan, 0.6])
    held = _held(time, accuracy, np.array([0.0, 1.0, 3.9, 4.0, 4.1]))
    np.testing.assert_array_equal(held, [np.nan, 0.3, 0.3, 0.6, np.nan])
    assert np.isnan(_held(time, np.full(3, np.nan), np.array([1.0]))).all()


def run(**changes) -> report.RunReport:
    rule = report.RuleReport("fedavg", "fedavg", np.array([[0.5, 0.75]]), **changes)
    return report.RunReport("t", "", {}, 2, (rule,), ("one", "two"), verdict=("so & so",), timed=True)


def test_time_contributions_and_the_verdict():
    page = report.render(run(time=np.array([[1.0, 9.0]]), contributions={"loss lowered by it": np.array([0.125, -1])}))
    assert "Accuracy over simulated time" in page
    assert "loss lowered by it" in page
    assert "0.125" in page
    assert "so &amp; so" in page
    assert "Accuracy over simulated time" not in report.render(run())
    for wrong in ({"time": np.zeros((2, 2))}, {"contributions": {"x": np.zeros(3)}}):
        with pytest.raises(report.ReportError, match="fedavg"):
            dataclasses.replace(run(**wrong))
