"""Small solvers against direct minimisation, scipy and optimality conditions, on easy and on degenerate input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize, nnls

from pluribus.core import solvers
from pluribus.core.errors import RuleError

KINDS = ["plain", "copies", "opposed", "lengths", "near", "zero"]


def vectors(kind, n, d, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    half = n // 2
    if kind == "copies":
        x[n - half :] = x[:half]
    if kind == "opposed":
        x[n - half :] = -x[:half]
    if kind == "lengths":
        x *= 10 ** rng.uniform(-6, 0, size=(n, 1))
    if kind == "near":
        x = rng.normal(size=d) + 1e-3 * x
    if kind == "zero":
        x[0] = 0.0
    return x


SETS = [(kind, n, d, seed) for kind in KINDS for seed, (n, d) in enumerate([(1, 3), (2, 2), (5, 2), (6, 1), (7, 20)])]


class TestSimplex:
    def test_is_the_nearest_point(self, rng):
        for _ in range(20):
            v, total = rng.normal(size=5) * 3, rng.uniform(0.5, 4)
            found = solvers.project_simplex(v, total)
            assert found.sum() == pytest.approx(total)
            assert (found >= 0).all()
            # Optimal: v - p is one constant where p > 0, and no more than it elsewhere.
            gap = v - found
            level = gap[found > 0].mean()
            np.testing.assert_allclose(gap[found > 0], level, atol=1e-12)
            assert (gap[found == 0] <= level + 1e-12).all()

    def test_rows_and_points_of_it(self, rng):
        v = rng.normal(size=(3, 4, 6))
        rows = solvers.project_simplex(v)
        np.testing.assert_array_equal(rows[1, 2], solvers.project_simplex(v[1, 2]))
        np.testing.assert_allclose(solvers.project_simplex(rows), rows, atol=1e-15)
        assert solvers.project_simplex([5.0]).tolist() == [1.0]
        assert solvers.project_simplex([1e17, 1e17, 0.0]).tolist() == [0.5, 0.5, 0.0]

    @pytest.mark.parametrize("bad", [np.nan, [], [1.0, np.inf], 3.0])
    def test_bad_input(self, bad):
        with pytest.raises(RuleError, match="finite numbers"):
            solvers.project_simplex(bad)
        with pytest.raises(RuleError, match="total must be"):
            solvers.project_simplex([1.0, 2.0], total=0)


class TestMinNormPoint:
    @pytest.mark.parametrize(("kind", "n", "d", "seed"), SETS)
    def test_optimality(self, kind, n, d, seed):
        x = vectors(kind, n, d, seed)
        w = solvers.min_norm_point(x @ x.T)
        assert w.sum() == pytest.approx(1)
        assert (w >= 0).all()
        z, lengths = w @ x, np.linalg.norm(x, axis=1)
        assert (x @ z - z @ z >= -1e-13 * lengths * (w @ lengths)).all()

    def test_two_vectors_have_a_closed_form(self, rng):
        for _ in range(30):
            a, b = rng.normal(size=(2, 3)) * 10 ** rng.uniform(-3, 3, size=(2, 1))
            share = np.clip((b - a) @ b / ((a - b) @ (a - b)), 0, 1)
            found = solvers.min_norm_point(np.array([[a @ a, a @ b], [a @ b, b @ b]]))
            np.testing.assert_allclose(found, [share, 1 - share], atol=1e-9)

    def test_never_longer_than_a_direct_minimiser(self, rng):
        for n, d in [(4, 6), (10, 30), (12, 4)]:
            x = rng.normal(size=(n, d)) + 0.3
            g = x @ x.T
            direct = minimize(
                lambda w, g=g: w @ g @ w, np.full(n, 1 / n), jac=lambda w, g=g: 2 * g @ w, method="SLSQP",
                bounds=[(0, 1)] * n, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-14},
            )  # fmt: skip
            w = solvers.min_norm_point(g)
            assert w @ g @ w <= direct.fun + 1e-9
            assert direct.fun - w @ g @ w <= 1e-4 * direct.fun + 1e-6

    def test_many(self, rng):
        x = rng.normal(size=(300, 40)) + 0.5
        w = solvers.min_norm_point(x @ x.T)
        assert (x @ (w @ x) >= (w @ x) @ (w @ x) - 1e-9).all()


class TestNonNegativeQP:
    @pytest.mark.parametrize(("kind", "n", "d", "seed"), SETS)
    def test_optimality(self, kind, n, d, seed):
        x = vectors(kind, n, d, seed)
        lengths = np.linalg.norm(x, axis=1)
        unit = x / np.where(lengths > 0, lengths, 1)[:, None]
        q = unit @ unit.T
        z = solvers.nonnegative_qp(q, q)  # projections of all unit vectors on the dual cone
        assert (z >= 0).all()
        slope = z @ q + q
        assert slope.min() >= -1e-9
        assert np.abs(z * slope).max() <= 1e-9 * (1 + z.max())

    def test_is_nnls(self, rng):
        for n, d in [(3, 5), (8, 8), (6, 3)]:
            a, b = rng.normal(size=(d, n)), rng.normal(size=(4, d))
            found = solvers.nonnegative_qp(a.T @ a, -(b @ a))
            for z, right in zip(found, b, strict=True):
                assert np.linalg.norm(a @ z - right) == pytest.approx(nnls(a, right)[1], rel=1e-9)
            np.testing.assert_allclose(solvers.nonnegative_qp(a.T @ a, -(b[0] @ a)), found[0], atol=1e-9)

    def test_chunks_are_the_whole(self, rng, monkeypatch):
        x = rng.normal(size=(9, 4))
        q = x @ x.T
        whole = solvers.nonnegative_qp(q, q)
        monkeypatch.setattr(solvers, "_ROOM", 2 * 81)
        np.testing.assert_allclose(solvers.nonnegative_qp(q, q) @ x, whole @ x, atol=1e-12)

    def test_one_by_one_says_the_same(self, rng):
        """What rows fall back to when block pivoting cycles."""
        for n, d in [(5, 9), (9, 4), (6, 1)]:
            x = rng.normal(size=(n, d))
            q = x @ x.T / d
            regular = q + solvers.RIDGE * np.eye(n)
            blocks = solvers._pivot(regular, q, q < 0)
            for row, block in zip(q, blocks, strict=True):
                z = solvers._one_by_one(regular, row)
                assert (z >= 0).all()
                np.testing.assert_allclose(z @ x, block @ x, atol=1e-6)

    def test_bad_input(self):
        with pytest.raises(RuleError, match="no minimum"):
            solvers.nonnegative_qp(np.zeros((2, 2)), [1.0, -1.0])
        assert solvers.nonnegative_qp(np.zeros((2, 2)), [1.0, 0.0]).tolist() == [0, 0]
        with pytest.raises(RuleError, match=r"of shape \(2,\)"):
            solvers.nonnegative_qp(np.eye(2), [1.0, 2.0, 3.0])
        for matrix in (np.ones((2, 3)), np.full((2, 2), np.nan), np.zeros((0, 0))):
            with pytest.raises(RuleError, match="finite matrix"):
                solvers.nonnegative_qp(matrix, [1.0, 1.0])


class TestReciprocal:
    @pytest.mark.parametrize("weights", [None, [1.0, 2.0, 5.0, 0.1]])
    @pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
    def test_solves_the_equation(self, rng, weights, scale):
        x = rng.normal(size=(4, 9)) * scale * np.array([[1.0], [1e-3], [10.0], [1.0]])
        g = x @ x.T
        a = solvers.reciprocal(g, weights)
        assert (a > 0).all()
        np.testing.assert_allclose((g @ a) * a, np.ones(4) if weights is None else weights, rtol=1e-9)

    def test_more_vectors_than_dimensions(self, rng):
        x = np.abs(rng.normal(size=(9, 3)))
        g = x @ x.T
        a = solvers.reciprocal(g)
        np.testing.assert_allclose((g @ a) * a, 1.0, rtol=1e-6)

    def test_copies_share(self, rng):
        x = rng.normal(size=(3, 5))
        one, copies = x @ x.T, x[[0, 0, 1, 2]] @ x[[0, 0, 1, 2]].T
        a, b = solvers.reciprocal(one, [2.0, 1.0, 1.0]), solvers.reciprocal(copies)
        np.testing.assert_allclose([b[0] + b[1], b[2], b[3]], a, rtol=1e-8)

    def test_follows_a_combination_that_is_zero(self):
        x = np.array([[1.0, 0.0], [-1.0, 1.0], [0.0, -2.0]])
        a = solvers.reciprocal(x @ x.T)
        np.testing.assert_allclose(a / a.sum(), np.array([1.0, 1.0, 0.5]) / 2.5, atol=1e-5)

    def test_bad_input(self):
        with pytest.raises(RuleError, match="leave it out"):
            solvers.reciprocal(np.diag([1.0, 0.0]))
        with pytest.raises(RuleError, match="2 positive numbers"):
            solvers.reciprocal(np.eye(2), [1.0, 0.0])
