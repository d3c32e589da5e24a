"""What a breaker found once, and must not find again."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors.numpy import save_file

import pluribus
from pluribus import aggregate, rules
from pluribus.core.errors import (
    ContributionError,
    NonFiniteError,
    PluribusError,
    RuleError,
    UndefinedError,
    WeightError,
)
from pluribus.core.leaves import NumpyLeaf
from pluribus.core.rule import CoordinateRule, WeightRule


class Refuses(CoordinateRule):
    """Says that its tile is not finite, though all is."""

    def tile_rule(self, weights):
        return lambda kernel, views, out: False


class Weighs(WeightRule):
    """Gives whatever it holds as coefficients."""

    def __init__(self, found):
        object.__setattr__(self, "found", found)

    def weigh(self, relation, weights):
        return self.found

    def __str__(self):
        return "Weighs"


def test_memory_that_was_not_written_is_never_a_result():
    with pytest.raises(UndefinedError, match="too large"):
        Refuses()([np.ones(3)] * 4)


@pytest.mark.parametrize("found", [np.ones(2), np.ones((4, 4)), np.array([np.nan, 0, 0, 1]), np.ones(9)])
def test_what_a_users_rule_weighs_is_checked(found):
    with pytest.raises(RuleError, match="Weighs gave coefficients"):
        Weighs(found)([np.ones(3)] * 4)


@pytest.mark.parametrize("rule", [rules.Krum(f=1), rules.GeometricMedian(), rules.Clip(1.0), rules.NNM(f=1)], ids=str)
def test_integers_alone_have_no_distances(rule):
    xs = [np.array([i, 2 * i, 7]) for i in (1, 2, 3, 4, 100)]
    with pytest.raises(ContributionError, match=r"nothing to read.*convert"):
        rule(xs)
    assert rules.Median()(xs).value.tolist() == [3, 6, 7]


def test_rows_of_weights_lose_nobody_silently():
    xs = [np.ones(2), np.array([np.nan, 1]), np.ones(2)]
    with pytest.raises(NonFiniteError, match="row 1 of the weights"):
        aggregate(xs, weights=[[1, 0, 0], [0, 1, 0]], nonfinite="drop")


@pytest.mark.parametrize("rule", ["geometric_median", "krum", "nnm", "centered_clipping"])
def test_distances_that_would_overflow_are_told(rule):
    xs = [np.array([s * 1.2e154]) for s in (1, -1, 1.02, 1, 1.01)]
    more = {"krum": {"f": 1}, "nnm": {"f": 1}, "centered_clipping": {"radius": 1.0, "iterations": 2}}.get(rule, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NonFiniteError, match="too large"):
            aggregate(xs, rule, **more)


def test_what_only_a_measurement_meets_is_an_error_with_a_name(tmp_path):
    found = aggregate([np.array([1e200, 1.0]), np.array([1.0, 2]), np.array([2.0, 3])])
    for ask in (found.influence, lambda: found.gram):
        with pytest.raises(NonFiniteError, match="contributor 0: too large"):
            ask()
    assert found.report(tmp_path / "r.html").exists()


def test_absent_tensors_that_nobody_brings():
    xs = [{"a": np.ones(2)}, {"b": np.ones(2)}]
    for rule in ("mean", "median"):
        with pytest.raises(ContributionError, match="tensor 'b' is held only by contributors that do not count"):
            aggregate(xs, rule, [1, 0], missing="absent")


def test_influence_and_report_where_some_are_absent(tmp_path):
    xs = [
        {"a": np.array([1.0]), "b": np.array([1.0])},
        {"a": np.array([3.0])},
        {"a": np.array([2.0]), "b": np.array([5.0])},
    ]
    found = aggregate(xs, missing="absent")
    np.testing.assert_allclose(found.influence()[1], 0.5)
    assert found.report(tmp_path / "r.html").exists()


def test_measuring_needs_no_engine_that_is_gone(tmp_path):
    for k in range(5):
        save_file({"w": np.random.default_rng(k).normal(size=50)}, tmp_path / f"{k}.safetensors")
    paths = [tmp_path / f"{k}.safetensors" for k in range(5)]
    with ThreadPoolExecutor(2) as pool:
        found = rules.Median()(paths, engine=pool, out=tmp_path / "out.safetensors")
    assert found.distances.shape == (5,)
    assert np.isfinite(found.influence()).all()
    assert found.report(tmp_path / "r.html").exists()


def test_results_and_folds_are_pickled():
    xs = [{"a": [np.ones(2), (np.zeros(1),)]} for _ in range(5)]
    found = aggregate(xs, "multi_krum", f=1)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.influence(), found.influence())
    fold = pickle.loads(pickle.dumps(rules.Mean().fold().add(xs[0]))).add(xs[1])
    assert isinstance(fold.result().value["a"][1], tuple)


def test_plain_ints_and_bools_in_a_tree_are_counters():
    found = aggregate(
        [{"w": np.ones(1), "steps": 400_000, "seen": True}, {"w": np.ones(1), "steps": 400_010, "seen": True}]
    )
    assert found.value["steps"] == 400_005
    assert found.value["steps"].dtype.kind == "i"
    assert found.value["seen"].dtype == bool
    assert aggregate([1, 2]).value == 1.5
    for bad in ([10**400, 1], {"n": 10**400}):
        with pytest.raises(ContributionError):
            aggregate([bad])


def test_things_that_are_no_contributions():
    with pytest.raises(ContributionError, match="bytes"):
        aggregate(b"abc")
    cycle = {}
    cycle["again"] = cycle
    with pytest.raises(ContributionError, match="nested without end"):
        aggregate([cycle])
    with pytest.raises(ContributionError, match="uint64 in contributor 0, int64 in contributor 1"):
        aggregate([np.array([1], np.uint64), np.array([1], np.int64)])
    with pytest.raises(WeightError, match="masked"):
        aggregate([np.ones(1)] * 2, weights=np.ma.masked_array([1, 2], [0, 1]))
    with pytest.raises(RuleError):
        rules.get("clip", max_norm=10**400)


def test_a_reference_wider_than_the_contributions_leaks_no_warning():
    xs = [np.ones(2, np.float32)] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PluribusError):
            rules.CenteredClipping(1.0)(xs, reference=np.array([1e300, 0]))


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3), (0, 3, 1, 2)])
@pytest.mark.parametrize("size", [1, 7, 64, 500, 2000])
def test_any_layout_is_read_in_order(axes, size):
    array = np.arange(2.0 * 5 * 11 * 13).reshape(2, 5, 11, 13).transpose(axes)
    leaf = NumpyLeaf(array, pluribus.core.dtypes.of("float64"))
    read = [leaf.items(s, min(s + size, array.size)) for s in range(0, array.size, size)]
    np.testing.assert_array_equal(np.concatenate(read), array.ravel())
