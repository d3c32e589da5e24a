"""Model Stock (catalogue 47) and the Karcher mean on the sphere (140)."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import RuleError, UndefinedError
from pluribus.federated.data import Dataset, digits, split
from pluribus.federated.models import MLP
from pluribus.federated.training import LocalTraining, train


def fine_tuned(seed, k=4, d=200, scatter=1.0):
    """A base model and models at equal lengths and (in expectation) equal angles from it."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=d)
    common = rng.normal(size=d)
    return base, base + 0.1 * (common + scatter * rng.normal(size=(k, d)))


class TestModelStock:
    def directly(self, x, base, w):
        w = w / w.sum()
        deltas = x - base
        unit = deltas / np.linalg.norm(deltas, axis=1, keepdims=True)
        cosines = unit @ unit.T
        pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if i != j]
        c = sum(w[i] * w[j] * cosines[i, j] for i, j in pairs) / sum(w[i] * w[j] for i, j in pairs)
        k = 1 / (w**2).sum()
        t = max(k * c / (1 + (k - 1) * c), 0) if c > 0 else 0.0
        return t * (w @ x) + (1 - t) * base

    @pytest.mark.parametrize("k", [2, 3, 7])
    def test_is_the_formula(self, k):
        for seed in range(5):
            base, x = fine_tuned(seed, k)
            for w in (np.ones(k), np.random.default_rng(seed).uniform(0.5, 2, size=k)):
                found = rules.ModelStock()(list(x), w, reference=base)
                np.testing.assert_allclose(found.value, self.directly(x, base, w), atol=1e-12)

    def test_alike_is_the_mean_and_unlike_the_base(self):
        base = np.array([1.0, 2, 3])
        np.testing.assert_allclose(rules.ModelStock()([base + 1] * 3, reference=base).value, base + 1)
        right_angles = list(base + np.diag([1.0, 2.0, 3.0]))
        np.testing.assert_allclose(rules.ModelStock()(right_angles, reference=base).value, base)
        opposite = list(base + np.array([[1, 0, 0], [-1, -0.1, 0]]))  # where the formula divides by almost zero
        np.testing.assert_allclose(rules.ModelStock()(opposite, reference=base).value, base)

    @pytest.mark.parametrize("k", [2, 3, 5])
    @pytest.mark.parametrize("cosine", [0.0, 0.3, 0.9])
    def test_is_the_orthocentre(self, k, cosine):
        """With equal lengths and angles the result sees model i and base to model j at a right angle."""
        gram = np.full((k, k), cosine) + (1 - cosine) * np.eye(k)
        base = np.linspace(-1, 1, k)
        x = base + np.linalg.cholesky(gram) * 2.5
        w = rules.ModelStock()(list(x), reference=base).value
        inner = (x - w) @ (x - base).T
        np.testing.assert_allclose(inner[~np.eye(k, dtype=bool)], 0, atol=1e-12)

    def test_order(self):
        base, x = fine_tuned(1)
        value = rules.ModelStock()(list(x), reference=base).value
        np.testing.assert_allclose(rules.ModelStock()(list(x[::-1]), reference=base).value, value)

    def test_close_to_the_base_no_digits_are_lost(self):
        """Differences of 1e-8 of the model: merging tools' half precision, and cosines of whole models, fail here."""
        rng = np.random.default_rng(2)
        base = rng.normal(size=1000)
        deltas = rng.normal(size=1000) + rng.normal(size=(4, 1000))
        at_zero = rules.ModelStock()(list(deltas), reference=np.zeros(1000)).weights
        close = rules.ModelStock()(list(base + 1e-8 * deltas), reference=base).weights
        np.testing.assert_allclose(close, at_zero, rtol=1e-5)

    def test_a_model_that_did_not_move(self):
        base, x = fine_tuned(3, k=2)
        np.testing.assert_allclose(rules.ModelStock()([base, base, base], reference=base).value, base)
        assert np.isfinite(rules.ModelStock()([base, *x], reference=base).value).all()

    def test_nearer_to_the_centre_than_the_mean_of_two(self):
        for seed in range(10):
            base, x = fine_tuned(seed, k=40, d=1000)
            centre = x.mean(axis=0)
            stock = rules.ModelStock()(list(x[:2]), reference=base).value
            assert np.linalg.norm(stock - centre) < np.linalg.norm(x[:2].mean(axis=0) - centre)

    def test_noisy_digits(self):
        """Two fine-tunes on little data: on noisy images the result is no worse than their mean."""
        data = split(digits(), seed=0, test=0.25, proxy=10)
        model = MLP(64, 24, 10)
        rng = np.random.default_rng(0)
        noisy = data.test.x + 6 * rng.normal(size=data.test.x.shape)
        found = {"stock": [], "mean": []}
        for seed in range(4):
            start = Dataset(data.train.x + 4 * rng.normal(size=data.train.x.shape), data.train.y, 10)
            base = train(model, model.init(seed), start, LocalTraining(epochs=8, lr=0.005), seed).params
            few = data.train.take(np.arange(200))
            pair = [train(model, base, few, LocalTraining(epochs=20, lr=0.01), 10 * seed + k).params for k in (1, 2)]
            merged = {"stock": rules.ModelStock()(pair, reference=base).value, "mean": aggregate(pair).value}
            for name, params in merged.items():
                found[name].append(float((model.predict(params, noisy) == data.test.y).mean()))
        assert np.mean(found["stock"]) >= np.mean(found["mean"])

    def test_errors_teach(self):
        with pytest.raises(RuleError, match=r"needs reference=.*the base model"):
            aggregate([np.ones(2)] * 2, "model_stock")
        with pytest.raises(RuleError, match="at least 2 contributors, and got 1"):
            rules.ModelStock()([np.ones(2)], reference=np.zeros(2))


