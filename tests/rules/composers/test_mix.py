"""Mixtures of two rules."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import NonFiniteError, RuleError

PAIRS = [
    (rules.Mean(), rules.Krum(f=2)),
    (rules.Clip(2.0), rules.GeometricMedian()),
    (rules.Median(), rules.Mean()),
    (rules.TrimmedMean(2), rules.chain(rules.NNM(f=2), rules.Median())),
    (rules.mix(rules.Median(), rules.Mean(), 0.25), rules.SoftMedian()),
]


@pytest.fixture
def x(rng):
    return rng.normal(size=(9, 40))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_it_is_the_mixture(x, rng, pair, share):
    w = rng.random(9)
    rule = rules.mix(*pair, share)
    found, parts = rule(list(x), w), [r(list(x), w) for r in pair]
    np.testing.assert_allclose(found.value, share * parts[0].value + (1 - share) * parts[1].value, atol=1e-13)
    np.testing.assert_allclose(found.weights, share * parts[0].weights + (1 - share) * parts[1].weights, atol=1e-13)
    directly = [np.linalg.norm(found.value - rule(list(np.delete(x, k, 0)), np.delete(w, k)).value) for k in range(9)]
    np.testing.assert_allclose(found.influence(), directly, atol=1e-9)


def test_two_linear_rules_share_a_gram(x, monkeypatch):
    from pluribus.core import passes

    calls = []
    real = passes.gram
    monkeypatch.setattr(passes, "gram", lambda active, **options: calls.append(1) or real(active, **options))
    found = rules.mix(rules.GeometricMedian(), rules.Krum(f=2))(list(x))
    assert len(calls) == 1
    assert found.relation is not None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64])
def test_trees_dtypes_and_counters(rng, dtype):
    rows = [
        {"w": rng.normal(size=(3, 2)).astype(dtype), "steps": np.array(2**60 + 1), "mask": np.array([True, False])}
        for _ in range(5)
    ]
    found = rules.mix(rules.Median(), rules.Mean(), 0.3)(rows).value
    one, other = rules.Median()(rows).value["w"], rules.Mean()(rows).value["w"]
    assert found["w"].dtype == dtype
    np.testing.assert_allclose(found["w"], 0.3 * one + 0.7 * other, rtol=4 * float(np.finfo(dtype).eps))
    assert found["steps"] == 2**60 + 1, "what all agree on stays as it is"
    assert found["mask"].tolist() == [True, False]


def test_a_reference_goes_to_whoever_uses_it(x):
    start = x[:3].mean(axis=0)
    rule = rules.mix(rules.CenteredClipping(radius=0.5), rules.Median(), 0.5)
    expected = 0.5 * rules.CenteredClipping(radius=0.5)(list(x), reference=start).value + 0.5 * np.median(x, axis=0)
    np.testing.assert_allclose(rule(list(x), reference=start).value, expected)
    with pytest.raises(RuleError, match="no use for a reference"):
        rules.mix(rules.Mean(), rules.Median())(list(x), reference=start)


def test_absent_tensors(rng):
    rows = [{"a": rng.normal(size=3), "b": rng.normal(size=2)} for _ in range(4)]
    del rows[1]["b"]
    found = rules.mix(rules.Mean(), rules.Median(), 0.5)(rows, missing="absent").value
    b = np.stack([row["b"] for row in rows if "b" in row])
    np.testing.assert_allclose(found["b"], 0.5 * b.mean(axis=0) + 0.5 * np.median(b, axis=0))


def test_nan_is_named(x):
    x[4, 0] = np.nan
    rule = rules.mix(rules.Median(), rules.Mean())
    with pytest.raises(NonFiniteError, match="contributor 4"):
        rule(list(x))
    expected = rule(list(np.delete(x, 4, axis=0))).value
    np.testing.assert_array_equal(rule(list(x), nonfinite="drop").value, expected)


def test_what_is_known_of_the_parts_is_known_of_the_mixture():
    rule = rules.mix(rules.Krum(f=2), rules.Median(), 0.5)
    assert rule.tolerates(9) == 2
    assert rule.least == 7
    assert {"anonymity", "translation", "breakdown"} <= rule.laws
    assert {"rotation", "replication", "anonymity at ties", "mergeable"}.isdisjoint(rule.laws)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert str(rule) == "Mix(first=Krum(f=2), second=Median())"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: rules.mix("mean", rules.Median()), r"first must be a rule, not 'mean'; pluribus.rules.get\('mean'\)"),
        (lambda: rules.mix(rules.Mean(), None), "second must be a rule"),
        (lambda: rules.mix(rules.Mean(), rules.Median(), 1.5), "from 0 to 1"),
        (lambda: rules.mix(rules.Krum(f=2), rules.Mean())([np.ones(2)] * 4), "at least 7"),
        (lambda: rules.mix(rules.Mean(), rules.Mean())([np.ones(2)] * 2, np.ones((2, 2))), "the mean can"),
        (lambda: rules.chain(rules.Clip(1.0), PAIRS[-1][0])([np.ones(2)] * 2), "made of rules"),
    ],
)
def test_errors_teach(make, told):
    with pytest.raises(RuleError, match=told):
        make()


def test_by_name(x):
    found = aggregate(x, "mix", first=rules.Mean(), second=rules.Median(), share=0.1).value
    np.testing.assert_allclose(found, 0.1 * x.mean(axis=0) + 0.9 * np.median(x, axis=0))
