"""Folds: one at a time, merged in parts, unharmed by bad contributions, in the memory of one model."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction

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


def traced(function):
    """What a function gives, and by how much it raised the peak of memory."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    found = function()
    return found, tracemalloc.get_traced_memory()[1] - before


def test_a_fold_never_holds_a_second_model():
    size, tile = 4_000_000, 6 << 20
    x, sums = {"a": np.ones(size // 2, np.float32), "b": np.full((2, size // 4), 3.0, np.float32)}, 8 * size
    tracemalloc.start()
    try:
        fold = rules.Mean().fold()
        added = [
            traced(lambda i=i: fold.add(x, 3.0**i))[1] for i in range(10)
        ]  # ever larger weights: sums are rescaled
        assert sums <= added[0] <= sums + tile
        assert max(added[1:]) <= tile
        other = rules.Mean().fold().add(x, 1e9)
        assert traced(lambda: fold.merge(other))[1] <= tile
        found, more = traced(fold.result)
        assert more <= sums // 2 + tile
        before = tracemalloc.get_traced_memory()[0]
        value, more = traced(lambda: fold.finish().value)
        assert more <= tile
        assert tracemalloc.get_traced_memory()[0] <= before - sums // 2 + tile
    finally:
        tracemalloc.stop()
    for name in x:
        assert value[name].dtype == np.float32
        np.testing.assert_array_equal(value[name], found.value[name])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", "i1", "i8", "u2", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 70_001)])
def test_finish_is_result_in_the_memory_of_the_sums(rng, dtype, shape):
    xs = [{"x": (rng.normal(size=shape) * 50).astype(dtype), "y": np.ones(2)} for _ in range(3)]
    for given in (xs, xs[:1] * 3):
        fold = fold_of(given, [1, 5, 2])
        expected = fold.result()
        found = fold.finish()
        assert found.value["x"].dtype == expected.value["x"].dtype
        assert found.value["x"].shape == shape
        np.testing.assert_array_equal(found.value["x"], expected.value["x"])
        found.value["y"][...] = 0  # the caller's own
        calls = ((fold.result,), (fold.finish,), (fold.add, xs[0]), (rules.Mean().fold().merge, fold))
        for more, *arguments in calls:
            with pytest.raises(ContributionError, match="finished"):
                more(*arguments)


def test_finish_of_tensors(rng):
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
        xs = [{"w": torch.from_numpy(rng.normal(size=(3, 5)) * 9).to(dtype)} for _ in range(4)]
        fold = fold_of(xs, [1, 2, 3, 4])
        expected, found = fold.result().value["w"], fold.finish().value["w"]
        assert found.dtype == dtype
        assert torch.equal(found, expected)


def test_the_error_of_a_fold_is_bounded(rng):
    xs = rng.normal(size=(40, 50)) * 10.0 ** rng.integers(0, 9, (40, 50))
    w = rng.random(40)
    exact = [sum(Fraction(a) * Fraction(b) for a, b in zip(w, x, strict=True)) / sum(map(Fraction, w)) for x in xs.T]
    bound = 42 * 2.0**-53 * (w @ np.abs(xs)) / w.sum()
    for found in (fold_of(list(xs), w), fold_of(list(xs[:20]), w[:20]).merge(fold_of(list(xs[20:]), w[20:]))):
        off = [abs(float(Fraction(float(z)) - e)) for z, e in zip(found.result().value, exact, strict=True)]
        assert (off <= bound).all()