def slerp(a, b, share):
    angle = np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    u, v = a / np.linalg.norm(a), b / np.linalg.norm(b)
    return (np.sin((1 - share) * angle) * u + np.sin(share * angle) * v) / np.sin(angle)


class TestKarcher:
    def directly(self, x, w, steps=4000):
        """The fixed point in R^d."""
        w = w / w.sum()
        lengths = np.linalg.norm(x, axis=1)
        u = x / lengths[:, None]
        m = w @ u
        m /= np.linalg.norm(m)
        for _ in range(steps):
            angle = np.arccos(np.clip(u @ m, -1, 1))
            factor = np.where(angle > 1e-9, angle / np.maximum(np.sin(angle), 1e-300), 1.0)
            v = (w * factor) @ (u - np.cos(angle)[:, None] * m)
            size = np.linalg.norm(v)
            if size < 1e-14:
                break
            m = np.cos(size) * m + np.sin(size) * v / size
        return (w @ lengths) * m

    @pytest.mark.parametrize(("n", "d"), [(3, 3), (5, 40), (8, 8), (20, 1000)])
    def test_is_the_fixed_point_in_the_space_of_models(self, n, d):
        for seed in range(4):
            rng = np.random.default_rng(seed)
            x = rng.normal(size=(n, d)) + 0.7
            w = rng.uniform(0.2, 2, size=n)
            np.testing.assert_allclose(aggregate(x, "karcher", w).value, self.directly(x, w), atol=1e-8)

    @pytest.mark.parametrize("share", [0.5, 0.1, 0.93])
    @pytest.mark.parametrize("degrees", [1e-4, 10, 90, 150, 179])
    def test_two_are_slerp(self, share, degrees):
        a = np.array([2.0, 0, 0])
        b = 3 * np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees)), 0])
        found = aggregate([a, b], "karcher", [1 - share, share])
        length = (1 - share) * 2 + share * 3
        np.testing.assert_allclose(found.value, length * slerp(a, b, share), atol=1e-7)

    def test_agreement_is_a_fixed_point(self):
        x = np.array([0.3, -0.1, 7.0])
        np.testing.assert_allclose(aggregate([x] * 5, "karcher").value, x, rtol=1e-15)
        np.testing.assert_allclose(aggregate([x, 2 * x, 6 * x], "karcher").value, 3 * x, rtol=1e-12)
        np.testing.assert_allclose(aggregate([x], "karcher").value, x, rtol=1e-15)

    def test_the_tangent_vanishes(self):
        for seed in range(5):
            rng = np.random.default_rng(seed)
            x, w = rng.normal(size=(6, 50)), rng.dirichlet(np.ones(6))
            m = aggregate(x, "karcher", w).value
            m = m / np.linalg.norm(m)
            u = x / np.linalg.norm(x, axis=1, keepdims=True)
            angle = np.arccos(u @ m)
            tangent = (w * angle / np.sin(angle)) @ (u - np.cos(angle)[:, None] * m)
            assert np.linalg.norm(tangent) < 1e-8

    def test_length_is_kept_where_the_mean_shrinks(self):
        x = np.random.default_rng(0).normal(size=(16, 20000))
        length = np.linalg.norm(x, axis=1).mean()
        assert np.linalg.norm(aggregate(x, "karcher").value) == pytest.approx(length)
        assert np.linalg.norm(aggregate(x).value) == pytest.approx(length / 4, rel=0.02)

    def test_order_and_close_models(self):
        rng = np.random.default_rng(1)
        base = rng.normal(size=3000)
        deltas = rng.normal(size=(4, 3000))
        value = aggregate(base + deltas, "karcher").value
        np.testing.assert_allclose(aggregate((base + deltas)[::-1], "karcher").value, value, atol=1e-9)
        # Models 1e-7 apart: the coefficients still tell them from each other.
        weights = aggregate(base + 1e-7 * deltas, "karcher", [1, 2, 3, 4]).weights
        np.testing.assert_allclose(weights, [0.1, 0.2, 0.3, 0.4], atol=1e-6)

    @pytest.mark.parametrize(
        ("x", "told"),
        [
            ([[1.0, 0], [-1, 0]], "they cancel out"),
            ([[1.0, 0], [-0.5, 0.8660254037844386], [-0.5, -0.8660254037844386]], "they cancel out"),
            ([[1.0, 0], [1, 0], [1, 0], [-2, 0]], "one is opposite to their mean"),
            ([[1.0, 0], [0, 0]], "contributor 1 is a zero vector, which has no direction"),
        ],
    )
    def test_no_mean_is_an_error(self, x, told):
        with pytest.raises(UndefinedError, match=told):
            aggregate(np.array(x), "karcher")

    def test_a_saddle_is_no_mean(self):
        angles = np.radians([0, 100, 200, 270, 315])
        x = np.column_stack([np.cos(angles), np.sin(angles)])
        with pytest.raises(UndefinedError, match="too far apart"):
            aggregate(x, "karcher")

    def test_parameters(self):
        with pytest.raises(RuleError, match="tolerance must be a positive"):
            rules.Karcher(tolerance=0)
        with pytest.raises(UndefinedError, match="2 steps do not settle"):
            rules.Karcher(iterations=2)(list(np.random.default_rng(0).normal(size=(5, 9))), [1, 2, 3, 4, 5])


class TestKarcherOfModelsThatAgree:
    """The mean angle may be rounding itself, and no share of it is ever reached."""

    @pytest.mark.parametrize("n", [2, 7, 40])
    def test_identical(self, n):
        for seed in range(20):
            x = np.random.default_rng(seed).normal(size=3)
            np.testing.assert_allclose(aggregate([x] * n, "karcher").value, x, rtol=1e-13)
        np.testing.assert_allclose(aggregate([np.array([0.1, 0.3])] * n, "karcher").value, [0.1, 0.3], rtol=1e-13)

    @pytest.mark.parametrize("noise", [1e-7, 1e-12, 1e-15])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_nearly_identical(self, noise, dtype):
        for seed in range(10):
            rng = np.random.default_rng(seed)
            base = rng.normal(size=100)
            xs = [(base * (1 + noise * rng.normal(size=100))).astype(dtype) for _ in range(5)]
            np.testing.assert_allclose(aggregate(xs, "karcher").value, np.mean(xs, axis=0), rtol=3 * noise + 2e-7)
