"""Rules on points: what they are given, what becomes of the rest, and how errors name places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from pluribus import rules
from pluribus.core import points
from pluribus.core.contributions import Block, gather
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, UndefinedError, WeightError
from pluribus.core.rule import PointRule


@dataclass(frozen=True)
class Middle(PointRule):
    """The weighted mean of vectors with positive entries, and a record of what it saw."""

    axes = 1

    def combine(self, points, weights):
        assert points.dtype == np.float64
        assert weights.sum() == pytest.approx(1)
        if (points == 7).any():
            raise UndefinedError("seven has no mean")
        return np.einsum("i,imk->mk", weights, points)

    def complaint(self, points, rounding):
        good = (points > 0).all(axis=-1)
        return None if good.all() else (int(np.argmin(good)), f"is not positive (rounding {rounding:g})")

    def squared_distances(self, points, others):
        return ((points - others) ** 2).sum(axis=-1)


def trees(n=4):
    return [{"a": np.full((2, 3), 1.0 + k), "b": np.full(3, 2.0 + k), "n": np.array(k)} for k in range(n)]


def test_points_are_combined_and_counters_averaged():
    found = Middle()(trees(), [1, 1, 1, 0])
    np.testing.assert_allclose(found.value["a"], 2)
    np.testing.assert_allclose(found.value["b"], 3)
    assert found.value["n"] == 1
    np.testing.assert_allclose(found.weights, [1 / 3, 1 / 3, 1 / 3, 0])
    assert found.distances[0] == pytest.approx(np.sqrt(9))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes_and_layouts(rng, dtype):
    x = rng.uniform(1, 2, size=(5, 8, 4)).astype(dtype)
    found = Middle()(list(x)).value
    assert found.dtype == dtype
    np.testing.assert_allclose(found, x.astype(float).mean(axis=0), rtol=2 * float(np.finfo(dtype).eps))
    strided = [np.asfortranarray(row) for row in x]
    assert Middle()(strided).value.tobytes() == found.tobytes()


def test_blocks_hold_whole_points_and_change_nothing(rng, monkeypatch):
    x = rng.uniform(1, 2, size=(3, 100, 7))
    whole = Middle()(list(x)).value
    monkeypatch.setattr(points, "_VALUES", 3 * 7 * 9)
    seen = [b.stop - b.start for b in points._blocks(_active(x), Middle(), [0])]
    assert set(seen[:-1]) == {63}
    assert sum(seen) == 700
    assert Middle()(list(x)).value.tobytes() == whole.tobytes()


def _active(x):
    from pluribus.core.passes import Active

    return Active(gather(list(x)), tuple(range(len(x))))


def test_a_bad_point_is_named_by_place_across_blocks(rng, monkeypatch):
    monkeypatch.setattr(points, "_VALUES", 4 * 3 * 2)
    x = np.ones((4, 5, 6, 3), np.float32)
    x[2, 4, 1, 0] = -1
    with pytest.raises(
        ContributionError, match=r"contributor 2: the array at \[4, 1\] is not positive \(rounding 1\.19"
    ):
        Middle()(list(x))
    with pytest.raises(ContributionError, match=r"contributor 1: the array is not positive"):
        Middle()([np.ones(3), np.zeros(3)])


def test_a_contributor_of_weight_zero_may_hold_anything():
    assert Middle()([np.ones(3), np.full(3, np.nan), np.zeros(3)], [1, 0, 0]).value.tolist() == [1, 1, 1]


def test_nan_policies():
    rows = trees()
    rows[3]["b"][1] = np.inf
    with pytest.raises(NonFiniteError, match=r"contributor 3: NaN or Inf in tensor 'b'"):
        Middle()(rows)
    dropped = Middle()(rows, nonfinite="drop")
    np.testing.assert_allclose(dropped.value["b"], 3)
    with pytest.raises(ContributionError, match="contributor 3: tensor 'b' is not positive"):
        Middle()(rows, nonfinite="zero")


def test_absent_tensors():
    rows = trees()
    del rows[0]["b"]
    np.testing.assert_allclose(Middle()(rows, missing="absent").value["b"], 4)


def test_no_answer_is_told_by_tensor_and_unknown_in_influence():
    rows = [np.ones(2), np.full(2, 2.0), np.full(2, 7.0)]
    with pytest.raises(UndefinedError, match="the array: seven has no mean"):
        Middle()(rows)
    assert Middle()(rows, [1, 1, 0]).influence()[0] == pytest.approx(np.sqrt(0.5))


@pytest.mark.parametrize(
    ("rule", "rows", "told"),
    [
        (Middle(), [np.float64(1.0)] * 2, r"has shape \(\), but the last 1 axes"),
        (Middle(), [np.ones(2, complex)] * 2, "is complex"),
        (Middle(), [np.ones(2, int)] * 2, "all tensors hold int64, and points of .* are floats"),
        (rules.Plurality(), [np.ones(2)] * 2, "combines whole numbers"),
    ],
)
def test_tensors_that_hold_no_points(rule, rows, told):
    with pytest.raises(ContributionError, match=told):
        rule(rows)


def test_pre_rules_would_leave_the_space():
    with pytest.raises(RuleError, match=r"weighted sums made by Clip.* would leave it"):
        rules.chain(rules.Clip(1.0), Middle())([np.ones(2)] * 2)


def test_one_result_only():
    with pytest.raises(RuleError, match="the mean can"):
        Middle()([np.ones(2)] * 2, np.ones((3, 2)))
    with pytest.raises(WeightError):
        Middle()([np.ones(2)] * 2, [1, -1])


def test_empty_tensors():
    found = Middle()([{"a": np.ones(2), "b": np.ones((0, 2))}] * 2).value
    assert found["b"].shape == (0, 2)


def test_in_composers(rng):
    rows = trees()
    groups = {"a": Middle(), "n": rules.Plurality()}
    found = rules.per_group(rules.Median(), groups)(rows)
    np.testing.assert_allclose(found.value["a"], 2.5)
    np.testing.assert_allclose(found.value["b"], 3.5)
    assert found.value["n"] == 0, "a plurality of labels that all differ gives the smallest"
    mixed = rules.mix(Middle(), Middle(), 0.3)([np.ones(3), np.full(3, 3.0)]).value
    np.testing.assert_allclose(mixed, 2)
    assert rules.weighted(Middle())([np.ones(3), np.full(3, 3.0)], [3, 1]).value.tolist() == [1.5, 1.5, 1.5]


def test_parts_of_contributions(rng):
    data = gather([{"a": rng.normal(size=(4, 5)), "b": rng.normal(size=3).astype(np.float32), "n": np.arange(6)}] * 2)
    part = data.subset([2, 0])
    assert [spec.name for spec in part.specs] == ["n", "a"]
    assert set(part.rebuild([np.arange(6), np.zeros((4, 5))])) == {"n", "a"}
    cut = data.ranges([Block(0, 3, 11), Block(1, 1, 3)])
    np.testing.assert_array_equal(cut.views(Block(0, 2, 6), [1])[0], data.views(Block(0, 5, 9), [1])[0])
    assert [spec.shape for spec in cut.specs] == [(8,), (2,)]
    from pluribus.core import parts

    joined = parts.gathered(data, [Block(0, 3, 11), Block(1, 1, 3), Block(0, 0, 2)])
    assert {spec.name: spec.size for spec in joined.specs} == {"float64": 10, "float32": 2}
    whole = joined.views(Block(0, 0, 10), [0])[0]
    np.testing.assert_array_equal(whole[8:], data.views(Block(0, 0, 2), [0])[0])
