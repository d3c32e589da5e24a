"""Numbers near the ends of float64: squares that leave its range, and results that do."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import aggregate, laws, rules
from pluribus.core.errors import ContributionError, NonFiniteError, UndefinedError, WeightError
from pluribus.core.relations import Reads

RULES = {name: rule for name, rule in laws.example_rules().items() if "scale" in rule.laws}


def cloud(rule, n=7, d=5, seed=0):
    rng = np.random.default_rng(seed)
    x = np.vstack([np.full(d, 0.7) + rng.normal(size=(n - 1, d)), np.full((1, d), 4.0)])
    return rule.draw(x), rng.integers(1, 4, size=n).astype(float)


@pytest.mark.parametrize("exponent", [-1000, -540, -410, -310, 310, 490])
@pytest.mark.parametrize("name", sorted(RULES))
def test_what_scales_does_so_where_squares_do_not(name, exponent):
    """To the last digits, since a power of two changes none; with distances and dispersion."""
    rule, size = RULES[name], 2.0**exponent
    x, weights = cloud(rule)
    server = {"reference": x[0] + 0.3} if rule.needs_reference else {}
    expected = rule(list(x), weights, **server)
    found = rule(list(x * size), weights, **{k: v * size for k, v in server.items()})
    tolerance = max(1e-9, rule.precision)
    np.testing.assert_allclose(found.value / size, expected.value, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=tolerance, atol=tolerance)
    if rule.reads is not Reads.POINTS:
        np.testing.assert_allclose(found.distances / size, expected.distances, rtol=tolerance)
        np.testing.assert_allclose(found.dispersion / size, expected.dispersion, rtol=tolerance)


@pytest.mark.parametrize("rule", [rules.Krum(f=1), rules.Clip(1.0), rules.CGE(f=1), rules.Mean()], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e-40, 1e40, 1e-90, 1e90, 0.0])
def test_ordinary_rows_have_no_unit(rule, size):
    x, _ = cloud(rule)
    found = rule(list(x * size))
    assert size in (1e-90, 1e90) or found.gram.scale == 1.0
    np.testing.assert_allclose(np.sqrt(found.gram.squared_norms) * found.gram.scale, np.linalg.norm(x * size, axis=1))
    np.testing.assert_allclose(found.gram.distances[0, 1], np.linalg.norm(x[0] - x[1]) * size)


def test_one_row_far_away_gives_nobody_a_unit():
    x, _ = cloud(rules.Krum(f=1))
    x[-1] *= 1e140
    found = rules.Krum(f=1)(list(x))
    assert found.gram.scale == 1.0
    np.testing.assert_array_equal(found.weights, rules.Krum(f=1)([*x[:-1], 1e3 * x[-2]]).weights)


@pytest.mark.parametrize("size", [2.0**-1000, 2.0**-500, 2.0**450])
def test_influence_of_those_who_have_a_unit(size):
    for rule in (rules.Mean(), rules.GeometricMedian(), rules.Median(), rules.NNM(f=1) >> rules.Median()):
        x, weights = cloud(rule)
        expected, found = rule(list(x), weights).influence(), rule(list(x * size), weights).influence()
        np.testing.assert_allclose(found / size, expected, rtol=1e-6)


@pytest.mark.parametrize("rule", [rules.Clip(1.0), rules.CenteredClipping(radius=1.0), rules.RFA()], ids=str)
def test_a_rule_with_a_unit_says_that_nothing_is_left(rule):
    x, _ = cloud(rule)
    with pytest.raises(NonFiniteError, match=r"too small to be squared.*e-17.*multiply"):
        rule(list(x * 1e-170))
    assert (rule(list(x * 0.0)).value == 0).all()
    np.testing.assert_allclose(rule(list(x * 1e-100)).value / 1e-100, x.mean(axis=0), rtol=1e-9)


@pytest.mark.parametrize("size", [2.0**-700, 2.0**-300, 2.0**300, 2.0**480])
def test_parameters_with_a_unit_are_compared_in_it(size):
    x, _ = cloud(rules.Mean())
    shortened = rules.NashMTL(max_norm=0.1 * size)(list(x * size)).value
    np.testing.assert_allclose(shortened / size, rules.NashMTL(max_norm=0.1)(list(x)).value, rtol=1e-9)
    if abs(np.log2(size)) < 400:  # a variance is a square, and must be a number
        for rule in (rules.FedDA, rules.FedGP):
            found = rule(beta="auto", variance=2.0 * size**2)(list(x * size), reference=(x[0] + 1) * size)
            expected = rule(beta="auto", variance=2.0)(list(x), reference=x[0] + 1)
            np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-9)


def test_a_chain_has_a_unit_where_all_that_read_do_without():
    x, _ = cloud(rules.Mean())
    found = (rules.NNM(f=1) >> rules.Krum(f=1))(list(x * 1e-170))
    np.testing.assert_allclose(found.value / 1e-170, (rules.NNM(f=1) >> rules.Krum(f=1))(list(x)).value, rtol=1e-9)
    with pytest.raises(NonFiniteError, match="too small"):
        (rules.Clip(1.0) >> rules.Krum(f=1))(list(x * 1e-170))


def test_absent_tensors_and_extremes():
    x, _ = cloud(rules.Mean())
    trees = [{"a": row * 1e-200, "b": row * 1e-200} for row in x]
    del trees[0]["b"]
    found = aggregate(trees, "median", missing="absent")
    expected = aggregate([{k: v * 1e200 for k, v in tree.items()} for tree in trees], "median", missing="absent")
    np.testing.assert_allclose(found.distances * 1e200, expected.distances, rtol=1e-9)


LARGE = np.finfo(np.float64).max
HALF, SINGLE = float(np.finfo(np.float16).max), float(np.finfo(np.float32).max)


@pytest.mark.parametrize("n", [2, 4, 6, 11, 17, 20, 25])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_mean_at_the_end_of_float64_stays_there(n, sign):
    xs = [np.array([sign * LARGE, 1.0, 0.3])] * n
    for weights in (None, np.arange(1, n + 1), np.random.default_rng(n).uniform(size=n)):
        found = aggregate(xs, weights=weights).value
        np.testing.assert_allclose(found[0], sign * LARGE, rtol=1e-15)
        np.testing.assert_allclose(found[1:], [1.0, 0.3])
    mixed = (rules.Bucketing(s=2) >> rules.Median())(xs).value
    np.testing.assert_allclose(mixed[0], sign * LARGE, rtol=1e-15)


def test_a_sum_that_overflows_under_way_only():
    x = [np.array([1e308, 1.0]), np.array([1e308, 2.0]), np.array([-1e308, 3.0])]

    class Sum(rules.Mean):
        def weigh(self, relation, weights):
            return np.ones(len(weights))

    np.testing.assert_array_equal(Sum()(x).value, [1e308, 6.0])


@pytest.mark.parametrize("rule", [rules.GradVac(), rules.PCGrad(), rules.ConFIG(), rules.GradDrop()], ids=str)
@pytest.mark.parametrize(("dtype", "most"), [("f2", HALF), ("f4", SINGLE), ("f8", LARGE / 1e10), ("c8", SINGLE)])
def test_sums_that_overflow_say_so(rule, dtype, most):
    xs = [np.array([most, 1], dtype), np.array([most, 2], dtype)] * (1 if dtype != "f8" else 100)
    if dtype == "f8":
        xs = [x * 1e9 for x in xs]
    told = (
        "too large to be squared" if dtype == "f8" and not isinstance(rule, rules.GradDrop) else "overflows|too large"
    )
    with pytest.raises((UndefinedError, NonFiniteError), match=told):
        rule(xs)
    if dtype != "f8":
        with pytest.raises(UndefinedError, match=f"result overflows {np.dtype(dtype).name}.*finite.*mean=True"):
            rule({"w": x} for x in xs)
        assert np.isfinite(type(rule)(mean=True)(xs).value).all()
        assert np.isfinite(rule([x / 2 for x in xs]).value).all()
        with pytest.raises(NonFiniteError, match="NaN or Inf"):
            rule([xs[0], np.array([np.inf, 1], dtype)])


def test_sums_of_bfloat16_that_overflow_say_so():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: numpy has no bfloat16")
    xs = [np.array([3.3e38, 1], ml_dtypes.bfloat16)] * 2
    with pytest.raises(UndefinedError, match="result overflows bfloat16"):
        rules.PCGrad()(xs)
    assert float(rules.Mean()(xs).value[0]) == float(xs[0][0])


@pytest.mark.parametrize("rule", ["mean", "median"])
@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("i8", (2**60 + 1, 2**60 + 3)),
        ("u8", (2**64 - 1, 2**64 - 3)),
        ("i8", (-(2**62) - 5, -(2**62) - 3)),
        ("i8", (3, 8)),
    ],
)
def test_counters_beyond_2_to_the_53_stay_between(rule, dtype, values):
    found = aggregate([{"w": np.ones(2), "steps": np.array(v, dtype)} for v in values], rule).value["steps"]
    assert min(values) <= int(found) <= max(values)


def test_counters_that_are_summed_are_not_held_between():
    xs = [{"w": np.ones(1), "steps": np.array([v, -v])} for v in (3, 5)]
    assert rules.GradDrop()(xs).value["steps"].tolist() == [8, -8]
    assert rules.SignMajority()(xs).value["steps"].tolist() == [1, -1]


@pytest.mark.parametrize("size", [2.0**600, 2.0**1000, 2.0**1020])
def test_distances_and_lines_between_huge_values(size):
    x = np.random.default_rng(0).normal(size=(7, 5))
    x[0] += 3
    soft = rules.SoftMedian(temperature=size)(list(x * size)).value / size
    np.testing.assert_allclose(soft, rules.SoftMedian(temperature=1.0)(list(x)).value, rtol=1e-12)
    x *= 1.9 / np.abs(x).max()
    line = rules.ResidualReweighting()(list(x * (8 * size))).value / (8 * size)  # differences are no numbers any more
    np.testing.assert_allclose(line, rules.ResidualReweighting()(list(x)).value, rtol=1e-12)


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, -1e-320])
def test_log_sum_exp_of_least_temperatures_is_the_extreme(temperature):
    xs = [np.array([0.1, 2.0, LARGE]), np.array([1.1, -2.0, -LARGE])]
    found = rules.LogSumExp(temperature=temperature)(xs)
    np.testing.assert_array_equal(found.value, (np.max if temperature > 0 else np.min)(xs, axis=0))
    np.testing.assert_allclose(found.weights.sum(), 1.0)


def test_weights_too_large_for_float64():
    with pytest.raises(WeightError, match="not finite"):
        aggregate([np.ones(2)] * 2, weights=np.array([1, 2], np.longdouble) * np.longdouble("1e400"))


@pytest.mark.parametrize("rule", ["sphere_mean", "poincare_mean"])
def test_points_too_far_out_leak_no_warning(rule):
    with pytest.raises(ContributionError, match=r"contributor 0: .*norm inf"):
        aggregate([np.full(3, 1e200)] * 3, rule)
