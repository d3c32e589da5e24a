"""MGDA, UPGrad, DualProj and CAGrad: no objective gets worse, whatever the gradients' lengths and however dependent."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize, nnls

from pluribus import aggregate, rules
from pluribus.core.errors import RuleError

HARMLESS = [rules.MGDA(), rules.MGDA(normalise=True), rules.UPGrad(), rules.DualProj(), rules.CAGrad(c=1.0)]
NAMES = [str(rule) for rule in HARMLESS]


def project(x, v):
    """Projection of v on {d : x d >= 0}, in R^d: v plus the non-negative combination of rows nearest to -v."""
    lengths = np.linalg.norm(x, axis=1)
    unit = x[lengths > 0] / lengths[lengths > 0, None]
    return v + unit.T @ nnls(unit.T, -v)[0] if len(unit) else v


@pytest.mark.parametrize("rule", HARMLESS, ids=NAMES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_objective_gets_worse(gradients, rule, dtype):
    """torchjd 0.18's UPGrad has a cosine of -0.14 and less when one gradient is 1e-3 of the others."""
    x = gradients.astype(dtype)
    rng = np.random.default_rng(3)
    for weights in (None, rng.uniform(0.1, 3, size=len(x))):
        found = np.asarray(rule(list(x), weights).value, dtype=np.float64)
        lengths = np.linalg.norm(x.astype(float), axis=1)
        size = max(np.linalg.norm(found), 1e-6 * lengths.max())  # below it the result is zero but for rounding
        slack = 1e-9 if dtype is np.float64 else 1e-5
        assert (x.astype(float) @ found >= -slack * lengths * size).all()


@pytest.mark.parametrize("rule", HARMLESS, ids=NAMES)
@pytest.mark.parametrize("factor", [1e-3, 1e-8, 1e6])
def test_scales_with_its_input(gradients, rule, factor):
    """torchjd 0.18's UPGrad returns the plain mean for small gradients: trace(G) < 1e-4."""
    expected = factor * rule(list(gradients)).value
    size = factor * np.abs(gradients).max()
    np.testing.assert_allclose(rule(list(factor * gradients)).value, expected, atol=1e-9 * size)


@pytest.mark.parametrize("rule", [rules.UPGrad(), rules.DualProj(), rules.CAGrad(0.4)], ids=str)
def test_agreement_is_the_mean_or_near(rng, rule):
    x, w = np.abs(rng.normal(size=(4, 6))), rng.uniform(1, 3, size=4)
    mean = w @ x / w.sum()
    found = rule(list(x), w).value
    if isinstance(rule, rules.CAGrad):
        assert np.linalg.norm(found - mean) == pytest.approx(0.4 * np.linalg.norm(mean))
    else:
        np.testing.assert_allclose(found, mean)


@pytest.mark.parametrize("rule", [*HARMLESS, rules.CAGrad(0.5)], ids=str)
def test_opposite_and_zero_and_one(rule, rng):
    g = rng.normal(size=6)
    alone = 1 + getattr(rule, "c", 0.0)
    np.testing.assert_allclose(rule([g]).value, alone * g)
    np.testing.assert_allclose(rule([g, g, g]).value, alone * g)
    np.testing.assert_allclose(rule([g, -g]).value, 0, atol=1e-9)
    assert rule([np.zeros(6)] * 3).value.tolist() == [0] * 6


