"""A rule for each group of tensors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pluribus import rules
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError


def models(rng, n=7):
    return [
        {
            "encoder.0.weight": rng.normal(size=(3, 4)),
            "encoder.0.bias": rng.normal(size=3),
            "encoder.1.weight": rng.normal(size=(2, 3)),
            "head.weight": rng.normal(size=(2, 2)),
            "head.bias": rng.normal(size=2),
            "steps": np.array(k),
        }
        for k in range(n)
    ]


def part(rows, names):
    return [{name: row[name] for name in names} for row in rows]


@pytest.mark.parametrize("rule", [rules.Krum(f=2), rules.GeometricMedian(), rules.Median(), rules.NNM(f=2)], ids=str)
def test_layer_by_layer(rng, rule):
    rows, w = models(rng), rng.random(7)
    found = rules.per_group(rule, "tensor")(rows, w)
    for name in rows[0]:
        if name != "steps":
            alone = rule(part(rows, [name]), w)
            assert found.value[name].tobytes() == alone.value[name].tobytes()
    sizes = {name: value.size for name, value in rows[0].items() if name != "steps"}
    weights = sum(size * rule(part(rows, [name]), w).weights for name, size in sizes.items()) / sum(sizes.values())
    np.testing.assert_allclose(found.weights, weights)


def test_an_attack_on_one_layer_is_dropped_there_only(rng):
    rows = models(rng)
    rows[6]["head.bias"] = rows[6]["head.bias"] + 100
    found = rules.per_group(rules.TrimmedMean(1))(rows)
    assert found.weights[6] > 0
    whole = rules.MultiKrum(f=1)(rows).weights[6]
    assert whole == 0
    assert rules.per_group(rules.MultiKrum(f=1))(rows).weights[6] > 0


def test_groups_by_prefix_and_pattern(rng):
    rows, w = models(rng), rng.random(7)
    groups = {"encoder": rules.Krum(f=2), "*.bias": rules.Median()}
    with pytest.raises(RuleError, match=r"'encoder\.0\.bias' is in the groups 'encoder' and '\*\.bias'"):
        rules.per_group(rules.Mean(), groups)(rows)
    groups = {"encoder": rules.Krum(f=2), "head.bias": rules.Median()}
    found = rules.per_group(rules.Mean(), groups)(rows, w)
    encoder = [name for name in rows[0] if name.startswith("encoder")]
    for names, rule in ((encoder, rules.Krum(f=2)), (["head.bias"], rules.Median()), (["head.weight"], rules.Mean())):
        alone = rule(part(rows, names), w).value
        for name in names:
            np.testing.assert_array_equal(found.value[name], alone[name])
    assert list(found.value) == list(rows[0])
    mapped = rules.per_group(rules.Krum(f=2), ["encoder", "head", "steps"])(rows)
    assert (
        mapped.value["encoder.0.bias"].tobytes()
        == found.rule.groups[0][1](part(rows, encoder)).value["encoder.0.bias"].tobytes()
    )


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: rules.per_group(None, {"encoder": rules.Mean()}), r"'head.weight', 'head.bias', 'steps' belong to no"),
        (lambda: rules.PerGroup(None, [("encoder", rules.Mean()), ("head", rules.Mean())]), "'steps' belong"),
        (lambda: rules.per_group(rules.Mean(), {"heed": rules.Mean()}), r"no tensor matches 'heed'; there are head"),
        (lambda: rules.per_group(rules.Mean(), {"enc": rules.Mean()}), "no tensor matches 'enc'"),
        (lambda: rules.per_group(None, "tensor"), "rule must be a rule"),
        (lambda: rules.per_group(rules.Mean(), "layers"), "not 'layers'"),
        (lambda: rules.per_group(None, {}), "no groups"),
        (lambda: rules.per_group(None, {"head": "mean"}), r"the rule of 'head' must be a rule.*get\('mean'\)"),
        (lambda: rules.per_group(rules.Krum(f=3)), "at least 9 contributors, and got 7"),
    ],
)
def test_errors_say_which(rng, make, told):
    with pytest.raises(RuleError, match=told):
        make()(models(rng))


def test_counters_alone_are_averaged(rng):
    rows = models(rng)
    assert rules.per_group(rules.Krum(f=2))(rows).value["steps"] == 3
    assert rules.per_group(rules.Krum(f=2))(rows, integers="max").value["steps"] == 6


def test_absent_tensors_leave_a_contributor_out_of_its_group(rng):
    rows = models(rng)
    del rows[2]["head.weight"], rows[2]["head.bias"]
    groups = [("encoder", rules.Krum(f=1)), ("head", rules.Krum(f=1)), ("steps", rules.Mean())]
    found = rules.PerGroup(None, groups)(rows, missing="absent")
    rest = [row for k, row in enumerate(rows) if k != 2]
    expected = rules.Krum(f=1)(part(rest, ["head.weight", "head.bias"])).value
    np.testing.assert_array_equal(found.value["head.bias"], expected["head.bias"])
    with pytest.raises(ContributionError, match="needs every tensor"):
        rules.Krum(f=1)(rows, missing="absent")


def test_nan_is_named_by_tensor(rng):
    rows = models(rng)
    rows[5]["head.bias"][0] = np.inf
    rule = rules.per_group(rules.GeometricMedian())
    with pytest.raises(NonFiniteError, match=r"contributor 5: NaN or Inf in tensor 'head.bias'"):
        rule(rows)
    dropped = rule(rows, nonfinite="drop")
    assert dropped.weights[5] == 0


def test_one_group_of_all_is_the_rule(rng):
    rows = models(rng)
    found = rules.per_group(rules.Krum(f=2), ["*"])(rows)
    alone = rules.Krum(f=2)(rows)
    assert all(found.value[k].tobytes() == alone.value[k].tobytes() for k in rows[0])
    np.testing.assert_allclose(found.influence(), alone.influence())


def test_groups_in_trees(rng):
    rows = [{"net": {"a": rng.normal(size=2), "b": [rng.normal(size=3)]}} for _ in range(5)]
    found = rules.per_group(rules.Mean(), {"net/b": rules.Median()})(rows).value
    np.testing.assert_allclose(found["net"]["b"][0], np.median([r["net"]["b"][0] for r in rows], axis=0))
    np.testing.assert_allclose(found["net"]["a"], np.mean([r["net"]["a"] for r in rows], axis=0))


def test_rules_are_values():
    rule = rules.per_group(rules.Mean(), {"a": rules.Median()})
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert hash(rule) == hash(rules.per_group(rules.Mean(), [("a", rules.Median())]))
    assert str(rule) == "PerGroup(Mean(), {'a': Median()})"
    assert rule.laws == (rules.Mean().laws & rules.Median().laws) - {"rotation", "mergeable"}
