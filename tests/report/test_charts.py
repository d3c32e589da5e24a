"""Every chart is well-formed, says what it shows, and stands whatever the numbers are."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from report_samples import HOSTILE

from pluribus.report.figure import Figure, grouped
from pluribus.report.lines import _spread, tick_places
from pluribus.report.scales import axis
from pluribus.report.svg import Series, bar_chart, heat_map, interval_mark, line_chart, relation_map, stacked_bars
from pluribus.report.text import text_width

SVG = "{http://www.w3.org/2000/svg}"


def names(n: int) -> list[str]:
    return [f"n{i}" for i in range(n)]


def checked(figure: Figure) -> ET.Element:
    """The drawing, parsed: named, described, inside its box, without a number that is none."""
    for text in filter(None, (figure.svg, figure.narrow)):
        root = ET.fromstring(text)
        ids = [e.get("id") for e in root.iter() if e.get("id")]
        assert len(ids) == len(set(ids))
        title, description = root[0], root[1]
        assert (title.tag, description.tag) == (f"{SVG}title", f"{SVG}desc")
        assert title.text
        assert description.text
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert root.get("role") == "img"
        numbers = " ".join(
            value
            for e in root.iter()
            for key, value in e.attrib.items()
            if key in {"x", "y", "width", "height", "d", "transform", "x1", "y1", "viewBox", "data-plot"}
        )
        assert not re.search(r"nan|inf|e[+-]\d", numbers)
        _, _, width, height = map(float, root.get("viewBox", "").split())
        for e in root.iter(f"{SVG}rect"):
            assert float(e.get("x", 0)) + float(e.get("width", 0)) <= width + 1
            assert float(e.get("y", 0)) + float(e.get("height", 0)) <= height + 1
    for row in figure.table.rows:
        assert len(row) == len(figure.table.head)
    return ET.fromstring(figure.svg)


def classes(root: ET.Element, tag: str, kind: str) -> list[ET.Element]:
    return [e for e in root.iter(SVG + tag) if kind in (e.get("class") or "").split()]


def texts(root: ET.Element) -> list[str]:
    return [e.text or "" for e in root.iter(f"{SVG}text")]


# Curves


def curves(*means: list[float], banded: bool = True) -> list[Series]:
    rows = [np.array(m, dtype=float) for m in means]
    return [
        Series(f"rule {i}", m, m - 0.1 if banded else None, m + 0.1 if banded else None) for i, m in enumerate(rows)
    ]


def test_lines_have_a_curve_a_band_a_mark_and_a_name_each() -> None:
    figure = line_chart(curves([0.1, 0.5, 0.9], [0.2, 0.3, 0.4]), ["1", "2", "3"], key="k", title="T", y_label="acc")
    root = checked(figure)
    assert len(classes(root, "path", "curve")) == 2
    assert len(classes(root, "path", "band")) == 2
    assert len(classes(root, "path", "mark")) == 2
    assert {"rule 0", "rule 1", "acc", "round"} <= set(texts(root))
    assert figure.table.rows[1] == ("2", "0.5 (0.4 to 0.6)", "0.3 (0.2 to 0.4)")
    assert {"rule 0", "rule 1"} <= set(texts(ET.fromstring(figure.narrow)))


def test_a_curve_runs_where_the_numbers_say() -> None:
    root = checked(line_chart(curves([0.0, 1.0, 0.5], banded=False), ["1", "2", "3"], key="k", title="T"))
    path = classes(root, "path", "curve")[0].get("d", "")
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, p.split())) for p in path[1:].split("L"))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert y0 > y2 > y1, "larger is higher"
    assert y2 == pytest.approx((y0 + y1) / 2, abs=0.02)
    left, top, width, height = map(float, root.get("data-plot", "").split())
    assert (x0, x2) == pytest.approx((left, left + width), abs=0.02)
    assert (y1, y0) == pytest.approx((top, top + height), abs=0.02)


@pytest.mark.parametrize(
    "series",
    [
        [],
        curves([]),
        curves([0.5]),
        curves([np.nan, np.nan]),
        curves([np.nan, 0.3, np.nan, 0.4]),
        curves([1.0, 1.0, 1.0]),
        curves([np.inf, -np.inf, 0.0]),
        curves([1e300, -1e300]),
        curves([0.5], banded=False),
        curves(*[[0.5, 0.5]] * 30),
    ],
    ids=lambda s: f"{len(s)}x{len(s[0].mean) if s else 0}",
)
def test_lines_of_degenerate_data(series: list[Series]) -> None:
    points = names(len(series[0].mean)) if series else []
    root = checked(line_chart(series, points, key="k", title="T"))
    if not any(np.isfinite(s.mean).any() for s in series):
        assert "nothing was measured" in texts(root)


def test_thirty_lines_all_look_different() -> None:
    root = checked(line_chart(curves(*[[0.5, i / 30] for i in range(30)]), ["1", "2"], key="k", title="T"))
    looks = set()
    for group in root.iter(f"{SVG}g"):
        if "series" in (group.get("class") or ""):
            looks.add((group.get("class"), classes(group, "path", "mark")[0].get("d")))
    assert len(looks) == 30


def test_many_points_are_averaged_and_it_is_said() -> None:
    mean = np.linspace(0, 1, 1000)
    figure = line_chart([Series("a", mean)], names(1000), key="k", title="T")
    checked(figure)
    assert figure.notes == ("Each point is the mean of 3 neighbouring ones.",)
    assert len(figure.table.rows) == 334
    assert figure.table.rows[0][0] == "n0–n2"
    assert len(figure.svg) < 20_000


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_labels_are_moved_apart_but_no_further(wanted: list[float]) -> None:
    wanted.sort()
    places = _spread(wanted, 10.0, 0.0, 200.0)
    assert (np.diff(places) >= 10 - 1e-9).all()
    assert min(places) >= 0
    assert max(places) <= 200 + 1e-9
    if (np.diff(wanted) >= 10).all():
        assert places == pytest.approx(wanted)


def test_ticks_of_points() -> None:
    assert tick_places(3, 10, 100) == [0, 1, 2]
    assert tick_places(60, 13, 600) == [0, *range(4, 60, 5)]
    assert tick_places(0, 0, 100) == []
    assert len(tick_places(100_000, 30, 300)) <= 8


# Heat maps


def cell_count(root: ET.Element) -> int:
    group = classes(root, "g", "cells")[0]
    return sum(int(run) for path in group for run in re.findall(r"h(\d+)", path.get("d", "")))


def painted(root: ET.Element, shape: tuple[int, int]) -> np.ndarray:
    """The level of each cell as the paths paint it, -1 where the ground shows."""
    grid = np.full(shape, -1)
    for path in classes(root, "g", "cells")[0]:
        x = y = 0
        for dx, dy, run in re.findall(r"m(-?\d+) (-?\d+)h(\d+)", path.get("d", "")):
            x, y = x + int(dx), y + int(dy)
            assert (grid[y, x : x + int(run)] == -1).all(), "painted twice"
            grid[y, x : x + int(run)] = int((path.get("class") or "")[1:])
            x += int(run)
    return grid


@given(arrays(float, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.sampled_from([0, 1, 2, 3, np.nan])))
@settings(max_examples=50)
def test_the_paths_paint_exactly_the_levels(values: np.ndarray) -> None:
    from pluribus.report.scales import linear_scale

    root = checked(heat_map(values, names(values.shape[0]), names(values.shape[1]), key="k", title="T"))
    assert (painted(root, values.shape) == linear_scale(values).levels(values)).all()


def test_absent_clients_are_hatched_and_the_legend_says_so() -> None:
    values = np.array([[0.5, np.nan], [0.5, 1.0]])
    root = checked(heat_map(values, ["a", "b"], ["1", "2"], key="k", title="T", absent="did not take part"))
    assert cell_count(root) == 3
    assert len(list(root.iter(f"{SVG}pattern"))) == 1
    assert "did not take part" in texts(root)
    full = checked(heat_map(np.ones((2, 2)), ["a", "b"], ["1", "2"], key="k", title="T", absent="did not take part"))
    assert not list(full.iter(f"{SVG}pattern"))
    assert "did not take part" not in texts(full)


def test_attackers_are_flagged_in_drawing_and_table() -> None:
    figure = heat_map(np.ones((3, 2)), names(3), ["1", "2"], key="k", title="T", marked=(1,))
    root = checked(figure)
    assert len(classes(root, "path", "flag")) == 2, "one in the legend, one at the row"
    assert [e.text for e in classes(root, "text", "warn")] == ["attacker", "n1"]
    assert figure.table.marked == {1}


def test_where_names_do_not_fit_those_of_attackers_come_first() -> None:
    root = checked(heat_map(np.ones((100, 2)), names(100), ["1", "2"], key="k", title="T", marked=(1, 50, 99)))
    shown = [e for e in classes(root, "text", "end") if (e.text or "").startswith("n")]
    assert {"n1", "n50", "n99"} <= {e.text for e in shown}
    assert "n0" not in {e.text for e in shown}
    heights = sorted(float(e.get("y", "")) for e in shown)
    assert min(np.diff(heights)) >= 11.5
    assert len(classes(root, "path", "flag")) == 4


def test_a_hundred_by_a_thousand_stays_small_and_says_that_it_averages() -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random((100, 1000)) < 0.5, rng.random((100, 1000)), np.nan)
    figure = heat_map(values, names(100), names(1000), key="k", title="T", column_label="round")
    root = checked(figure)
    assert len(figure.svg) < 250_000
    assert "mean over 5 neighbouring rounds" in figure.notes[0]
    assert root.get("data-grid") == "100 200"
    assert figure.table.head[1] == "n0–n4"
    assert float(figure.table.rows[0][1]) == pytest.approx(np.nanmean(values[0, :5]), abs=1e-3)


def test_groups_average_what_is_there() -> None:
    means, groups = grouped(np.array([[1.0, np.nan, 3.0, np.nan, np.nan], [np.inf, 1.0, 1e308, 1e308, 0.0]]), 3)
    assert groups == [(0, 1), (2, 3), (4, 4)]
    assert np.array_equal(means, [[1.0, 3.0, np.nan], [np.inf, 1e308, 0.0]], equal_nan=True)
    same, _ = grouped(np.ones((2, 3)), 3)
    assert same.shape == (2, 3)
    assert grouped(np.empty((2, 0)), 3)[0].shape == (2, 0)


def test_a_huge_distance_does_not_flatten_the_rest() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(12, 5))
    points[3] = 1e6
    squared = ((points[:, None] - points[None]) ** 2).sum(-1)
    figure = relation_map(squared, names(12), "squared distance", key="k", title="T")
    grid = painted(checked(figure), (12, 12))
    honest = np.delete(np.delete(grid, 3, 0), 3, 1)
    assert np.unique(honest).size >= 6
    assert grid[3, np.arange(12) != 3].min() > honest.max()
    assert "rank" in figure.notes[0]


def test_cosines_are_even_around_zero_and_ignore_the_diagonal() -> None:
    values = np.array([[1.0, 0.2, -0.2], [0.2, 1.0, 0.0], [-0.2, 0.0, 1.0]])
    grid = painted(checked(relation_map(values, names(3), "cosine", key="k", title="T")), (3, 3))
    assert grid.tolist() == [[24, 24, 0], [24, 24, 12], [0, 12, 24]]


DEGENERATE: dict[str, np.ndarray] = {
    "empty": np.empty((0, 0)),
    "one": np.ones((1, 1)),
    "zeros": np.zeros((3, 3)),
    "all absent": np.full((3, 3), np.nan),
    "infinite": np.full((2, 2), np.inf),
    "mixed": np.array([[0.0, np.inf, np.nan], [-np.inf, 1e308, -1e308], [1e-320, 1.0, -1.0]]),
}


@pytest.mark.parametrize("values", DEGENERATE.values(), ids=DEGENERATE.keys())
@pytest.mark.parametrize("kind", ["squared distance", "cosine"])
def test_heat_maps_of_degenerate_data(values: np.ndarray, kind: str) -> None:
    n = len(values)
    root = checked(heat_map(values, names(n), names(n), key="k", title="T"))
    assert ("nothing to show" in texts(root)) == (n == 0)
    checked(relation_map(np.abs(values) if kind[0] == "s" else values, names(n), kind, key="k", title="T"))  # type: ignore[arg-type]
    titled = checked(relation_map(np.abs(values), names(n), "squared distance", key="k", title="T", cell_titles=True))
    assert len(classes(titled, "rect", "cell")) == n * n
    checked(heat_map(values[:, :0], names(n), [], key="k", title="T"))


def test_more_contributors_than_pixels() -> None:
    figure = relation_map(np.ones((1000, 1000)), names(1000), "squared distance", key="k", title="T")
    checked(figure)
    assert len(figure.table.rows) <= 120
    assert any("neighbouring" in note for note in figure.notes)


def test_cell_titles_name_row_column_and_value() -> None:
    figure = heat_map(np.array([[0.25]]), ["<a>"], ["b"], key="k", title="T", cell_titles=True)
    cell = classes(checked(figure), "rect", "cell")[0]
    assert cell[0].text == "<a>, b: 0.25"


# Bars


def test_bars_are_as_long_as_the_values() -> None:
    root = checked(bar_chart(names(3), np.array([0.2, 0.4, 0.0]), key="k", title="T", landmark=0.3, marked=(1,)))
    widths = [float(e.get("width", "")) for e in classes(root, "rect", "bar")]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.02)
    assert widths[2] == 0
    assert len(classes(root, "rect", "warned")) == 1
    assert len(classes(root, "line", "landmark")) == 1
    assert "equal share 0.3" in texts(root)
    assert next(classes(root, "rect", "bar")[0].iter()).get("rx")


@pytest.mark.parametrize("n", [0, 1, 5, 101, 1000])
@pytest.mark.parametrize("fill", [0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e308])
def test_bars_of_degenerate_data(n: int, fill: float) -> None:
    figure = bar_chart(names(n), np.full(n, fill), key="k", title="T", landmark=0.1)
    root = checked(figure)
    assert len(classes(root, "rect", "bar")) == min(n, 100)
    assert len(figure.table.rows) == n
    assert bool(figure.notes) == (n > 100)


def test_of_many_bars_the_largest_are_drawn() -> None:
    values = np.zeros(300)
    values[[5, 250]] = 1, -2
    root = checked(bar_chart(names(300), values, key="k", title="T"))
    hints = [e.text for e in root.iter(f"{SVG}title")][1:]
    assert "n5: 1" in hints
    assert "n250: −2" in hints
    assert len(hints) == 100


def test_stacks_add_up() -> None:
    counts = np.array([[3, 0, 1], [0, 0, 0], [2, 2, 2]])
    figure = stacked_bars(names(3), counts, ["cat", "dog", "<cow>"], key="k", title="T", marked=(2,))
    root = checked(figure)
    parts = [e for e in classes(root, "rect", "part") if e.get("x") != "-6"]
    assert len(parts) == 5
    widths = [float(e.get("width", "")) for e in parts]
    assert widths[0] == pytest.approx(3 * widths[1], abs=0.05)
    assert figure.table.rows[0] == ("n0", "3", "0", "1", "4")
    assert "n0, class cat: 3" in [e.text for e in root.iter(f"{SVG}title")]


@pytest.mark.parametrize(
    "counts",
    [np.empty((0, 0)), np.empty((3, 0)), np.empty((0, 3)), np.full((2, 2), np.nan), np.full((2, 2), -1.0),
     np.full((2, 2), np.inf), np.ones((120, 26)), np.full((1, 1), 1e300)],
    ids=lambda a: f"{a.shape}",
)  # fmt: skip
def test_stacks_of_degenerate_data(counts: np.ndarray) -> None:
    figure = stacked_bars(names(counts.shape[0]), counts, names(counts.shape[1]), key="k", title="T")
    root = checked(figure)
    if counts.shape[1] > 10:
        assert "17 other classes" in texts(root)
        assert any("nine" in note or "9 most" in note for note in figure.notes)


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf])
@pytest.mark.parametrize("spread", [0.1, np.nan, np.inf])
def test_interval_marks(value: float, spread: float) -> None:
    root = ET.fromstring(interval_mark(value, spread, axis(np.array([0.0, 1.0])), np.nan))
    assert root.get("aria-hidden") == "true"
    assert len(list(root.iter(f"{SVG}circle"))) == int(np.isfinite(value))


# All of them


def everything(name: str) -> list[Figure]:
    rows = [name, "other"]
    return [
        line_chart([Series(name, np.array([0.1, 0.2]))], rows, key="k", title=name, x_label=name, y_label=name),
        heat_map(
            np.eye(2), rows, rows, key="k", title=name, quantity=name, row_label=name, marked=(0,), mark_name=name
        ),
        relation_map(np.eye(2), rows, "cosine", key="k", title=name, marked=(0,)),
        bar_chart(rows, np.ones(2), key="k", title=name, quantity=name, marked=(0,), mark_name=name),
        stacked_bars(rows, np.ones((2, 2)), rows, key="k", title=name, quantity=name, marked=(0,), mark_name=name),
    ]


@pytest.mark.parametrize("name", [HOSTILE, "東京の病院" * 30, "عيادة", "e\u0301👩‍🔬", "", " ", "]]>", "&#0;"])
def test_names_are_text_and_nothing_else(name: str) -> None:
    plain = [{e.tag for e in checked(figure).iter()} for figure in everything("plain")]
    for figure, tags in zip(everything(name), plain, strict=True):
        if name.strip():
            root = checked(figure)
            assert {e.tag for e in root.iter()} <= tags, "a name added an element"
        assert "<script" not in figure.svg
        assert "\u202e" not in figure.svg


def test_the_same_numbers_give_the_same_bytes() -> None:
    make: list[Callable[[], list[Figure]]] = [lambda: everything("a"), lambda: everything("a")]
    assert [f.svg for f in make[0]()] == [f.svg for f in make[1]()]


def test_no_number_is_struck_through_by_the_landmark() -> None:
    values = np.array([0.02, 0.045, 0.049, 0.05, 0.051, 0.09])
    figure = bar_chart([str(i) for i in range(6)], values, key="b", title="t", landmark=0.05)
    root = ET.fromstring(figure.svg)
    dashed = [float(e.get("x1", "")) for e in root.iter() if e.get("class") == "landmark"]
    shown = {t.text: float(t.get("x", "")) for t in root.iter() if t.get("class") == "soft halo"}
    assert len(shown) == len(values)
    assert all(not x < dashed[0] < x + text_width(str(text)) for text, x in shown.items())