class TestMGDA:
    def test_is_the_nearest_point_of_the_hull(self, gradients):
        z = rules.MGDA()(list(gradients)).value
        # z is nearest to zero exactly if no contribution lies nearer along it: <x_i, z> >= |z|^2.
        lengths = np.linalg.norm(gradients, axis=1)
        assert (gradients @ z >= z @ z - 1e-10 * lengths * lengths.max()).all()

    def test_is_not_longer_than_frank_wolfe(self, rng):
        """Median 0.7 % too long with 64 gradients in torchjd's 100 steps, and weights off by 0.2."""
        x = rng.normal(size=(20, 60)) + 0.2
        a = np.full(20, 1 / 20)
        for _ in range(100):
            t = np.argmin(x @ (a @ x))
            d = x[t] - a @ x
            step = np.clip(-(a @ x) @ d / (d @ d), 0, 1)
            a = (1 - step) * a + step * np.eye(20)[t]
        assert np.linalg.norm(rules.MGDA()(list(x)).value) < np.linalg.norm(a @ x)

    def test_torchjd(self, frozen):
        theirs = [0.343246795925518, 0.810877423598715, 0.352283930320768, 0.315806769637981]
        np.testing.assert_allclose(aggregate(frozen, "mgda").value, theirs, atol=1e-5)  # 100 000 Frank-Wolfe steps

    def test_normalised_sees_directions_only(self, rng):
        x = rng.normal(size=(3, 5))
        x[2] = -0.5 * x[1] + x[2]
        one = rules.MGDA(normalise=True)(list(x)).value
        other = rules.MGDA(normalise=True)(list(x * np.array([[1.0], [1e-4], [30.0]]))).value
        assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) == pytest.approx(1)
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        nearest = rules.MGDA()(list(unit)).value
        assert one @ nearest / np.linalg.norm(one) / np.linalg.norm(nearest) == pytest.approx(1)
        assert rules.MGDA(normalise=True)(list(x)).weights.sum() == pytest.approx(1)


class TestUPGradAndDualProj:
    def test_against_projections_in_the_whole_space(self, gradients):
        w = np.random.default_rng(1).uniform(0.5, 2, size=len(gradients))
        w /= w.sum()
        size = np.abs(gradients).max()
        every = sum(share * project(gradients, x) for share, x in zip(w, gradients, strict=True))
        np.testing.assert_allclose(rules.UPGrad()(list(gradients), w).value, every, atol=1e-7 * size)
        mean = project(gradients, w @ gradients)
        np.testing.assert_allclose(rules.DualProj()(list(gradients), w).value, mean, atol=1e-7 * size)

    def test_upgrad_is_linear_in_each_length(self, rng):
        x = rng.normal(size=(4, 7))

        def at(c):
            return rules.UPGrad()(list(x * np.asarray(c)[:, None])).value

        for c in ([1, 2, 3, 4], [1, 1e-5, 1, 100]):
            parts = [at(np.where(np.arange(4) == i, 1.0, 1e-9)) for i in range(4)]
            np.testing.assert_allclose(at(c), np.asarray(c) @ parts, atol=1e-6 * max(c))

    def test_torchjd(self, frozen):
        """With its epsilons at 0 and 1e-13, as far as they can be turned down; 30 random sets agreed to 3e-9."""
        preference = [5, 3, 2]
        for rule, weights, theirs in [
            ("upgrad", None, [0.584348864994045, 1.38088410991618, 0.264516129032117, 0.615531660693037]),
            ("upgrad", preference, [0.700913978494696, 1.24279569892445, 0.713064516128849, 0.703978494623845]),
            ("dualproj", None, [0.466666666666783, 0.899999999999767, -0.13333333333345, 0.600000000000233]),
            ("dualproj", preference, [0.59500000000016, 0.809999999999679, 0.35499999999984, 0.690000000000321]),
        ]:
            np.testing.assert_allclose(aggregate(frozen, rule, weights).value, theirs, atol=1e-11)

    def test_ends_at_a_pareto_stationary_point(self):
        """Two quadratics with minima apart: the end lies between them, where the gradients are opposed."""
        a, b = np.array([1.0, 0.0]), np.array([-1.0, 1.0])
        scale = np.diag([1.0, 3.0])
        z = np.array([3.0, 4.0])
        for _ in range(400):
            z = z - 0.3 * rules.UPGrad()([z - a, scale @ (z - b)]).value
        u, v = z - a, scale @ (z - b)
        assert u @ v / np.linalg.norm(u) / np.linalg.norm(v) == pytest.approx(-1, abs=1e-6)

    def test_a_thousand(self, rng):
        x = rng.normal(size=(1000, 1500)) + 0.1
        found = rules.DualProj()(list(x)).value
        assert (x @ found).min() >= -1e-9


