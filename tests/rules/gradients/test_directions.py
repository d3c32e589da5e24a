"""Nash-MTL, Aligned-MTL, IMTL-G and ConFIG against their definitions in R^d and torchjd's results."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import aggregate, rules
from pluribus.core.errors import RuleError

PREFERENCE = [5, 3, 2]
ALL = [rules.NashMTL(), rules.AlignedMTL(), rules.IMTLG(), rules.ConFIG(), rules.ConFIG(mean=True)]


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_finite_and_scaled_with_the_input(gradients, rule):
    found = rule(list(gradients)).value
    assert np.isfinite(found).all()
    for factor in (1e-3, 1e5):
        again = rule(list(factor * gradients)).value
        size = max(np.abs(found).max(), np.abs(gradients).max())
        np.testing.assert_allclose(again, factor * found, atol=1e-6 * factor * size)


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_opposite_and_zero_and_one(rule, rng):
    g = rng.normal(size=6)
    times = 3 if rule == rules.ConFIG() else 1
    np.testing.assert_allclose(rule([g]).value, g)
    np.testing.assert_allclose(rule([g] * 3).value, times * g)
    np.testing.assert_allclose(rule([g, -g]).value, 0, atol=1e-9)
    assert rule([np.zeros(6)] * 3).value.tolist() == [0] * 6


@pytest.mark.parametrize("rule", [rules.NashMTL(), rules.IMTLG(), rules.ConFIG()], ids=str)
def test_a_zero_gradient_has_no_say(rule, rng):
    x = rng.normal(size=(3, 6))
    np.testing.assert_allclose(rule([*x, np.zeros(6)]).value, rule(list(x)).value, atol=1e-9)


@pytest.mark.parametrize("rule", [rules.NashMTL(), rules.AlignedMTL(), rules.ConFIG()], ids=str)
def test_preferences_matter(rule, rng):
    """LibMTL's Aligned-MTL ignores them (its issue 57)."""
    x = rng.normal(size=(3, 8))
    plain, preferred = rule(list(x)).value, rule(list(x), [10, 1, 1]).value
    cosines = [x[0] @ v / np.linalg.norm(v) for v in (plain, preferred)]
    assert cosines[1] > cosines[0] + 0.05


