"""Every registered rule: the laws it declares hold, and each law it does not declare has a stored counterexample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from pluribus import laws, rules
from pluribus.core.rule import PointRule, WeightRule

RULES = laws.example_rules()


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", sorted(RULES))
def test_declared_laws_hold(name, dtype):
    rule = RULES[name]
    found = laws.check(rule, sorted(rule.laws), examples=40 if dtype is np.float64 else 15, dtype=dtype)
    broken = {law: (v.message, v.counterexample) for law, v in found.items() if not v.holds}
    assert not broken


@pytest.mark.parametrize("name", sorted(RULES))
def test_what_is_not_declared_has_a_counterexample(name):
    rule, known = RULES[name], laws.stored().get(name, {})
    speaking = {name for name, law in laws.LAWS.items() if law.applies(rule)}
    assert set(known) == speaking - rule.laws, "run `pluribus laws --store` and declare what holds"
    for law, found in known.items():
        assert laws.replay(rule, law, found["case"]) is not None, f"{name} does not break {law} there any more"


@dataclass(frozen=True)
class Careless(WeightRule):
    """A rule with faults: the first contributor counts twice, and weights are ignored."""

    def weigh(self, relation, weights):
        w = np.ones(len(weights))
        w[0] = 2.0
        return w / w.sum()


def test_faults_of_a_users_rule_are_found_and_shrunk():
    found = laws.check(Careless(), examples=60)
    broken = {name for name, verdict in found.items() if not verdict.holds}
    assert broken >= {"anonymity", "replication", "mergeable", "breakdown"}
    assert {"unanimity", "translation", "scale", "rotation", "betweenness", "deterministic"}.isdisjoint(broken)
    small = found["anonymity"].counterexample
    assert np.shape(small["x"]) == (2, 1), "shrinking leaves the smallest case"


def test_known_faults_are_seen():
    assert not laws.check(rules.Median(), ["rotation"])["rotation"].holds
    assert not laws.check(rules.Mean(), ["breakdown"])["breakdown"].holds


def test_the_same_seed_gives_the_same_counterexample():
    one, other = (laws.check(rules.Median(), ["rotation"], seed=5)["rotation"] for _ in range(2))
    assert one == other


@dataclass(frozen=True)
class Smallest(PointRule):
    """The smallest label: a rule that is not on vectors."""

    axes, whole = 0, True
    laws = frozenset({"anonymity"})

    def combine(self, points, weights):
        return points.min(axis=0)

    def complaint(self, points, rounding):
        return None

    def squared_distances(self, points, others):
        return (points != others).astype(float)

    def draw(self, x):
        return np.rint(x).astype(int)


def test_laws_about_vectors_say_nothing_about_labels():
    found = laws.check(Smallest(), examples=20)
    vectors = {"translation", "scale", "rotation", "betweenness", "monotone weight", "breakdown"}
    assert {name for name, verdict in found.items() if verdict.word == "not applicable"} == vectors
    assert {name for name, verdict in found.items() if verdict.word == "broken"} == {"mergeable"}
    assert found["null"].word == "holds"


def test_a_declared_law_is_tried_whatever_it_speaks_of(tmp_path):
    class Eager(Smallest):
        laws = frozenset({"translation", "scale"})

    found = laws.check(Eager(), ["scale", "rotation"], examples=20)
    assert found["scale"].word == "broken", "half of an odd label is no label"
    assert found["rotation"].word == "not applicable"
    laws.store({"eager": found}, tmp_path)
    assert "rotation" not in (tmp_path / "eager.json").read_text()


def test_unknown_law_lists_the_laws():
    with pytest.raises(ValueError, match=r"no law is called 'justice'.*anonymity"):
        laws.check(rules.Mean(), ["justice"])
