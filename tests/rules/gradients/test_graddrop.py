"""GradDrop against a direct computation, and its lots, which know nothing of tiles."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core import kernels
from pluribus.core.errors import NonFiniteError, RuleError
from pluribus.rules.gradients.graddrop import lots


def directly(x, u, leak=0.0):
    """Lines 10 to 15 of the paper's algorithm 1."""
    result = np.zeros(x.shape[1])
    for k in range(x.shape[1]):
        size = np.abs(x[:, k]).sum()
        p = 0.5 * (1 + x[:, k].sum() / size) if size else 0.5
        for value in x[:, k]:
            kept = (p > u[k] and value > 0) or (p <= u[k] and value < 0)
            result[k] += value if kept else leak * value
    return result


@pytest.mark.parametrize("leak", [0.0, 0.3, 1.0])
def test_is_the_published_algorithm(rng, leak):
    x = rng.normal(size=(5, 200))
    x[:, 7] = 0.0
    x[:, 8] = np.abs(x[:, 8])
    found = aggregate(list(x), "graddrop", seed=5, leak=leak).value
    np.testing.assert_allclose(found, directly(x, lots(5, 0, 200), leak), atol=1e-12)
    assert found[8] == pytest.approx(x[:, 8].sum()), "without a conflict all of it is kept"


def test_is_a_sum_unless_told_otherwise():
    x = [np.array([1.0, -2.0])] * 5
    assert aggregate(x, "graddrop").value.tolist() == [5, -10]
    assert aggregate(x, "graddrop", mean=True).value.tolist() == [1, -2]


def test_a_weight_of_two_is_two_copies_in_the_mean(rng):
    x = rng.normal(size=(3, 50))
    rule = rules.GradDrop(seed=1, leak=0.2, mean=True)
    np.testing.assert_allclose(rule(list(x), [1, 2, 1]).value, rule(list(x[[0, 1, 1, 2]])).value, atol=1e-12)


class TestLots:
    def test_do_not_depend_on_where_they_are_asked(self):
        whole = lots(3, 0, 1000)
        for first, count in [(0, 1), (1, 5), (4, 4), (7, 900), (999, 1), (500, 0)]:
            np.testing.assert_array_equal(lots(3, first, count), whole[first : first + count])

    def test_are_uniform_and_follow_the_seed(self):
        u = lots(0, 10**15, 100_000)
        assert ((u >= 0) & (u < 1)).all()
        np.testing.assert_allclose([u.mean(), u.var()], [1 / 2, 1 / 12], atol=3e-3)
        others = [lots(seed, 10**15, 100_000) for seed in (1, 2, 1 << 100)]
        assert all(abs(np.corrcoef(u, other)[0, 1]) < 0.02 for other in others)

    @pytest.mark.parametrize("size", [16, 64, 1 << 14])
    def test_the_result_does_not_depend_on_tiles_or_threads(self, rng, monkeypatch, size):
        x = rng.normal(size=(3, 1000)).astype(np.float32)
        rule = rules.GradDrop(seed=9)
        expected = rule(list(x)).value
        monkeypatch.setattr(kernels, "tile_size", lambda n, itemsize: size)
        for engine in (None, "threads"):
            assert rule(list(x), engine=engine).value.tobytes() == expected.tobytes()

    def test_a_tree_is_its_flat_vector(self, rng):
        x = rng.normal(size=(3, 60))
        trees = [{"a": row[:10].reshape(2, 5), "steps": np.array([3]), "b": row[10:]} for row in x]
        found, flat = rules.GradDrop()(trees).value, rules.GradDrop()(list(x)).value
        np.testing.assert_array_equal(np.concatenate([found["a"].ravel(), found["b"]]), flat)

    def test_a_tile_rule_without_a_place_refuses(self):
        with pytest.raises(RuleError, match="where its tile lies"):
            rules.GradDrop().tile_rule(np.ones(1))(None, [np.ones(2)], np.ones(2))


def test_one_sign_wins_as_often_as_its_share():
    x = [np.full(40_000, 3.0), np.full(40_000, -1.0)]
    found = aggregate(x, "graddrop").value
    assert set(np.unique(found)) == {3.0, -1.0}
    assert (found > 0).mean() == pytest.approx(0.75, abs=0.01)
    np.testing.assert_allclose(aggregate(x, "graddrop").weights, [0.75, 0.25])


def test_after_pre_rules(rng):
    x = rng.normal(size=(4, 30)) * 5
    clipped = x * np.minimum(1, 2.0 / np.linalg.norm(x, axis=1))[:, None]
    found = (rules.Clip(2.0) >> rules.GradDrop(seed=2))(list(x)).value
    np.testing.assert_allclose(found, rules.GradDrop(seed=2)(list(clipped)).value, atol=1e-12)


def test_bad_values_are_found_and_huge_ones_are_no_reason(rng):
    x = rng.normal(size=(3, 20))
    bad = x.copy()
    bad[1, 4] = np.nan
    with pytest.raises(NonFiniteError, match="contributor 1"):
        rules.GradDrop()(list(bad))
    np.testing.assert_array_equal(
        rules.GradDrop()(list(bad), nonfinite="drop").value, rules.GradDrop()(list(x[[0, 2]])).value
    )
    assert rules.GradDrop()([np.array([1.0])]).value.tolist() == [1]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: rules.GradDrop(seed=-1), "seed must be a whole number"),
        (lambda: rules.GradDrop(seed=1 << 128), "below 2\\^128"),
        (lambda: rules.GradDrop(leak=1.5), "leak must lie in"),
        (lambda: rules.GradDrop(leak="much"), "leak must be"),
    ],
)
def test_errors_teach(make, told):
    with pytest.raises(RuleError, match=told):
        make()
