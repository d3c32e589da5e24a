"""An attacker that searches does not move robust rules further than they declare."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import laws, rules
from pluribus.core.adversary import attack
from pluribus.core.rule import PointRule

ROBUST = {
    name: rule
    for name, rule in laws.example_rules().items()
    if not isinstance(rule, PointRule) and "breakdown" in rule.laws and not rule.needs_reference
}


@pytest.mark.parametrize("name", sorted(ROBUST))
def test_no_attack_exceeds_the_declared_bound(name):
    rule = ROBUST[name]
    for n in (rule.least, max(rule.least, 2) + 4):
        if rule.tolerates(n):
            found = attack(rule, n, tries=150, seed=n)
            assert found.ratio <= found.bound * (1 + 1e-6), found.contributions


def test_the_search_breaks_what_is_not_robust():
    assert attack(rules.Mean(), 6, f=1, tries=100).ratio > 1e3
    assert attack(rules.Krum(f=1), 7, f=4, tries=300).ratio > 1e3


def test_the_search_beats_canned_attacks():
    """Far away is the worst for a mean, and nothing for a Krum: what harms it is found inside."""
    rule, n = rules.Krum(f=2), 9
    found = attack(rule, n, tries=400, seed=1)
    honest = found.contributions[2:]
    far = np.vstack([np.full((2, 3), 1e8), honest])
    spread = max(np.linalg.norm(a - b) for a in honest for b in honest)
    canned = np.linalg.norm(rule(list(far)).value - honest.mean(axis=0)) / spread
    assert found.ratio > canned


def test_it_is_the_same_search_again():
    one, two = attack(rules.Median(), 7, tries=60), attack(rules.Median(), 7, tries=60)
    assert one.ratio == two.ratio
    np.testing.assert_array_equal(one.contributions, two.contributions)


def test_nobody_attacks_where_nobody_is_withstood():
    assert attack(rules.Mean(), 5).ratio == 0.0
