"""The generator's gradients against differences, Adam against its formula, class shares and priors."""

import numpy as np
import pytest

from pluribus.core.errors import RuleError
from pluribus.federated.distillation import Generator, class_prior, class_shares, diversity
from pluribus.federated.distillation.generator import AdamMemory


def differences(function, at, step=1e-6):
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        for sign in (1, -1):
            moved = at.copy()
            moved[place] += sign * step
            found[place] += sign * function(moved) / (2 * step)
    return found


def test_gradients():
    made, rng = Generator(3, 4, 2, 5), np.random.default_rng(0)
    params = made.init(rng)
    z, y = made.draw(rng, np.array([0.5, 0.5]), 6)
    slope = rng.normal(size=(6, 5))
    found = made.pull(params, z, y, slope)
    for name in params:
        wanted = differences(
            lambda v, name=name: float((made.make({**params, name: v}, z, y) * slope).sum()), params[name]
        )
        np.testing.assert_allclose(found[name], wanted, atol=1e-7)


def test_diversity_written_out():
    rng = np.random.default_rng(1)
    z, made = rng.normal(size=(4, 2)), rng.normal(size=(4, 3))
    value, slope = diversity(z, made)
    pairs = [((z[i] - z[j]) ** 2).mean() * np.abs(made[i] - made[j]).mean() for i in range(4) for j in range(4)]
    assert value == pytest.approx(np.exp(-np.mean(pairs)))
    np.testing.assert_allclose(slope, differences(lambda v: diversity(z, v)[0], made), atol=1e-7)


def test_adam_written_out():
    params, rng = {"w": np.array([1.0, -2.0])}, np.random.default_rng(2)
    memory, m, v, w = AdamMemory.fresh(params), 0.0, 0.0, params["w"]
    for t in range(1, 5):
        g = rng.normal(size=2)
        params, memory = memory.step(params, {"w": g}, 0.1)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(params["w"], w, rtol=1e-12)


def test_classes():
    counts = np.array([[3, 0, 5], [1, 0, 5]])
    np.testing.assert_allclose(class_shares(counts), [[0.75, 0.5, 0.5], [0.25, 0.5, 0.5]])
    np.testing.assert_allclose(class_prior(counts), np.array([4, 0, 10]) / 14)
    for nothing in (np.zeros((2, 3)), np.array([[3, -1]]), np.array([[1.0, np.nan]])):
        with pytest.raises(RuleError, match="label counts"):
            class_prior(nothing)
    same = np.outer([2, 6], [1, 2, 3])  # like distributions: shares are those of the sizes
    np.testing.assert_allclose(class_shares(same), np.outer([0.25, 0.75], np.ones(3)))
