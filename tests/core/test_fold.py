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
