"""Folds: one at a time, merged in parts, unharmed by bad contributions, in the memory of one model."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, WeightError


@pytest.fixture
def xs(rng):
    return [{"w": rng.normal(size=(4, 3)).astype(np.float32), "n": np.int64(10 + i)} for i in range(6)]


def test_a_fold_is_the_mean(xs, rng):
    w = rng.random(6)
    fold = rules.Mean().fold()
    for x, weight in zip(xs, w, strict=True):
        fold.add(x, weight)
    found, expected = fold.result(), aggregate(xs, weights=w)
    np.testing.assert_array_equal(found.value["w"], expected.value["w"])
    assert found.value["n"] == expected.value["n"]
    assert found.value["n"].dtype == np.int64
    np.testing.assert_allclose(found.weights, expected.weights)
    assert found.effective_size == pytest.approx(expected.effective_size)


@pytest.mark.parametrize("cuts", [(0, 6), (1, 3), (2, 4), (3, 3)])
def test_parts_merge_to_the_whole(xs, cuts):
    parts = [rules.Mean().fold() for _ in range(3)]
    for i, x in enumerate(xs):
        parts[(i >= cuts[0]) + (i >= cuts[1])].add(x, i + 1)
    whole = parts[2].merge(parts[0]).merge(parts[1])
    np.testing.assert_allclose(whole.result().value["w"], aggregate(xs, weights=np.arange(1, 7)).value["w"], rtol=1e-7)
    assert len(whole) == 6


def test_a_bad_contribution_leaves_the_fold_as_it_was(xs):
    fold = rules.Mean().fold().add(xs[0]).add(xs[1])
    before = fold.result().value["w"]
    bad = {"w": np.full((4, 3), np.nan, np.float32), "n": np.int64(0)}
    with pytest.raises(NonFiniteError, match="site 7: NaN or Inf in tensor 'w'; it was not added"):
        fold.add(bad, label="site 7")
    with pytest.raises(ContributionError, match="lacks 'n'"):
        fold.add({"w": bad["w"]})
    with pytest.raises(ContributionError, match="shape"):
        fold.add({"w": np.ones((3, 4), np.float32), "n": np.int64(0)})
    with pytest.raises(WeightError, match="negative"):
        fold.add(xs[2], -1)
    assert len(fold) == 2
    np.testing.assert_array_equal(fold.result().value["w"], before)
    fold.add(bad, 0.0)  # of weight zero: as good as absent
    np.testing.assert_array_equal(fold.result().value["w"], before)


def test_errors():
    fold = rules.Mean().fold()
    with pytest.raises(ContributionError, match="nothing was added"):
        fold.result()
    with pytest.raises(WeightError, match="all weights are zero"):
        fold.add(np.ones(2), 0).result()
    with pytest.raises(RuleError, match="itself"):
        fold.merge(fold)
    with pytest.raises(ContributionError, match="the other fold"):
        fold.merge(rules.Mean().fold().add(np.ones(3)))
    with pytest.raises(RuleError, match="keeps no contributions"):
        fold.add(np.ones(2)).result().influence()


def test_memory_does_not_grow_with_contributors():
    def peak(n):
        tracemalloc.start()
        fold = rules.Mean().fold()
        for i in range(n):
            fold.add(np.full(200_000, float(i)))
        fold.result()
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(30) < 1.2 * peak(3)


def fold_of(values, weights=None):
    fold = rules.Mean().fold()
    for value, weight in zip(values, np.ones(len(values)) if weights is None else weights, strict=True):
        fold.add(value, weight)
    return fold


def test_parts_merge_by_name_whatever_the_order():
    one, other = (
        fold_of([{"x": np.ones(1), "y": np.full(1, 5.0)}]),
        fold_of([{"y": np.full(1, 7.0), "x": np.full(1, 3.0)}]),
    )
    found = one.merge(other).result().value
    assert (found["x"], found["y"]) == (2.0, 6.0)
    one, other = fold_of([{"x": np.ones(2), "y": np.zeros(3)}]), fold_of([{"y": np.ones(3), "x": np.full(2, 3.0)}])
    np.testing.assert_array_equal(one.merge(other).result().value["x"], [2, 2])
    np.testing.assert_array_equal(fold_of([{"a": np.ones(2), "b": [np.ones(1)]}]).merge(
        fold_of([{"b": [np.zeros(1)], "a": np.zeros(2)}])).result().value["b"][0], [0.5])  # fmt: skip


PAIRS = [
    (np.array([1], "i1"), np.array([3000], "i8")),
    (np.array([200], "u1"), np.array([-100], "i1")),
    (np.array([0.1], "f2"), np.array([1e30], "f4")),
    (np.array([1e-3], "f4"), np.array([1e300], "f8")),
    (np.array([1e-3], "c8"), np.array([1e300j], "c16")),
    (np.array([True]), np.array([False])),
]


@pytest.mark.parametrize("pair", [*PAIRS, *[pair[::-1] for pair in PAIRS]], ids=lambda p: f"{p[0].dtype}-{p[1].dtype}")
def test_the_result_has_the_widest_dtype(pair):
    expected = aggregate(list(pair)).value
    for found in (fold_of(pair), fold_of(pair[:1]).merge(fold_of(pair[1:])), fold_of(pair).merge(fold_of(pair))):
        value = found.result().value
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def test_kinds_that_have_no_common_dtype_are_refused():
    fold = fold_of([np.array([2**64 - 1], "u8")])
    for value in (np.ones(1, "i8"), np.ones(1)):
        with pytest.raises(ContributionError, match="uint64"):
            fold.add(value)
        with pytest.raises(ContributionError, match="uint64"):
            fold.merge(fold_of([value]))
    assert fold.result().value[0] == 2**64 - 1


@pytest.mark.parametrize(
    ("values", "weights", "mean"),
    [
        ([1e308, 1.5e308], None, 1.25e308),
        ([1.7e308, -1.7e308, 1.7e308], None, 1.7e308 / 3),
        ([np.finfo("f8").max] * 11, None, np.finfo("f8").max),
        ([0.1, 0.3], [1e308, 1e308], 0.2),
        ([0.1, 0.3], [5e-324, 5e-324], 0.2),
        ([0.1, 0.3, 0.5], [5e-324, 1e308, 1e308], 0.4),
        ([1e308, 1.5e308], [1e308, 3e307], (1e308 + 0.45e308) / 1.3),
        ([1e-310, 3e-310], [1e-310, 1e-310], 2e-310),
        ([2.0, 1e308, 1.5e308, 1.6e308], [1.0, 0.0, 1e300, 1e300], 1.55e308),
    ],
)
def test_nothing_overflows_where_the_mean_does_not(values, weights, mean):
    arrays = [np.full(70_000, value) for value in values]
    given = np.ones(len(values)) if weights is None else weights
    whole = fold_of(arrays, given).result().value
    np.testing.assert_allclose(whole, mean, rtol=1e-12)
    for cut in range(1, len(values)):
        parts = fold_of(arrays[:cut], given[:cut]).merge(fold_of(arrays[cut:], given[cut:]))
        np.testing.assert_allclose(parts.result().value, mean, rtol=1e-12)


def test_one_large_value_leaves_the_others_as_they_are(rng):
    xs = [rng.normal(size=200_000) for _ in range(3)]
    for x in xs:
        x[123_456] = 1.7e308
    plain, found = fold_of([x[:100] for x in xs]).result().value, fold_of(xs).result().value
    np.testing.assert_array_equal(found[:100], plain)
    np.testing.assert_allclose(found[123_456], 1.7e308)


def test_counters_on_which_all_agree_stay_exact():
    counter, most = np.array([2**60 + 1, 5]), np.array([2**64 - 1], "u8")
    found = fold_of([counter, counter + np.array([0, 6]), counter], [1, 0.3, 0.7])
    np.testing.assert_array_equal(found.result().value, [2**60 + 1, 6])
    assert fold_of([most, most]).result().value[0] == 2**64 - 1
    assert fold_of([most]).merge(fold_of([most, most])).result().value[0] == 2**64 - 1
    differ = fold_of([counter]).merge(fold_of([counter + 2**20])).result().value
    np.testing.assert_array_equal(differ, counter + 2**19 - np.array([1, 0]))  # float64 has no 2**60 + 1
    assert fold_of([np.array([7], "i1"), np.array([2**60 + 1])], [0, 1]).result().value[0] == 2**60 + 1
    assert fold_of([np.array([7], "i1"), np.array([2**60 + 1])], [0, 1]).result().value.dtype == np.int64
    assert fold_of([{"n": np.empty(0, int), "w": np.ones(1)}]).result().value["n"].shape == (0,)


def test_a_merged_part_stays_as_it_was():
    one, other = fold_of([np.array([1.0, 2.0])]), fold_of([np.array([3.0, 8.0])])
    empty = rules.Mean().fold().merge(other)
    empty.add(np.array([5.0, 0.0]))
    one.merge(other).add(np.zeros(2))
    np.testing.assert_array_equal(other.result().value, [3, 8])
    with pytest.raises(RuleError, match="not a int"):
        one.merge(3)
