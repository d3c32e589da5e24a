"""Coordinate weights against the formula, with masks of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, UndefinedError


@pytest.fixture
def x(rng):
    return rng.normal(size=(5, 4, 6))


@pytest.fixture
def masks(rng):
    made = rng.random((5, 4, 6)) < 0.6
    made[0] = True
    return made


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_directly(x, masks, dtype):
    w = np.array([1.0, 2.0, 0.5, 3.0, 1.0])
    x = x.astype(dtype)
    for m in (
        masks,
        masks.astype(np.int8),
        masks.astype(np.float32),
        masks * 1e30,
        masks * x.astype(float) ** 2 + 1e-3,
    ):
        weights = w[:, None, None] * m
        expected = (weights * x.astype(float)).sum(axis=0) / weights.sum(axis=0)
        found = rules.CoordinateWeights(list(m))(list(x), w)
        np.testing.assert_allclose(found.value, expected, rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
        assert found.value.dtype == dtype
        np.testing.assert_allclose(found.weights, (weights / weights.sum(axis=0)).mean(axis=(1, 2)), rtol=1e-9)


def test_ones_are_the_mean(x):
    found = rules.CoordinateWeights(list(np.ones_like(x)))(list(x), [1, 2, 3, 1, 1])
    np.testing.assert_allclose(found.value, aggregate(x, "mean", [1, 2, 3, 1, 1]).value, rtol=1e-14)


def test_trees_by_name_and_order_of_tensors(rng):
    rows = [{"a": rng.normal(size=3), "b": rng.normal(size=(2, 2)), "steps": np.array(k)} for k in range(3)]
    masks = [{"b": np.full((2, 2), k != 0), "a": np.full(3, k != 1)} for k in range(3)]
    found = rules.CoordinateWeights(masks)(rows).value
    np.testing.assert_allclose(found["a"], (rows[0]["a"] + rows[2]["a"]) / 2)
    np.testing.assert_allclose(found["b"], (rows[1]["b"] + rows[2]["b"]) / 2)
    assert found["steps"] == 1


def test_complex_numbers_have_one_weight(rng):
    x = rng.normal(size=(2, 5)) + 1j * rng.normal(size=(2, 5))
    m = np.array([[1, 0, 1, 3, 1], [1, 1, 0, 1, 2]])
    found = rules.CoordinateWeights(list(m))(list(x)).value
    np.testing.assert_allclose(found, (m * x).sum(axis=0) / m.sum(axis=0))


def test_where_nobody_takes_part(x, masks):
    masks[:, 2, 3] = False
    rule = rules.CoordinateWeights(list(masks))
    with pytest.raises(UndefinedError, match=r"the array: nobody takes part in element 15 .* reference="):
        rule(list(x))
    kept = np.full((4, 6), 7.0)
    assert rule(list(x), reference=kept).value[2, 3] == 7
    # A contributor of weight zero takes no part.
    masks[1, 2, 3] = True
    with pytest.raises(UndefinedError, match="element 15"):
        rule(list(x), [1, 0, 1, 1, 1])


def test_nonzero(rng):
    x = np.array([[1.0, 0.0, 0.0], [3.0, 0.0, 5.0]])
    np.testing.assert_array_equal(aggregate(x, "coordinate_weights").value, [2, 0, 5])
    np.testing.assert_array_equal(aggregate(x, "coordinate_weights", reference=np.ones(3)).value, [2, 1, 5])


def test_named_contributors(x, masks):
    rows = {f"client {k}": row for k, row in enumerate(x)}
    named = {f"client {k}": row for k, row in enumerate(masks)}
    found = rules.CoordinateWeights(named)(rows).value
    np.testing.assert_array_equal(found, rules.CoordinateWeights(list(masks))(list(x)).value)
    with pytest.raises(ContributionError, match="name both alike"):
        rules.CoordinateWeights(list(masks))(rows)


def test_dropped_contributors_take_their_masks_along(x, masks):
    x[3, 0, 0] = np.nan
    rule = rules.CoordinateWeights(list(masks))
    with pytest.raises(NonFiniteError, match="contributor 3"):
        rule(list(x))
    rest = [0, 1, 2, 4]
    expected = rules.CoordinateWeights(list(masks[rest]))(list(x[rest])).value
    np.testing.assert_array_equal(rule(list(x), nonfinite="drop").value, expected)


def test_influence(x, masks):
    found = rules.CoordinateWeights(list(masks))(list(x))
    moved = found.influence()
    assert np.isnan(moved[0]), "nobody else takes part in some elements"
    without = rules.CoordinateWeights(list(masks[[0, 1, 2, 3]]))(list(x[:4])).value
    assert moved[4] == pytest.approx(np.linalg.norm(without - found.value))


@pytest.mark.parametrize(
    ("masks", "told"),
    [
        ([np.ones(3)] * 2, "2 masks for 3 contributors"),
        ([np.ones(2)] * 3, r"the masks of the array have shape \(2,\), expected \(3,\)"),
        ([np.ones(3), np.array([1, -1.0, 1]), np.ones(3)], r"masks of contributor 1: the array holds -1"),
        ([np.ones(3), np.ones(3), np.array([1, np.nan, 1])], r"masks of contributor 2: the array holds nan"),
        ([{"a": np.ones(3)}] * 3, "the masks lack the array"),
    ],
)
def test_bad_masks(masks, told):
    with pytest.raises(ContributionError, match=told):
        rules.CoordinateWeights(masks)([np.ones(3)] * 3)


def test_masks_are_contributions_or_nonzero():
    with pytest.raises(RuleError, match="'nonzero', not 'sparse'"):
        rules.CoordinateWeights("sparse")
