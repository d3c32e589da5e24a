"""What may be contributed, and what every mistake is told."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.contributions import gather
from pluribus.core.errors import ContributionError, NonFiniteError, WeightError


def test_value_has_the_structure_of_one_contribution(rng):
    Pair = namedtuple("Pair", "left right")
    one = {"layer": OrderedDict(weight=rng.normal(size=(2, 3))), "list": [np.float32(1), Pair(np.ones(2), np.ones(()))]}
    result = aggregate([one, one, one]).value
    assert isinstance(result["layer"], OrderedDict)
    assert isinstance(result["list"][1], Pair)
    assert result["list"][0].dtype == np.float32
    np.testing.assert_allclose(result["layer"]["weight"], one["layer"]["weight"])


def test_rows_of_a_matrix_and_named_contributors_are_contributions(rng):
    matrix = rng.normal(size=(4, 5))
    np.testing.assert_allclose(aggregate(matrix).value, matrix.mean(axis=0))
    named = aggregate(dict(zip("abcd", matrix, strict=True)))
    assert named.labels[0] == "contributor 'a'"
    np.testing.assert_allclose(named.value, matrix.mean(axis=0))


def test_plain_numbers_are_real_numbers():
    np.testing.assert_allclose(aggregate([[1, 2], [2, 4]]).value, [1.5, 3.0])
    assert aggregate([1, 2, 6], rule="median").value == 2.0


@pytest.mark.parametrize(
    ("contributions", "told"),
    [
        ([], "no contributions"),
        ([{}], "holds no tensors"),
        ([{"a": np.ones(2)}, {"b": np.ones(2)}], r"contributor 1 lacks 'a' and has 'b'"),
        ([{"a": np.ones(2)}, {"a": np.ones(2), "b": np.ones(2)}], r"contributor 1 has 'b'"),
        ([np.ones(2), np.ones(1)], r"contributor 1: the array has shape \(1,\), expected \(2,\)"),
        ([{"w": np.ones((2, 3))}, {"w": np.ones((3, 2))}], r"tensor 'w' has shape \(3, 2\), expected \(2, 3\)"),
        ([{"w": np.ones(2)}, {"w": np.ones(2, int)}], "'w' is of different kinds: float64 in contributor 0, int64"),
        ([{"w": np.ones(2)}, {"w": np.ones(2, complex)}], "different kinds"),
        ([np.array(["x"])], "dtype str"),
        ([{"w": None}], "NoneType"),
        ([{"w": "text"}], "tensor 'w' is a str"),
        ("model.safetensors", "one path is one contribution"),
        (np.float64(3.0), "one number is one contribution"),
        (3, "not a int"),
        ([{"a/b": np.ones(1), "a": {"b": np.ones(1)}}], "two tensors have the name 'a/b'"),
        ([np.ma.masked_array([1.0, 2.0], [0, 1])], "masked array"),
    ],
)
def test_errors_name_the_contributor_and_the_tensor(contributions, told):
    with pytest.raises(ContributionError, match=told):
        aggregate(contributions)


def test_shapes_are_never_broadcast():
    with pytest.raises(ContributionError):
        aggregate([np.ones((2, 1)), np.ones((1, 2))])
    with pytest.raises(ContributionError):
        aggregate([np.ones(()), np.ones(1)])


def test_order_of_names_does_not_matter(rng):
    a, b = rng.normal(size=3), rng.normal(size=3)
    result = aggregate([{"x": a, "y": b}, {"y": b, "x": a}]).value
    np.testing.assert_allclose(result["x"], a)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128", ">f4", "<f8"])
def test_every_float_dtype_is_kept(rng, dtype):
    xs = [rng.normal(size=(3, 2)).astype(dtype) for _ in range(5)]
    for rule in (rules.Mean(), rules.Median(), rules.MultiKrum(f=1), rules.TrimmedMean(f=1)):
        value = rule(xs).value
        assert value.dtype == np.dtype(dtype).newbyteorder("=")
    expected = np.mean([x.astype(complex) for x in xs], axis=0)
    np.testing.assert_allclose(aggregate(xs).value, expected, rtol=2e-3 if dtype == "float16" else 1e-6)


def test_mixed_widths_give_the_widest(rng):
    xs = [np.ones(3, np.float16), np.ones(3, np.float32), np.ones(3, np.float64)]
    assert aggregate(xs).value.dtype == np.float64


def test_float16_is_accumulated_in_float64():
    # 200 x 0.1 summed in float16 gives 0.0986 (seen in flwr).
    value = aggregate([np.array([0.1], np.float16)] * 200).value
    assert value == np.float16(0.1)


def test_complex_distance_is_that_of_the_plane(rng):
    xs = [rng.normal(size=4) + 1j * rng.normal(size=4) for _ in range(6)]
    found = rules.Krum(f=1)(xs).relation.squared_distances
    expected = [[np.sum(np.abs(a - b) ** 2) for b in xs] for a in xs]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


class TestIntegers:
    def make(self, counters):
        return [{"w": np.array([float(i)]), "n": np.asarray(c)} for i, c in enumerate(counters)]

    def test_a_counter_does_not_dominate_distances(self):
        xs = self.make([400_000, 0, 1, 2, 3])
        relation = rules.Krum(f=1)(xs).relation
        assert relation.squared_distances.max() == 16.0

    def test_a_counter_stays_an_integer(self):
        value = aggregate(self.make([414, 415, 417])).value
        assert value["n"].dtype.kind == "i"
        assert value["n"] == 415

    def test_policies(self):
        xs = self.make([3, 9, 4])
        assert aggregate(xs, integers="max").value["n"] == 9
        assert aggregate(xs, integers="first").value["n"] == 3
        assert aggregate(xs, rule="median").value["n"] == 4
        with pytest.raises(ContributionError, match=r"'n'.*counters or masks"):
            aggregate(xs, integers="error")

    def test_shrinking_rules_do_not_shrink_counters(self):
        xs = [{"w": np.full(3, 100.0), "n": np.int32(7)}] * 3
        assert rules.Clip(1.0)(xs).value["n"] == 7
        assert (rules.Clip(1.0) >> rules.Median())(xs).value["n"] == 7

    def test_masks_are_voted_on(self):
        xs = [np.array(v) for v in ([True, True, False], [True, False, False], [False, True, False])]
        value = aggregate(xs).value
        assert value.dtype == bool
        assert value.tolist() == [True, True, False]

    def test_what_all_agree_on_is_exact(self):
        big = np.array([2**63 - 1, 2**53 + 1, -(2**63)])
        assert (aggregate([big, big, big], weights=[0.1, 0.2, 0.3]).value == big).all()
        top = np.array([2**64 - 1], dtype=np.uint64)
        assert (aggregate([top, top]).value == top).all()


class TestNonFinite:
    @pytest.fixture
    def xs(self, rng):
        xs = [{"a": rng.normal(size=4), "b": rng.normal(size=(2, 2))} for _ in range(7)]
        xs[3]["b"][1, 0] = np.nan
        xs[5]["a"][2] = -np.inf
        return xs

    @pytest.mark.parametrize("rule", ["mean", "median", "geometric_median"])
    def test_raise_names_both(self, xs, rule):
        with pytest.raises(
            NonFiniteError, match=r"contributor 3: NaN or Inf in tensor 'b', contributor 5: .*'a'.*drop"
        ):
            aggregate(xs, rule=rule)

    @pytest.mark.parametrize(
        "rule",
        [rules.Mean(), rules.Median(), rules.TrimmedMean(f=1), rules.Krum(f=1), rules.MultiKrum(f=1),
         rules.GeometricMedian(), rules.CenteredClipping(radius=1.0), rules.Clip(1.0), rules.NNM(f=1),
         rules.chain(rules.NNM(f=1), rules.Median())],
        ids=str,
    )  # fmt: skip
    def test_drop_is_as_if_absent(self, xs, rule):
        found = rule(xs, nonfinite="drop")
        rest = rule([x for i, x in enumerate(xs) if i not in (3, 5)])
        np.testing.assert_array_equal(found.value["a"], rest.value["a"])
        np.testing.assert_array_equal(found.value["b"], rest.value["b"])
        assert set(found.left_out) == {"contributor 3", "contributor 5"}
        assert found.weights[3] == found.weights[5] == 0.0

    def test_zero_reads_bad_numbers_as_zero(self, xs):
        found = aggregate(xs, nonfinite="zero").value
        clean = [{k: np.nan_to_num(v, nan=0, posinf=0, neginf=0) for k, v in x.items()} for x in xs]
        np.testing.assert_allclose(found["a"], aggregate(clean).value["a"])
        assert np.isnan(xs[3]["b"][1, 0])

    def test_all_dropped_is_an_error(self):
        with pytest.raises(NonFiniteError, match="every contributor"):
            aggregate([np.array([np.nan])] * 3, nonfinite="drop")

    def test_too_few_left_is_the_rules_error(self):
        xs = [np.ones(2)] * 4 + [np.array([np.inf, 0])]
        with pytest.raises(ValueError, match="at least 5"):
            aggregate(xs, rule="krum", f=1, nonfinite="drop")

    def test_weight_zero_may_hold_anything(self):
        assert aggregate([np.array([1.0]), np.array([np.nan])], weights=[1, 0]).value == 1.0

    def test_huge_but_finite_is_fine_for_the_mean_and_named_for_distances(self):
        xs = [np.array([1e300]), np.array([2.0]), np.array([3.0])]
        assert aggregate(xs).value == pytest.approx(1e300 / 3)
        with pytest.raises(NonFiniteError, match="contributor 0: too large"):
            aggregate(xs, rule="geometric_median")
        assert aggregate(xs, rule="geometric_median", nonfinite="drop").value == pytest.approx(2.5, abs=0.5)


class TestWeights:
    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ([1, 1], r"shape \(2,\); expected \(3,\)"),
            ([1, -1, 2], "negative for contributor 1: -1"),
            ([1, np.nan, 2], "not finite for contributor 1"),
            ([0, 0, 0], "all weights are zero"),
            (["a", "b", "c"], "real numbers"),
            ([1, 2, 3j], "real numbers"),
            ([[1, 1, 1], [0, 0, 0]], "all weights are zero"),
            (np.zeros((0, 3)), "no rows"),
        ],
    )
    def test_errors(self, given, told):
        with pytest.raises(WeightError, match=told):
            aggregate([np.ones(1)] * 3, weights=given)

    @pytest.mark.parametrize("unit", [1e-320, 1e-300, 1.0, 1e300])
    def test_any_unit(self, unit):
        xs = [np.array([1.0]), np.array([4.0])]
        assert aggregate(xs, weights=[unit, 2 * unit]).value == pytest.approx(3.0, rel=1e-3 if unit < 1e-310 else 1e-12)

    def test_rows_of_weights_give_as_many_results(self, rng):
        xs, w = rng.normal(size=(4, 3)), rng.random(size=(2, 4))
        found = aggregate(xs, weights=w)
        assert len(found.value) == 2
        np.testing.assert_allclose(found.value[1], w[1] / w[1].sum() @ xs)
        with pytest.raises(ValueError, match="k results"):
            aggregate(xs, rule="median", weights=w)


class TestLayouts:
    def test_zero_dimensional_and_empty_tensors(self):
        xs = [{"s": np.array(float(i)), "e": np.empty((0, 3)), "v": np.ones(2)} for i in range(5)]
        for rule in (rules.Mean(), rules.Median(), rules.Krum(f=1), rules.GeometricMedian()):
            value = rule(xs).value
            assert value["s"].shape == ()
            assert value["e"].shape == (0, 3)

    def test_only_empty_tensors(self):
        assert aggregate([np.empty(0)] * 5, rule="krum", f=1).value.shape == (0,)
        assert aggregate([np.empty(0)] * 5, rule="median").value.shape == (0,)

    def test_inputs_may_be_read_only_and_are_never_modified(self, rng):
        xs = [rng.normal(size=(5, 7)) for _ in range(5)]
        copies = [x.copy() for x in xs]
        for x in xs:
            x.flags.writeable = False
        for rule in (rules.Mean(), rules.Median(), rules.NNM(f=1), rules.Clip(0.1) >> rules.TrimmedMean(f=1)):
            rule(xs).influence()
        assert all((x == c).all() for x, c in zip(xs, copies, strict=True))

    def test_results_do_not_share_memory_with_inputs(self, rng):
        xs = [rng.normal(size=3)]
        assert not np.shares_memory(aggregate(xs).value, xs[0])

    @pytest.mark.parametrize("rule", [rules.Mean(), rules.Median(), rules.Krum(f=1)], ids=str)
    def test_non_contiguous(self, rng, rule):
        base = rng.normal(size=(5, 40, 30))
        plain = [np.ascontiguousarray(b) for b in base]
        for xs in (
            [b.T.copy().T for b in base],
            [np.repeat(b, 2, axis=1)[:, ::2] for b in base],
            [b[::-1][::-1] for b in base],
        ):
            np.testing.assert_array_equal(rule(xs).value, rule(plain).value)

    def test_blocks_of_a_transposed_array_are_read_in_order(self, rng):
        x = rng.normal(size=(30, 50)).T
        data = gather([x])
        read = [data.views(block, [0])[0] for block in data.blocks(77, discrete=False)]
        np.testing.assert_array_equal(np.concatenate(read), x.ravel())


class TestMissing:
    def test_absent_tensors_are_combined_from_those_that_have_them(self):
        xs = [{"a": np.array([1.0])}, {"a": np.array([3.0]), "b": np.array([5.0])}, {"b": np.array([7.0])}]
        found = aggregate(xs, weights=[1, 1, 3], missing="absent").value
        assert found["a"] == 2.0
        assert found["b"] == pytest.approx(6.5)
        assert aggregate(xs, rule="median", missing="absent").value["b"] == 6.0

    def test_gram_rules_need_everything(self):
        xs = [{"a": np.ones(1), "b": np.ones(1)}] * 5 + [{"a": np.ones(1)}]
        with pytest.raises(ContributionError, match=r"needs every tensor.*contributor 5"):
            aggregate(xs, rule="krum", f=1, missing="absent")

    def test_default_is_an_error_that_says_how(self):
        with pytest.raises(ContributionError, match="missing='absent'"):
            aggregate([{"a": np.ones(1), "b": np.ones(1)}, {"a": np.ones(1)}])


def test_one_contributor_is_its_own_mean():
    assert aggregate([np.array([3.0])]).value == 3.0
    assert aggregate([np.array([3.0])], rule="median").value == 3.0
    assert aggregate([np.array([3.0])], rule="geometric_median").value == 3.0
