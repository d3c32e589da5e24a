"""Residual-based reweighting against loops over coordinates, the authors' code, and its own limits."""

from __future__ import annotations

import numpy as np
import pytest
from robust_cases import SMALL, cloud

from pluribus import aggregate, rules
from pluribus.core import kernels
from pluribus.core.errors import NonFiniteError, RuleError
from pluribus.rules.robust.residual_reweighting import line_weights, repeated_median_line


def line_directly(y):
    n = len(y)
    inner = [np.median([(y[j] - y[i]) / (j - i) for j in range(n) if j != i]) for i in range(n)]
    slope = np.median(inner)
    return slope, np.median(y) - slope * (n - 1) / 2


def rule_directly(x, w, width=2.0, threshold=0.1):
    n, d = x.shape
    trust, mended = np.zeros(n), x.copy()
    for k in range(d):
        order = np.argsort(x[:, k], kind="stable")
        slope, start = line_directly(x[order, k])
        ranks = np.arange(n)
        design = np.column_stack([np.ones(n), ranks])
        leverage = np.diag(design @ np.linalg.inv(design.T @ design) @ design.T)
        residual = x[order, k] - (start + slope * ranks)
        tau = 1.4826 * (1 + 5 / (n - 1)) * np.median(np.sort(np.abs(residual))[1:])
        e = residual / tau
        bound = width * np.sqrt(2 / n)
        with np.errstate(divide="ignore", invalid="ignore"):
            c = np.sqrt(1 - leverage) / e * np.clip(e / np.sqrt(1 - leverage), -bound, bound)
        c[e == 0] = 1
        trust[order] += c * c.std(ddof=1)
        low = order[c < threshold]
        mended[low, k] = (start + slope * ranks)[c < threshold]
    a = w * (trust / trust.max()) ** 2
    return a @ mended / a.sum(), a / a.sum()


@pytest.mark.parametrize(("width", "threshold"), [(2.0, 0.1), (1.0, 0.5)])
@pytest.mark.parametrize("n", [5, 6, 11])
def test_is_the_procedure_coordinate_by_coordinate(n, width, threshold):
    x, w = cloud(n, honest=n - 1, attackers=1, d=25)
    value, counted = rule_directly(x, w, width, threshold)
    found = rules.ResidualReweighting(width=width, threshold=threshold)(list(x), w)
    np.testing.assert_allclose(found.value, value, atol=1e-10)
    np.testing.assert_allclose(found.weights, counted, atol=1e-10)


def test_is_the_authors_code():
    """fushuhao6/Attack-Resistant-Federated-Learning, IRLS_aggregation_split_restricted(SMALL, 2, 0.1), on the CPU."""
    value = [
        *(-0.1619458794593811, 0.18515968322753906, 0.15754958987236023, -0.3753218650817871),
        *(0.14082898199558258, 0.41193705797195435, -0.18218375742435455, 0.9224622249603271),
    ]
    weights = [0.8334601521, 0.9721404314, 0.6954531670, 0.9343658686, 1.0, 0.3966034055]
    found = aggregate(SMALL, "residual_reweighting")
    np.testing.assert_allclose(found.value, value, atol=1e-6)
    np.testing.assert_allclose(found.weights / found.weights.max(), weights, atol=1e-6)


def test_the_line_is_the_repeated_median():
    rng = np.random.default_rng(0)
    for n in (2, 3, 7, 8):
        y = np.sort(rng.normal(size=(n, 40)), axis=0)
        slope, start = repeated_median_line(list(y))
        expected = np.array([line_directly(y[:, k]) for k in range(40)])
        np.testing.assert_allclose(np.column_stack([slope, start]), expected, atol=1e-12)


def test_nearly_half_may_be_off_the_line():
    y = np.arange(9.0)[:, None]
    y[6:] = [[1e6], [1e7], [1e9]]
    slope, start = repeated_median_line(list(y))
    np.testing.assert_allclose([slope, start], [[1.0], [0.0]], atol=1e-9)
    confidence, line = line_weights(y, 2.0)
    assert (confidence[6:] < 1e-3).all()
    np.testing.assert_allclose(line[:, 0], np.arange(9), atol=1e-8)


def test_agreement_is_not_nan():
    """The authors' code divides zero by zero where nobody stands out, and gives NaN."""
    np.testing.assert_allclose(aggregate([np.full(5, 0.1)] * 6, "residual_reweighting").value, 0.1)
    ramp = np.arange(6.0)[:, None] * np.ones(4) * 0.1  # all on the line
    found = aggregate(ramp, "residual_reweighting", [1, 1, 1, 1, 1, 5])
    np.testing.assert_allclose(found.value, [0.35] * 4)
    np.testing.assert_allclose(found.weights, [0.1] * 5 + [0.5])
    for few in (1, 2):
        np.testing.assert_allclose(aggregate(SMALL[:few], "residual_reweighting").value, SMALL[:few].mean(axis=0))


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_no_unit(scale):
    """A constant beside the scale of the residuals makes small values look alike to the authors' code."""
    x, _ = cloud(1)
    expected = aggregate(x, "residual_reweighting").value
    np.testing.assert_allclose(aggregate(x * scale, "residual_reweighting").value / scale, expected, rtol=1e-9)


def test_a_flipper_loses_its_weight():
    x, _ = cloud(2, attackers=2, honest=9, d=300, shift=0.0)
    x[:2] = -3 * x[2:4]
    weights = aggregate(x, "residual_reweighting").weights
    assert weights[:2].max() < 0.3 * weights[2:].min()


def test_tiles_and_threads_do_not_matter(monkeypatch):
    from pluribus.rules.robust import residual_reweighting

    x = np.random.default_rng(3).normal(size=(5, 9000)).astype(np.float32)
    expected = aggregate(x, "residual_reweighting").value
    monkeypatch.setattr(residual_reweighting, "_PIECE", 257)
    np.testing.assert_array_equal(aggregate(x, "residual_reweighting").value, expected)


@pytest.mark.skipif(kernels._compiled() is None, reason="numba is not installed")
@pytest.mark.parametrize("n", [3, 4, 7, 20, 33])
def test_compiled_has_the_same_bits(n):
    rng = np.random.default_rng(n)
    for x in (rng.normal(size=(n, 700)), np.round(rng.normal(size=(n, 130))), 1e305 * rng.normal(size=(n, 90))):
        x[0] *= -3
        ours, theirs = (line_weights(x, 2.0, kernel) for kernel in (kernels.plain, kernels._compiled()))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True))


def test_nan_is_named_or_dropped():
    x, _ = cloud(4)
    x[3, 4] = np.inf
    with pytest.raises(NonFiniteError, match="contributor 3"):
        aggregate(x, "residual_reweighting")
    found = rules.ResidualReweighting()(list(x), nonfinite="drop")
    np.testing.assert_array_equal(found.value, aggregate(np.delete(x, 3, axis=0), "residual_reweighting").value)


def test_influence_and_errors():
    x, _ = cloud(5, honest=5, attackers=1)
    found = aggregate(x, "residual_reweighting")
    directly = [
        np.linalg.norm(found.value - aggregate(np.delete(x, i, axis=0), "residual_reweighting").value) for i in range(6)
    ]
    np.testing.assert_allclose(found.influence(), directly, atol=1e-12)
    with pytest.raises(RuleError, match="threshold must be a positive number"):
        rules.ResidualReweighting(threshold=0)
    with pytest.raises(RuleError, match="put NNM"):
        rules.chain(rules.NNM(f=1), rules.ResidualReweighting())(list(x))
