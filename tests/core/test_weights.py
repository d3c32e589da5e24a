"""Weights: n numbers, measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pluribus.core import weights
from pluribus.core.errors import WeightError

positive = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


@given(positive)
def test_effective_size_lies_between_one_and_n(w):
    assert 1 - 1e-9 <= weights.effective_size(w) <= len(w) + 1e-9
    assert weights.effective_size([3.0] * len(w)) == pytest.approx(len(w))
    assert weights.effective_size([0.0] * len(w) + [2.0]) == 1.0


def test_effective_size_is_one_over_the_sum_of_squares():
    shares = np.array([0.5, 0.3, 0.2])
    assert weights.effective_size(shares) == pytest.approx(1 / (shares**2).sum())
    assert weights.effective_size([0.0]) == 0.0


def test_entropy():
    assert weights.entropy([1, 1, 1, 1]) == pytest.approx(np.log(4))
    assert weights.entropy([0, 5]) == 0.0


@given(positive, st.floats(0, 1))
def test_floored_weights(w, share):
    floor = share / len(w)
    found = weights.floored(w, floor)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= floor - 1e-12
    big = np.flatnonzero(found > floor + 1e-9)
    ratio = found[big] / np.asarray(w)[big]
    assert not ratio.size or np.ptp(ratio) <= 1e-9 * ratio.max(), "those above the floor keep their proportions"


def test_floor_out_of_range():
    with pytest.raises(WeightError, match="1/n"):
        weights.floored([1, 1], 0.6)


@given(positive)
def test_normalise(w):
    assert weights.normalise(np.array(w)).sum() == pytest.approx(1)
