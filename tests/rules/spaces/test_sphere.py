"""The mean on the sphere: known answers, the least sum of squared angles, and what is no point."""

from __future__ import annotations

import numpy as np
import pytest
from frechet_checks import assert_least

from pluribus import aggregate, rules
from pluribus.core.errors import ContributionError, NonFiniteError, UndefinedError


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("spread", [0.01, 0.5, 1.2])
@pytest.mark.parametrize("d", [2, 3, 20])
def test_it_is_the_least(rng, d, spread):
    x = unit(np.eye(d)[0] + spread * rng.normal(size=(6, d)) / np.sqrt(d))
    w = rng.random(6)
    found = aggregate(x, "sphere_mean", w).value
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-15)
    near = [unit(found + size * rng.normal(size=(200, d))) for size in (1e-5, 1e-3, 0.1, 3)]
    assert_least(rules.SphereMean(), x, w, found, np.concatenate(near))


def test_a_wide_cloud_gets_the_best_of_several(rng):
    """On a circle there may be a least sum near each point; all of the circle is tried beside it."""
    turns = np.linspace(0, 2 * np.pi, 7200)
    everywhere = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    for _ in range(40):
        angles, w = rng.uniform(0, 2 * np.pi, 5), rng.random(5)
        x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        found = aggregate(x, "sphere_mean", w).value
        assert_least(rules.SphereMean(), x, w, found, everywhere, slack=1e-6)


def test_on_a_circle_it_is_the_mean_angle(rng):
    angles, w = rng.uniform(-1, 1, size=7), rng.random(7)
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    expected = angles @ w / w.sum()
    found = aggregate(x, "sphere_mean", w).value
    np.testing.assert_allclose(np.arctan2(found[1], found[0]), expected, atol=1e-14)


def test_two_points_and_their_path(rng):
    a, b = unit(rng.normal(size=(2, 9)))
    angle = np.arccos(a @ b)
    for t in (0.1, 0.5, 0.9):
        slerp = (np.sin((1 - t) * angle) * a + np.sin(t * angle) * b) / np.sin(angle)
        np.testing.assert_allclose(aggregate([a, b], "sphere_mean", [1 - t, t]).value, slerp, atol=1e-13)


def test_turning_all_turns_the_mean(rng):
    x = unit(np.eye(5)[0] + 0.4 * rng.normal(size=(6, 5)))
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    found = aggregate(x, "sphere_mean").value
    np.testing.assert_allclose(aggregate(x @ turn, "sphere_mean").value, found @ turn, atol=1e-13)


def test_rows_of_tensors_are_points_each_for_itself(rng):
    rows = [{"w": unit(1 + 0.3 * rng.normal(size=(50, 4, 8))).astype(np.float32), "n": np.array(k)} for k in range(5)]
    found = aggregate(rows, "sphere_mean").value
    alone = aggregate([row["w"][7, 2] for row in rows], "sphere_mean").value
    assert found["w"][7, 2].tobytes() == alone.tobytes(), "no point depends on another"
    assert found["w"].dtype == np.float32
    assert found["n"] == 2, "counters are averaged as ever"


def test_who_sent_what_is_no_point(rng):
    rows = [{"a": unit(rng.normal(size=(3, 4))) + 0, "b": unit(rng.normal(size=(2, 3, 4)))} for _ in range(4)]
    rows[2]["b"][1, 2] *= 1.01
    with pytest.raises(ContributionError, match=r"contributor 2: tensor 'b' at \[1, 2\] has norm 1\.01; .*divide"):
        aggregate(rows, "sphere_mean")
    rows[2]["b"][1, 2] = np.nan
    with pytest.raises(NonFiniteError, match=r"contributor 2: NaN or Inf in tensor 'b'"):
        aggregate(rows, "sphere_mean")
    assert aggregate(rows, "sphere_mean", nonfinite="drop").left_out.keys() == {"contributor 2"}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rounding_of_narrow_floats_is_forgiven(rng, dtype):
    x = unit(1 + 0.2 * rng.normal(size=(5, 300))).astype(dtype)
    assert np.abs(np.linalg.norm(x.astype(float), axis=1) - 1).max() > 0
    aggregate(x, "sphere_mean")


def test_antipodes_have_no_mean():
    x = [np.array([1.0, 0.0]), np.array([-1.0, 0.0])]
    with pytest.raises(UndefinedError, match=r"the array: .*balance each other"):
        aggregate(x, "sphere_mean")
    assert aggregate(x, "sphere_mean", [2, 1]).value.tolist() != [0, 0]


def test_dispersion_is_in_radians(rng):
    x = unit(np.eye(4)[0] + 0.3 * rng.normal(size=(6, 4)))
    found = aggregate(x, "sphere_mean")
    angles = np.arccos(x @ found.value)
    np.testing.assert_allclose(found.distances, angles, rtol=1e-9)
    assert found.dispersion == pytest.approx(np.sqrt((angles**2).mean()))
    without = [aggregate(np.delete(x, k, axis=0), "sphere_mean").value for k in range(6)]
    np.testing.assert_allclose(found.influence(), np.arccos(np.minimum(without @ found.value, 1)), atol=1e-7)
    np.testing.assert_allclose(found.weights, 1 / 6)


def test_one_contributor(rng):
    x = unit(rng.normal(size=(3, 5)))
    np.testing.assert_allclose(aggregate([x], "sphere_mean").value, x, atol=1e-15)
