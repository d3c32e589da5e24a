"""Axes with round ticks; colours that an outlier does not flatten."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pluribus.report.palette import LEVELS
from pluribus.report.scales import axis, diverging_scale, linear_scale, robust_scale

anything = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), max_size=12)


@given(anything, st.booleans())
def test_an_axis_holds_every_finite_value(values: list[float], zero: bool) -> None:
    found = axis(np.array(values), zero=zero)
    assert math.isfinite(found.low)
    assert found.low < found.high
    assert 2 <= len(found.ticks) <= 14
    for value in values:
        assert math.isnan(value) or 0 <= found.place(value) <= 1
        if math.isfinite(value) and abs(value) < 1e300:
            slack = 1e-6 * max(abs(found.low), abs(found.high))
            assert found.low - slack <= value <= found.high + slack


def test_ticks_are_round() -> None:
    assert axis(np.array([0.12, 0.93]), floor=0.0).ticks == pytest.approx((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    assert axis(np.array([3.0]), zero=True).low == 0
    assert axis(np.array([0.0, 0.001]), floor=0.0).low == 0
    assert axis(np.array([])).ticks[0] == 0


@given(anything)
def test_every_value_has_a_level_and_nan_has_none(values: list[float]) -> None:
    array = np.array(values)
    for scale in (linear_scale(array), diverging_scale(array), robust_scale(array)):
        levels = scale.levels(array)
        assert levels.shape == array.shape
        assert ((levels == -1) == np.isnan(array)).all()
        assert levels.max(initial=0) < LEVELS[scale.family]
        order = np.argsort(array[~np.isnan(array)], kind="stable")
        assert (np.diff(levels[~np.isnan(array)][order]) >= 0).all()
        assert math.isfinite(scale.value_at(0.5))


@pytest.mark.parametrize("outliers", [1, 400, 700])
def test_outliers_leave_the_others_half_of_the_colours(outliers: int) -> None:
    honest = np.random.default_rng(0).uniform(1, 3, 1000)
    far = np.full(outliers, 1e12)
    scale = robust_scale(np.concatenate([honest, far]))
    assert np.unique(scale.levels(honest)).size >= LEVELS["q"] * 0.25
    assert scale.levels(far).min() == LEVELS["q"] - 1
    assert scale.levels(honest).max() < LEVELS["q"] - 4, "the gap between the groups stays a gap"
    assert "rank" in scale.note
    flat = linear_scale(np.concatenate([honest, far]))
    assert np.unique(flat.levels(honest)).size == 1, "what a straight scale would have done"


def test_mild_spreads_stay_straight_or_logarithmic() -> None:
    straight = robust_scale(np.array([1.0, 2.0, 5.0]))
    assert straight.note == ""
    assert straight.levels(np.array([2.5]))[0] == LEVELS["q"] // 2
    logarithmic = robust_scale(np.array([1.0, 10.0, 100.0]))
    assert "logarithm" in logarithmic.note
    assert logarithmic.levels(np.array([0.0, 10.0, np.inf])).tolist() == [0, LEVELS["q"] // 2, LEVELS["q"] - 1]
    assert logarithmic.value_at(0.5) == pytest.approx(10)


def test_a_diverging_scale_is_even_around_zero() -> None:
    scale = diverging_scale(np.array([-0.2, 0.6]))
    count = LEVELS["d"]
    assert scale.levels(np.array([-0.6, 0.0, 0.6, -9, 9])).tolist() == [0, count // 2, count - 1, 0, count - 1]


def test_nothing_and_constants() -> None:
    for values in (np.empty(0), np.zeros(3), np.full(3, np.nan), np.full(3, 7.0), np.full(2, np.inf)):
        for scale in (linear_scale(values), diverging_scale(values), robust_scale(values)):
            assert (np.diff(scale.knots) > 0).all()
            assert scale.levels(values).shape == values.shape
