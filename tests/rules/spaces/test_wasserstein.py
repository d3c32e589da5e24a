"""Barycentres on the line."""

from __future__ import annotations

import numpy as np
import pytest
from frechet_checks import assert_least, cost
from scipy.stats import norm, wasserstein_distance

from pluribus import aggregate, laws, rules
from pluribus.core.errors import ContributionError, RuleError

LEVELS = (np.arange(200) + 0.5) / 200


def test_normals_have_a_normal_barycentre():
    mean, deviation, w = np.array([0.0, 3.0, -1.0]), np.array([1.0, 0.5, 2.0]), np.array([1.0, 2.0, 1.0])
    quantiles = norm.ppf(LEVELS, mean[:, None], deviation[:, None])
    found = aggregate(quantiles, "wasserstein_mean", w).value
    np.testing.assert_allclose(found, norm.ppf(LEVELS, mean @ w / 4, deviation @ w / 4), rtol=1e-12, atol=1e-12)


def test_it_is_the_least(rng):
    x, w = np.sort(rng.normal(size=(5, 40)), axis=1), rng.random(5)
    rule = rules.WassersteinMean()
    found = rule(list(x), w).value
    near = [np.sort(found + s * rng.normal(size=(200, 40)), axis=1) for s in (1e-3, 0.1, 1)]
    assert_least(rule, x, w, found, np.concatenate(near))


def test_samples_in_any_order(rng):
    x = rng.normal(size=(4, 30))
    rule = rules.WassersteinMean(form="samples")
    found = rule(list(x))
    np.testing.assert_allclose(found.value, np.sort(x, axis=1).mean(axis=0))
    for k in range(4):
        assert rules.WassersteinMean("samples", 1)(list(x)).distances[k] >= 0
        one = wasserstein_distance(x[k], found.value)
        assert np.sqrt(rules.WassersteinMean("samples", 1).squared_distances(x[k : k + 1], found.value[None]))[
            0
        ] == pytest.approx(one)


def test_plain_distances_take_medians(rng):
    x, w = np.sort(rng.normal(size=(5, 40)), axis=1), np.array([1, 3, 1, 2, 1])
    rule = rules.WassersteinMean(power=1)
    found = rule(list(x), w).value
    np.testing.assert_allclose(found, np.median(np.repeat(x, w, axis=0), axis=0))
    assert (np.diff(found) >= 0).all()
    others = np.sort(found + 0.2 * rng.normal(size=(300, 40)), axis=1)

    def plain(candidates):
        return sum(a * np.sqrt(cost(rule, [row], [1.0], candidates)) for a, row in zip(w, x, strict=True))

    assert (plain(others) >= plain(found[None]) - 1e-12).all()


@pytest.mark.parametrize("rule", [rules.WassersteinMean("samples"), rules.WassersteinMean(power=1)], ids=str)
def test_laws_of_the_others(rule):
    found = laws.check(rule, sorted(rule.laws), examples=15)
    assert not {name: v.message for name, v in found.items() if not v.holds}


def test_what_is_no_point():
    rows = [np.arange(6.0).reshape(2, 3) for _ in range(3)]
    rows[2][1, 2] = 0
    with pytest.raises(ContributionError, match=r"contributor 2: the array at \[1\] falls by -4 .*form='samples'"):
        aggregate(rows, "wasserstein_mean")
    aggregate(rows, "wasserstein_mean", form="samples")
    for bad in ({"form": "cdf"}, {"power": 3}, {"power": True}):
        with pytest.raises(RuleError, match="must be"):
            rules.WassersteinMean(**bad)
