"""What the robust rules and the rules for models asked of the core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from pluribus import laws, rules
from pluribus.core.errors import RuleError, UndefinedError
from pluribus.core.relations import Reads
from pluribus.core.rule import WeightRule


def test_inner_products_about_a_combination():
    rng = np.random.default_rng(0)
    x = 1e5 + rng.normal(size=(5, 30))
    found = rules.GeometricMedian()(list(x)).relation
    for w in (np.full(5, 0.2), np.eye(5)[2], rng.dirichlet(np.ones(5))):
        centred = (x - 1e5) - w @ (x - 1e5)
        np.testing.assert_allclose(found.centred(w), centred @ centred.T, atol=1e-6)


@dataclass(frozen=True)
class Between(WeightRule):
    """Half way to the reference."""

    reads = Reads.GRAM
    uses_reference = True
    needs_reference = "something to go to"

    def weigh(self, relation, weights):
        return np.append(0.5 * weights, 0.5)


@dataclass(frozen=True)
class OnlyPositive(WeightRule):
    """The mean, of contributions whose first inner product is positive."""

    reads = Reads.GRAM
    wrong: bool = False

    def weigh(self, relation, weights):
        if (relation.gram[0] <= 0).any():
            raise UndefinedError("not positive")
        return np.eye(len(weights))[0] if self.wrong else weights


def test_laws_give_a_reference_that_moves_along():
    found = laws.check(Between(), ["translation", "scale", "rotation", "anonymity", "unanimity"], examples=30)
    assert [name for name, verdict in found.items() if verdict.holds] == [
        "translation",
        "scale",
        "rotation",
        "anonymity",
    ]
    case = found["unanimity"].counterexample
    assert laws.replay(Between(), "unanimity", case) is not None
    assert np.shape(case["reference"]) == np.shape(case["x"])[1:]


def test_cases_without_an_answer_break_no_law():
    assert laws.check(OnlyPositive(), ["anonymity"], examples=30)["anonymity"].holds
    assert not laws.check(OnlyPositive(wrong=True), ["anonymity"], examples=30)["anonymity"].holds


def test_a_preset_ends_a_chain():
    with pytest.raises(RuleError, match="put it last"):
        rules.chain(rules.Bulyan(f=1), rules.Median())
    assert rules.chain(rules.Bucketing(), rules.Bulyan(f=1)).least == 13
