"""Power means, log-sum-exp and quasi-arithmetic means against scipy and the plain formulas."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import pmean

from pluribus import aggregate, laws, rules
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError

POWERS = [-np.inf, -30, -1, -0.5, 0, 1e-9, 0.5, 1, 2, 2.5, 3, 50, np.inf]


@pytest.fixture
def x(rng):
    return rng.lognormal(size=(6, 50))


@pytest.mark.parametrize("p", [p for p in POWERS if np.isfinite(p) and p != 1e-9])
@pytest.mark.parametrize("weights", [None, [1, 2, 0.5, 3, 1, 1]])
def test_scipys_power_mean(x, p, weights):
    w = None if weights is None else np.array(weights)[:, None] + np.zeros(50)
    np.testing.assert_allclose(aggregate(x, "power_mean", weights, p=p).value, pmean(x, p, weights=w), rtol=1e-12)


@pytest.mark.parametrize("p", [-1, 0.5, 2])
def test_float32_takes_a_short_way(x, p):
    rows = x.astype(np.float32)
    w = np.array([1, 2, 0.5, 3, 1, 1])
    wide = aggregate(rows.astype(np.float64), "power_mean", w, p=p).value
    found = aggregate(rows, "power_mean", w, p=p).value
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wide.astype(np.float32))
    rows[1] *= np.float32(1e38) / rows[1].max()
    rows[2] *= np.float32(1e-38)
    rows[3, :5] = 0
    wide = aggregate(rows.astype(np.float64), "power_mean", w, p=p).value
    np.testing.assert_allclose(aggregate(rows, "power_mean", w, p=p).value, wide, rtol=1e-6)
    rows[4, 3] = -1
    with pytest.raises(ContributionError, match="contributor 4: the array holds -1"):
        aggregate(rows, "power_mean", w, p=p)


def test_limits(x, rng):
    value = {p: aggregate(x, "power_mean", p=p).value for p in POWERS}
    np.testing.assert_array_equal(value[-np.inf], x.min(axis=0))
    np.testing.assert_array_equal(value[np.inf], x.max(axis=0))
    np.testing.assert_array_equal(value[1], aggregate(x, "mean").value)
    np.testing.assert_allclose(value[0], np.exp(np.log(x).mean(axis=0)), rtol=1e-14)
    np.testing.assert_allclose(value[1e-9], value[0], rtol=1e-8)
    np.testing.assert_allclose(value[-1], 1 / (1 / x).mean(axis=0), rtol=1e-14)
    for lower, higher in itertools.pairwise(POWERS):
        assert (value[lower] <= value[higher] * (1 + 1e-14)).all(), "it grows with p"


@pytest.mark.parametrize("p", [-3, -1e-300, 0, 1e-12, 0.1, 2, 3, 1000])
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_nothing_overflows(p, scale):
    rows = [np.array([scale]), np.array([3 * scale])]
    found = aggregate(rows, "power_mean", p=p).value / scale
    assert found == pytest.approx(aggregate([np.ones(1), np.full(1, 3.0)], "power_mean", p=p).value, rel=1e-12)
    assert aggregate([rows[1]] * 3, "power_mean", p=p).value == pytest.approx(3 * scale, rel=1e-15)


@pytest.mark.parametrize(("p", "expected"), [(-1, 0), (-np.inf, 0), (0, 0), (1, 1), (2, np.sqrt(2)), (np.inf, 2)])
def test_a_zero_among_the_values(p, expected):
    assert aggregate([np.zeros(1), np.full(1, 2.0)], "power_mean", p=p).value == pytest.approx(expected)
    assert aggregate([np.zeros(1), np.zeros(1)], "power_mean", p=p).value == 0


def test_odd_powers_keep_the_sign(rng):
    x = rng.normal(size=(5, 60))
    for p in (3, 5, 7.0):
        total = (x**p).mean(axis=0)
        np.testing.assert_allclose(
            aggregate(x, "power_mean", p=p).value, np.sign(total) * np.abs(total) ** (1 / p), rtol=1e-9
        )
    np.testing.assert_allclose(aggregate(-x, "power_mean", p=3).value, -aggregate(x, "power_mean", p=3).value)


@pytest.mark.parametrize("p", [-1, 0, 0.5, 2, 2.5, -3, 4])
def test_who_sent_a_negative_number(p):
    rows = [{"a": np.ones(2), "b": np.ones(3)} for _ in range(4)]
    rows[2]["b"][1] = -0.25
    with pytest.raises(ContributionError, match=r"contributor 2: tensor 'b' holds -0\.25; .*non-negative"):
        aggregate(rows, "power_mean", p=p)
    named = {f"client {i}": row for i, row in enumerate(rows)}
    with pytest.raises(ContributionError, match="contributor 'client 2'"):
        aggregate(named, "power_mean", p=p)
    aggregate(rows, "power_mean", p=3)


def test_what_pre_rules_made_is_blamed_on_them():
    rows = [np.array([1.0, -1.0]), np.array([2.0, 3.0])]
    with pytest.raises(ContributionError, match=r"made by a pre-rule: .*non-negative"):
        rules.chain(rules.Clip(1.0), rules.PowerMean(2))(rows)


def test_nan_comes_before_the_sign():
    with pytest.raises(NonFiniteError, match="contributor 0"):
        aggregate([np.array([-np.inf]), np.ones(1)], "power_mean", p=2)


@pytest.mark.parametrize("p", [-np.inf, -1, 0, 0.5, 1, 2, 3, np.inf])
def test_laws_for_every_power(p):
    rule = rules.PowerMean(p)
    found = laws.check(rule, sorted(rule.laws), examples=25)
    assert not {name: (v.message, v.counterexample) for name, v in found.items() if not v.holds}


class TestLogSumExp:
    @pytest.mark.parametrize("t", [-2.0, -0.1, 0.01, 1.0, 100.0])
    @pytest.mark.parametrize("weights", [None, [1, 2, 0.5, 3, 1, 1]])
    def test_scipys(self, rng, t, weights):
        x = rng.normal(size=(6, 50))
        w = np.ones(6) if weights is None else np.array(weights)
        expected = t * (logsumexp(x / t, axis=0, b=w[:, None]) - np.log(w.sum()))
        np.testing.assert_allclose(aggregate(x, "log_sum_exp", weights, temperature=t).value, expected, atol=1e-12)

    def test_limits(self, rng):
        x = rng.normal(size=(6, 50))
        np.testing.assert_allclose(aggregate(x, "log_sum_exp", temperature=1e-6).value, x.max(axis=0), atol=1e-5)
        np.testing.assert_allclose(aggregate(x, "log_sum_exp", temperature=-1e-6).value, x.min(axis=0), atol=1e-5)
        np.testing.assert_allclose(aggregate(x, "log_sum_exp", temperature=1e8).value, x.mean(axis=0), atol=1e-7)

    def test_nothing_overflows(self):
        rows = [np.array([1e300, -1e300]), np.array([-1e300, -1e300])]
        np.testing.assert_allclose(aggregate(rows, "log_sum_exp").value, [1e300, -1e300])

    def test_who_counted_is_the_softmax(self):
        found = aggregate([np.zeros(3), np.full(3, np.log(3.0))], "log_sum_exp").weights
        np.testing.assert_allclose(found, [0.25, 0.75])


class TestQuasiArithmetic:
    @pytest.mark.parametrize(
        ("name", "f", "inverse"),
        [
            ("log", np.log, np.exp),
            ("sqrt", np.sqrt, np.square),
            ("square", np.square, np.sqrt),
            ("cube", lambda x: x**3, np.cbrt),
            ("cbrt", np.cbrt, lambda y: y**3),
            ("reciprocal", np.reciprocal, np.reciprocal),
            ("exp", np.exp, np.log),
            ("asinh", np.arcsinh, np.sinh),
            ("identity", np.positive, np.positive),
        ],
    )
    def test_names_are_their_formulas(self, x, name, f, inverse):
        w = np.array([1, 2, 0.5, 3, 1, 1])
        expected = inverse(np.average(f(x), axis=0, weights=w))
        found = aggregate(x, "quasi_arithmetic", w, f=name)
        np.testing.assert_allclose(found.value, expected, rtol=1e-12)
        np.testing.assert_allclose(rules.QuasiArithmetic(f, inverse)(list(x), w).value, expected, rtol=1e-12)
        assert pickle.loads(pickle.dumps(found.rule)) == found.rule

    def test_logit(self, rng):
        x = rng.uniform(0.01, 0.99, size=(4, 30))
        odds = np.exp(np.log(x / (1 - x)).mean(axis=0))
        np.testing.assert_allclose(aggregate(x, "quasi_arithmetic", f="logit").value, odds / (1 + odds))
        with pytest.raises(ContributionError, match=r"contributor 1: the array holds 1; the logit takes"):
            aggregate([np.full(2, 0.5), np.array([0.5, 1.0])], "quasi_arithmetic", f="logit")

    def test_a_value_where_f_has_no_meaning_is_named(self):
        rule = rules.QuasiArithmetic(np.log, np.exp)
        with pytest.raises(ContributionError, match=r"contributor 1: the array holds 0; f is not finite there"):
            rule([np.ones(3), np.array([1.0, 0.0, -1.0])])

    def test_a_wrong_inverse_is_seen(self, x):
        for rule in (rules.QuasiArithmetic(np.log, np.square), rules.QuasiArithmetic(np.sin, np.arcsin)):
            with pytest.raises(RuleError, match="monotone"):
                rule(list(10 * x))

    @pytest.mark.parametrize("name", ["asinh", "logit", "log", "exp", "square", "cbrt"])
    def test_laws_for_every_name(self, name):
        rule = rules.QuasiArithmetic(name)
        found = laws.check(rule, sorted(rule.laws), examples=20)
        assert not {law: (v.message, v.counterexample) for law, v in found.items() if not v.holds}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: rules.PowerMean(np.nan), "real number"),
        (lambda: rules.PowerMean("2"), "real number"),
        (lambda: rules.PowerMean(True), "real number"),
        (lambda: rules.LogSumExp(0), "other than zero"),
        (lambda: rules.LogSumExp(np.inf), "finite"),
        (lambda: rules.QuasiArithmetic("tangent"), "one of identity, square.*asinh"),
        (lambda: rules.QuasiArithmetic(np.log), "needs inverse="),
        (lambda: rules.QuasiArithmetic("log", np.exp), "knows its inverse"),
    ],
)
def test_errors_teach(make, told):
    with pytest.raises(RuleError, match=told):
        make()
