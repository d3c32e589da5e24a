"""FedDA and FedGP: the catalogue's check, the authors' estimator, and the grid of shifts and sample sizes."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import rules
from pluribus.core.errors import RuleError
from pluribus.core.relations import Reads

BOTH = [rules.FedDA, rules.FedGP]


@pytest.fixture
def target(rng):
    return rng.normal(size=12)


@pytest.fixture
def sources(rng, target):
    return [target + 0.5 * rng.normal(size=12), rng.normal(size=12), -3 * target]


@pytest.mark.parametrize("weights", [None, [3.0, 1.0, 2.0]])
def test_formulas(sources, target, weights):
    w = np.ones(3) / 3 if weights is None else np.array(weights) / 6
    lent = [max(target @ x, 0) / (x @ x) * x for x in sources]
    for beta in (0.0, 0.3, 1.0):
        found = rules.FedDA(beta)(sources, weights, reference=target).value
        np.testing.assert_allclose(found, (1 - beta) * target + beta * (w @ sources), atol=1e-12)
        found = rules.FedGP(beta)(sources, weights, reference=target).value
        np.testing.assert_allclose(found, (1 - beta) * target + beta * (w @ lent), atol=1e-12)


class TestCatalogueCheck467:
    @pytest.mark.parametrize("make", BOTH)
    def test_no_trust_is_the_target_only(self, make, sources, target):
        np.testing.assert_allclose(make(0.0)(sources, reference=target).value, target)

    def test_an_opposed_source_gives_nothing(self, target):
        for opposed in (-target, -1e6 * target, np.zeros(12)):
            np.testing.assert_allclose(rules.FedGP(0.4)([opposed], reference=target).value, 0.6 * target)

    @pytest.mark.parametrize("make", BOTH)
    def test_a_source_equal_to_the_target_leaves_it(self, make, target):
        for rule in (make(0.7), make("auto", 0.5)):
            np.testing.assert_allclose(rule([target, target], reference=target).value, target)

    @pytest.mark.parametrize("make", BOTH)
    def test_trust_follows_variance_and_distance(self, make, sources, target):
        certain = make("auto", 0.0)(sources, reference=target)
        np.testing.assert_allclose(certain.value, target)
        trusts = make("auto", 1.0).trust(np.array([0.0, 1.0, 2.0, 1e12]))
        np.testing.assert_allclose(trusts, [1.0, 1.0, 0.5, 0.0], atol=1e-9)
        assert make("auto", 0.0).trust(np.array([0.0, 1.0])).tolist() == [0, 0]

    def test_errors_on_a_grid_of_shifts_and_sample_sizes(self):
        """Expected squared error of the direction, linear regression, three sources.

        With estimates of variance and distance, the automatic weight costs a little where the sources are perfect
        and the target's data few (the catalogue says "almost everywhere"), and wins where there is something to win.
        """
        better = 0
        for shift in (0.3, 1.0, 3.0):
            for m in (10, 100, 1000):
                target_only, source_only, fedavg, *auto = mean_errors(shift, m)
                best, worst = sorted((target_only, source_only))
                better += sum(error <= 1.01 * best for error in auto)
                assert max(auto) <= best + 0.12 * worst
                if shift >= 1:
                    assert min(auto) <= 0.75 * fedavg or m == 10
        assert better >= 11, "of 18"


def mean_errors(shift, m, d=20, draws=20):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=d) / np.sqrt(d)
    errors = []
    for _ in range(draws):

        def gradients(parameters, count):
            a = rng.normal(size=(count, d))
            return -a * (a @ parameters + rng.normal(size=count))[:, None]

        moves = [rng.normal(size=d) for _ in range(3)]
        x = [gradients(truth + shift * u / np.linalg.norm(u), 2000).mean(axis=0) for u in moves]
        own = gradients(truth, m)
        g = own.mean(axis=0)
        variance = float(((own - g) ** 2).sum() / (m - 1) / m)
        results = [
            g, np.mean(x, axis=0), (2000 * np.sum(x, axis=0) + m * g) / (6000 + m),
            *(make("auto", variance)(x, reference=g).value for make in BOTH),
        ]  # fmt: skip
        errors.append([((v + truth) ** 2).sum() for v in results])
    return np.mean(errors, axis=0)


def test_the_distance_is_the_authors_estimator(rng):
    """Their code: mean over batches of |b - x|^2 less the batches' variance; the variance of g_T is that over N."""
    batches, x = rng.normal(size=(8, 30)) + 0.3, rng.normal(size=30)
    g = batches.mean(axis=0)
    spread = ((batches - g) ** 2).sum() / 7
    theirs = max(((batches - x) ** 2).sum() / 8 - spread, 0)
    expected = (spread / 8) / (spread / 8 + theirs)
    found = rules.FedDA("auto", spread / 8)([x], reference=g)
    np.testing.assert_allclose(found.value, (1 - expected) * g + expected * x, rtol=1e-9)


def test_the_distance_is_that_to_the_line(rng):
    x = rng.normal(size=500)
    aside = rng.normal(size=500)
    aside -= aside @ x / (x @ x) * x
    for step in (1.0, 1e-4):
        distance = step**2 * (aside @ aside)
        found = rules.FedGP("auto", 0.25 * distance)([x], reference=3 * x + step * aside)
        assert found.weights[0] == pytest.approx(3 * 0.25, rel=1e-6)


def test_reads_as_little_as_it_can():
    assert rules.FedDA().reads is Reads.NOTHING
    assert rules.FedDA("auto", 1.0).reads is Reads.GRAM
    assert rules.FedGP().reads is Reads.GRAM


@pytest.mark.parametrize("make", BOTH)
def test_errors_teach(make):
    for wrong, told in [
        ({"beta": 1.5}, "beta must be a number in"),
        ({"beta": "some"}, "or 'auto'"),
        ({"beta": "auto"}, "needs variance="),
        ({"beta": "auto", "variance": -1.0}, "variance must be"),
        ({"beta": 0.5, "variance": 1.0}, "variance is for beta='auto'"),
    ]:
        with pytest.raises(RuleError, match=told):
            make(**wrong)
    with pytest.raises(RuleError, match="needs reference="):
        make()([np.ones(2)])