class TestNashMTL:
    @pytest.mark.parametrize("n", [10, 20, 50])
    @pytest.mark.parametrize("opposed", [0, 5], ids=["alike", "a fifth opposed"])
    def test_the_bargain_is_reached(self, rng, n, opposed):
        """``a_i <x_i, d> = 1`` for all. A fifth opposed: torchjd 0.18 stops where that is off by 5, 16 and 38."""
        shared = rng.normal(size=2000)
        x = shared * np.where(np.arange(n) < n - n * opposed // 25, 1, -1)[:, None]
        x = x + rng.uniform(0.5, 1.5, size=(n, 1)) * rng.normal(size=(n, 2000))
        result = rules.NashMTL(scale="published")(list(x))
        np.testing.assert_allclose(result.weights * (x @ result.value), 1, rtol=1e-9)
        assert result.value @ result.value == pytest.approx(n)

    def test_solves_the_bargain(self, rng):
        x, w = rng.normal(size=(5, 9)), rng.uniform(0.5, 2, size=5)
        a = rules.NashMTL(scale="published")(list(x), w).weights
        np.testing.assert_allclose((x @ x.T @ a) * a, 5 * w / w.sum(), rtol=1e-9)

    def test_maximises_the_product_of_gains(self, rng):
        x = rng.normal(size=(3, 6)) + 0.3
        d = rules.NashMTL()(list(x)).value

        def gain(v):
            return np.log(x @ v / np.linalg.norm(v)).sum()

        for _ in range(50):
            assert gain(d) >= gain(d + 0.05 * np.linalg.norm(d) * rng.normal(size=6)) - 1e-12

    @pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
    def test_the_size_of_gradients_is_no_size_of_weights(self, rng, size):
        """LibMTL issue 39, nash-mtl issues 7 and 13: coefficients of 1e-4 or 732."""
        x = size * rng.normal(size=(4, 20))
        found = rules.NashMTL()(list(x))
        assert found.weights.sum() == pytest.approx(1)
        assert np.linalg.norm(rules.NashMTL(scale="published")(list(x)).value) == pytest.approx(2)
        mean = np.linalg.norm(x.mean(axis=0))
        assert np.linalg.norm(rules.NashMTL(scale="mean")(list(x)).value) == pytest.approx(mean)
        assert np.linalg.norm(rules.NashMTL(max_norm=0.1 * mean)(list(x)).value) == pytest.approx(0.1 * mean)
        np.testing.assert_allclose(rules.NashMTL(max_norm=1e9)(list(x)).value, found.value)

    def test_lengths_do_not_help(self, rng):
        x, c = rng.normal(size=(3, 7)), np.array([1.0, 1e-5, 40.0])
        published = rules.NashMTL(scale="published")
        np.testing.assert_allclose(published(list(x * c[:, None])).value, published(list(x)).value, rtol=1e-8)

    def test_torchjd(self, frozen):
        """max_norm=0, 200 rounds of ECOS: 24 random independent sets agreed to 2e-7."""
        theirs = [0.601070533798828, 1.47512690063293, 0.261435197876909, 0.627986064664147]
        np.testing.assert_allclose(aggregate(frozen, "nash_mtl", scale="published").value, theirs, rtol=1e-6)

    def test_where_nothing_helps_all_it_is_about_zero(self, rng):
        """torchjd's coefficients explode there (a result 50 000 times ours)."""
        x = rng.normal(size=(3, 5))
        x = np.vstack([x, -(x.sum(axis=0))])
        for scale in ("sum", "mean"):
            found = rules.NashMTL(scale=scale)(list(x))
            assert np.linalg.norm(found.value) <= 1e-5
            assert np.abs(found.weights).max() < 1.1

    @pytest.mark.parametrize(
        ("wrong", "told"), [({"scale": "big"}, "scale must be one of 'sum'"), ({"max_norm": 0}, "max_norm must be")]
    )
    def test_errors_teach(self, wrong, told):
        with pytest.raises(RuleError, match=told):
            rules.NashMTL(**wrong)


class TestAlignedMTL:
    @pytest.mark.parametrize(("scale", "of"), [("min", np.min), ("rmse", lambda s: np.sqrt((s**2).mean()))])
    def test_makes_components_equally_long(self, rng, scale, of):
        for n, d in [(3, 8), (5, 3)]:
            x, w = rng.normal(size=(n, d)), rng.uniform(0.5, 2, size=n)
            u, s, v = np.linalg.svd(x, full_matrices=False)
            expected = w / w.sum() @ (of(s) * u @ v)
            np.testing.assert_allclose(aggregate(list(x), "aligned_mtl", w, scale=scale).value, expected, atol=1e-9)

    def test_torchjd(self, frozen):
        for scale, weights, theirs in [
            ("min", None, [0.332409530200217, 0.731387706171995, 0.122126014969312, 0.364293570839274]),
            ("min", PREFERENCE, [0.447461180455415, 0.570955657598134, 0.350888609431388, 0.504718500214974]),
            ("median", None, [0.578582749140587, 1.27303302486465, 0.212569132539519, 0.634079220242197]),
            ("median", PREFERENCE, [0.778838439937777, 0.993789479536061, 0.610746918611655, 0.878498932388019]),
            ("rmse", None, [0.701090631524376, 1.54258233360649, 0.257578069163116, 0.768337807541627]),
            ("rmse", PREFERENCE, [0.943748036944595, 1.20421235310789, 0.740065173922025, 1.06451043038573]),
        ]:
            found = aggregate(frozen, "aligned_mtl", weights, scale=scale).value
            np.testing.assert_allclose(found, theirs, atol=1e-12)

    def test_the_median_of_two_is_the_lower(self, rng):
        x = rng.normal(size=(2, 5))
        low = aggregate(list(x), "aligned_mtl", scale="min").value
        np.testing.assert_allclose(aggregate(list(x), "aligned_mtl", scale="median").value, low)

    def test_copies_are_one_component(self, rng):
        x = rng.normal(size=(2, 6))
        found = aggregate([x[0], x[0], x[1]], "aligned_mtl")
        assert np.linalg.norm(found.value) <= np.linalg.norm(x, axis=1).max()
        assert found.weights[0] == pytest.approx(found.weights[1])

    def test_unknown_scale(self):
        with pytest.raises(RuleError, match="'min', 'median', 'rmse', not 'max'"):
            rules.AlignedMTL("max")


class TestIMTLG:
    def test_projections_are_equal(self, rng):
        for w in (None, [1, 5, 2, 1]):
            x = rng.normal(size=(4, 9)) * np.array([[1.0], [1e-3], [5.0], [1.0]])
            found = aggregate(list(x), "imtl_g", w)
            along = x @ found.value / np.linalg.norm(x, axis=1)
            np.testing.assert_allclose(along, along[0], rtol=1e-6)
            assert found.weights.sum() == pytest.approx(1)

    def test_is_the_closed_form_of_the_paper(self, rng):
        x = rng.normal(size=(4, 7))
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        d, u = x[0] - x[1:], unit[0] - unit[1:]
        rest = x[0] @ u.T @ np.linalg.inv(d @ u.T)
        np.testing.assert_allclose(aggregate(list(x), "imtl_g").weights, [1 - rest.sum(), *rest], atol=1e-9)

    def test_torchjd(self, frozen):
        theirs = [0.357560337357719, 0.771190887870975, 0.419674074394804, 0.326976174877212]
        np.testing.assert_allclose(aggregate(frozen, "imtl_g").value, theirs, atol=1e-12)


class TestConFIG:
    def directly(self, x, w):
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        u = np.linalg.pinv(unit, rcond=1e-6) @ w
        u /= np.linalg.norm(u)
        return (x @ u).sum() * u

    def test_is_the_published_direction_and_length(self, rng):
        for n, d in [(3, 8), (5, 3), (2, 2)]:
            x, w = rng.normal(size=(n, d)) * rng.uniform(0.1, 10, size=(n, 1)), rng.uniform(0.5, 2, size=n)
            found = aggregate(list(x), "config", w).value
            np.testing.assert_allclose(found, self.directly(x, w), rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(aggregate(list(x), "config", w, mean=True).value * n, found)

    def test_cosines_are_in_the_ratio_of_weights(self, rng):
        x, w = rng.normal(size=(3, 9)), np.array([1.0, 2.0, 4.0])
        found = aggregate(list(x), "config", w).value
        cosines = x @ found / np.linalg.norm(x, axis=1)
        np.testing.assert_allclose(cosines / cosines[0], w)

    def test_torchjd(self, frozen):
        """It takes the whole matrix there; the Gram matrix is enough."""
        theirs = [1.03412383980953, 2.23041204201961, 1.21376707631718, 0.945669365872563]
        np.testing.assert_allclose(aggregate(frozen, "config").value, theirs, atol=1e-12)
        preferred = [1.02451773524695, 1.7157932469069, 1.45072928910614, 0.948071690309347]
        np.testing.assert_allclose(aggregate(frozen, "config", PREFERENCE).value, preferred, atol=1e-12)