class TestCAGrad:
    def directly(self, x, g, radius):
        """max t with <x_i, d> >= t in the ball, in R^d."""
        d = x.shape[1]
        start = np.append(g, (x @ g).min())
        found = minimize(
            lambda v: -v[d], start, method="SLSQP", jac=lambda v: np.append(np.zeros(d), -1.0),
            constraints=[
                {"type": "ineq", "fun": lambda v: x @ v[:d] - v[d]},
                {"type": "ineq", "fun": lambda v: radius**2 - (v[:d] - g) @ (v[:d] - g)},
            ],
            options={"maxiter": 500, "ftol": 1e-12},
        )  # fmt: skip
        return found.x[:d]

    @pytest.mark.parametrize("c", [0.1, 0.5, 0.9, 1.5])
    @pytest.mark.parametrize("seed", range(4))
    def test_is_the_best_in_the_ball(self, c, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(4, 6)) * rng.uniform(0.3, 3, size=(4, 1)) + 0.3 * rng.normal(size=6)
        w = rng.uniform(0.5, 2, size=4)
        g = w @ x / w.sum()
        radius = c * np.linalg.norm(g)
        found = rules.CAGrad(c)(list(x), w).value
        assert np.linalg.norm(found - g) <= radius * (1 + 1e-9)
        best = self.directly(x, g, radius)
        assert (x @ found).min() >= (x @ best).min() - 1e-6
        if np.linalg.norm(best - g) <= radius * (1 + 1e-6):
            np.testing.assert_allclose(found, best, atol=1e-3)

    @pytest.mark.parametrize("c", [0.2, 0.8, 1.5])
    def test_no_gap_to_the_dual(self, gradients, c):
        """For any convex weights v the worst is at most <g, g_v> + r |g_v|; ours reach it, so nothing is better."""
        found = rules.CAGrad(c)(list(gradients))
        g, size = gradients.mean(axis=0), np.linalg.norm(gradients, axis=1).max()
        worst = (gradients @ found.value).min()
        added = found.weights - 1 / len(gradients)
        bound = 0.0 if np.linalg.norm(rules.MGDA()(list(gradients)).value) <= 1e-7 * size else np.inf
        if added.sum() > 1e-9:
            mixed = added @ gradients / added.sum()
            bound = min(bound, g @ mixed + c * np.linalg.norm(g) * np.linalg.norm(mixed))
        assert worst >= min(bound, (gradients @ g).min() if np.isinf(bound) else bound) - 1e-7 * size**2

    def test_no_radius_is_the_mean(self, gradients):
        np.testing.assert_array_equal(rules.CAGrad(0.0)(list(gradients)).value, rules.Mean()(list(gradients)).value)

    def test_stays_in_the_ball_and_helps_the_worst(self, gradients):
        mean = gradients.mean(axis=0)
        for c in (0.2, 0.7):
            found = rules.CAGrad(c)(list(gradients)).value
            assert np.linalg.norm(found - mean) <= c * np.linalg.norm(mean) * (1 + 1e-6) + 1e-12
            assert (gradients @ found).min() >= (gradients @ mean).min() - 1e-9

    def test_torchjd(self, frozen):
        """An interior-point solver: 30 random sets agreed to 1e-4 of the longest, and theirs was never better."""
        theirs = np.array([0.48253603088745, 1.27668705871645, 0.191152079080214, 0.495596810085953])
        found = aggregate(frozen, "cagrad", c=0.5).value
        np.testing.assert_allclose(found, theirs, atol=1e-5)
        assert (frozen @ found).min() >= (frozen @ theirs).min() - 1e-12

    def test_a_zero_gradient_does_not_stop_the_others(self, rng):
        """torchjd 0.18 returns zero as soon as one objective is done."""
        x = np.vstack([rng.normal(size=(3, 6)) + 1, np.zeros(6)])
        found = rules.CAGrad(0.5)(list(x)).value
        np.testing.assert_allclose(found, rules.DualProj()(list(x)).value, atol=1e-9)
        assert np.linalg.norm(found) > 0.5

    def test_rescaled_as_the_authors_do(self, rng):
        x = rng.normal(size=(3, 5))
        plain = rules.CAGrad(0.5)(list(x)).value
        np.testing.assert_allclose(rules.CAGrad(0.5, rescale=1)(list(x)).value, plain / 1.25)
        np.testing.assert_allclose(rules.CAGrad(0.5, rescale=2)([x[0]] * 3).value, x[0])

    @pytest.mark.parametrize(("wrong", "told"), [({"c": -1}, "c must be"), ({"rescale": 3}, "rescale must be")])
    def test_errors_teach(self, wrong, told):
        with pytest.raises(RuleError, match=told):
            rules.CAGrad(**wrong)
