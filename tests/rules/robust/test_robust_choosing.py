"""Robust rules that choose among contributors, against slow computations in R^d and references in the field."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from robust_cases import SMALL, attacks, cloud

from pluribus import aggregate, rules
from pluribus.core.errors import NonFiniteError, RuleError
from pluribus.rules.robust.mda import closest_subset, small_cover

CHOOSING = [
    rules.FABA(f=2),
    rules.CGE(f=2),
    rules.DnC(f=2),
    rules.MDA(f=2),
    rules.SMEA(f=2),
    rules.BulyanSelection(f=1),
    rules.Bulyan(f=1),
    rules.AFA(),
]


def weighted_mean(x, w, chosen):
    return w[chosen] @ x[chosen] / w[chosen].sum()


# --- RFA ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 3, 8])
def test_rfa_is_the_published_iteration(iterations):
    x, w = cloud(1)
    nu = 3.0
    z = w @ x / w.sum()
    for _ in range(iterations):
        b = w / np.maximum(nu, np.linalg.norm(x - z, axis=1))
        z = b @ x / b.sum()
    np.testing.assert_allclose(aggregate(x, "rfa", w, nu=nu, iterations=iterations).value, z, rtol=1e-12)


def test_rfa_ends_at_the_geometric_median():
    x, w = cloud(2)
    far = aggregate(x, "rfa", w, iterations=300).value
    np.testing.assert_allclose(far, aggregate(x, "geometric_median", w).value, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_rfa_leaves_attackers_the_share_that_it_says(steps):
    x = np.zeros((10, 3))
    x[:3] = [1e6, 0, 0]
    odds = (0.3 / 0.7) ** (steps + 1)
    value = rules.RFA(iterations=steps)(list(x)).value
    np.testing.assert_allclose(value, [1e6 * odds / (1 + odds), 0, 0], rtol=1e-9)


# --- FABA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [0, 1, 3])
def test_faba_takes_the_mean_anew(f):
    for seed in range(10):
        x, w = cloud(seed, attackers=3, shift=0.8)
        left = list(range(len(x)))
        for _ in range(f):
            mean = weighted_mean(x, w, left)
            left.remove(max(left, key=lambda i: (np.linalg.norm(x[i] - mean), i)))
        np.testing.assert_allclose(aggregate(x, "faba", w, f=f).value, weighted_mean(x, w, left), rtol=1e-12)


def test_faba_does_not_measure_from_the_first_mean():
    """Implementations that rank all by their distance to the first mean keep an attacker here."""
    x = np.array([[100.0], [20.0], [0.0], [1.0], [2.0], [1.5], [0.5]])
    at_once = np.sort(np.argsort(np.abs(x - x.mean())[:, 0])[:5])
    assert 1 in at_once
    np.testing.assert_allclose(aggregate(x, "faba", f=2).value, x[2:].mean(axis=0))


# --- CGE ------------------------------------------------------------------------------------------------------------


def test_cge_keeps_the_shortest_and_reads_norms_alone():
    x, w = cloud(3)
    shortest = np.argsort(np.linalg.norm(x, axis=1))[:8]
    found = aggregate(x, "cge", w, f=3)
    np.testing.assert_allclose(found.value, weighted_mean(x, w, shortest), rtol=1e-12)
    assert not hasattr(found.relation, "gram")
    np.testing.assert_allclose(  # after a pre-rule that needs the Gram matrix
        (rules.NNM(f=2) >> rules.CGE(f=2))(list(x)).value, rules.CGE(f=2)(list(nnm(x, 2))).value, rtol=1e-9
    )


def nnm(x, f):
    distance = ((x[:, None] - x) ** 2).sum(-1)
    return np.stack([x[np.argsort(row, kind="stable")[: len(x) - f]].mean(axis=0) for row in distance])


def test_cge_bounds_the_length_of_the_result():
    x, _ = cloud(4)
    longest = np.linalg.norm(x[2:], axis=1).max()
    for scale in (0.1, 1, 1e3, 1e9):
        attacked = x.copy()
        attacked[:2] = -scale * x[2]
        assert np.linalg.norm(aggregate(attacked, "cge", f=2).value) <= longest * (1 + 1e-12)


# --- DnC ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("f", "share"), [(0, 1.0), (2, 1.0), (2, 1.5), (2, 0.5)])
def test_dnc_is_the_singular_value_decomposition(f, share):
    for seed in range(10):
        x, w = cloud(seed, shift=0.7)
        p = w / w.sum()
        centred = x - p @ x
        v = np.linalg.svd(np.sqrt(p)[:, None] * centred, full_matrices=False)[2][0]
        left = np.argsort((centred @ v) ** 2)[: len(x) - int(np.ceil(share * f))]
        np.testing.assert_allclose(aggregate(x, "dnc", w, f=f, filter=share).value, weighted_mean(x, w, left))


def test_dnc_finds_those_who_push_together():
    x, _ = cloud(5, honest=16, attackers=4, d=200, shift=0.0)
    x[:4] += 1.5 * np.sign(np.random.default_rng(0).normal(size=200))  # each coordinate well inside the honest range
    assert set(np.flatnonzero(aggregate(x, "dnc", f=4).weights == 0)) == {0, 1, 2, 3}


# --- MDA ------------------------------------------------------------------------------------------------------------


def diameters(x, subset):
    return sorted((float(np.linalg.norm(x[a] - x[b])) for a, b in itertools.combinations(subset, 2)), reverse=True)


@pytest.mark.parametrize(("n", "f"), [(5, 2), (8, 2), (9, 4), (11, 3), (4, 0)])
def test_mda_is_the_best_of_all_subsets(n, f):
    rng = np.random.default_rng(n)
    for _ in range(15):
        x, w = rng.normal(size=(n, rng.integers(1, 6))), rng.uniform(0.5, 2, size=n)
        best = min(itertools.combinations(range(n), n - f), key=lambda s: diameters(x, s))
        np.testing.assert_allclose(aggregate(x, "mda", w, f=f).value, weighted_mean(x, w, list(best)), atol=1e-12)


def test_mda_is_byzfls():
    """byzfl 0.0.11, MDA(f)(SMALL)."""
    np.testing.assert_allclose(
        aggregate(SMALL, "mda", f=2).value, [-0.2025, 0.1025, 0.345, -0.1575, -0.0525, 0.18, 0.045, 1.05], atol=1e-12
    )
    np.testing.assert_allclose(
        aggregate(SMALL, "mda", f=1).value, [-0.03, 0.144, -0.128, -0.134, 0.048, 0.266, -0.17, 0.844], atol=1e-12
    )


def test_mda_does_not_depend_on_the_order():
    """Members in no extreme pair can be exchanged at the same diameter, so "the first subset" is one of several."""
    x = np.array([[0.0, 0], [10, 0], [5, 6], [5, -7]])  # {0, 1, 2} and {0, 1, 3} are both 10 wide
    for order in itertools.permutations(range(4)):
        np.testing.assert_allclose(rules.MDA(f=1)(list(x[list(order)])).value, [5, 2], atol=1e-12)


def test_covers_are_the_smallest():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(2, 9))
        linked = np.triu(rng.random((n, n)) < rng.choice([0.2, 0.4, 0.7]), 1)
        linked |= linked.T
        far = [sum(1 << j for j in np.flatnonzero(row).tolist()) for row in linked]
        edges = list(zip(*np.nonzero(linked), strict=True))
        sizes = [
            k
            for k in range(n + 1)
            for chosen in itertools.combinations(range(n), k)
            if all(a in chosen or b in chosen for a, b in edges)
        ]
        least = sizes[0]
        cover = small_cover(far, (1 << n) - 1, least)
        assert cover is not None
        assert cover.bit_count() <= least
        assert all(cover >> int(a) & 1 or cover >> int(b) & 1 for a, b in edges)
        assert least == 0 or small_cover(far, (1 << n) - 1, least - 1) is None


def test_mda_is_fast_where_all_subsets_are_too_many():
    x = np.random.default_rng(0).normal(size=(50, 5))  # C(50, 10) is 1e10
    distance = ((x[:, None] - x) ** 2).sum(-1)
    start = time.process_time()
    assert len(closest_subset(distance, 40)) == 40
    assert time.process_time() - start < 0.5  # 2 ms when measured


def test_mda_refuses_what_would_take_for_ever():
    with pytest.raises(RuleError, match=r"exponential in f, so f is at most 30, not 31; MultiKrum"):
        rules.MDA(f=31)


# --- SMEA (catalogue 365) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "f"), [(5, 2), (8, 3), (9, 1)])
def test_smea_is_the_least_covariance_of_all_subsets(n, f):
    rng = np.random.default_rng(n)
    for _ in range(10):
        x, w = rng.normal(size=(n, 4)), rng.uniform(0.5, 2, size=n)

        def top(subset, x=x):
            return np.linalg.eigvalsh(np.cov(x[list(subset)].T, bias=True))[-1]

        best = list(min(itertools.combinations(range(n), n - f), key=top))
        np.testing.assert_allclose(aggregate(x, "smea", w, f=f).value, weighted_mean(x, w, best), atol=1e-12)


def test_smea_is_not_a_matter_of_chance():
    """byzfl 0.0.11 takes one random power step: six calls of SMEA(1)(SMALL) gave four results, this one among them."""
    expected = [-0.03, 0.144, -0.128, -0.134, 0.048, 0.266, -0.17, 0.844]
    for _ in range(3):
        np.testing.assert_allclose(aggregate(SMALL, "smea", f=1).value, expected, atol=1e-12)


class TestSMEACatalogue:
    def test_nobody_left_out_is_the_mean(self):
        x, w = cloud(6)
        np.testing.assert_allclose(aggregate(x, "smea", w, f=0).value, w @ x / w.sum())

    def test_moves_with_its_contributions(self):
        x, _ = cloud(6)
        shift = np.linspace(-3, 3, 20)
        np.testing.assert_allclose(aggregate(x + shift, "smea", f=2).value, aggregate(x, "smea", f=2).value + shift)

    def test_error_is_of_the_order_of_the_honest_spread(self):
        rng = np.random.default_rng(0)
        for f in (1, 2, 3):
            x = rng.normal(size=(12, 15))
            honest = x[f:]
            top = np.linalg.eigvalsh(np.cov(honest.T, bias=True))[-1]
            for attack in attacks(rng, x, f):
                attacked = x.copy()
                attacked[:f] = attack
                error = np.linalg.norm(aggregate(attacked, "smea", f=f).value - honest.mean(axis=0))
                assert error <= 2 * np.sqrt(f / (12 - 2 * f) * top) * (1 + 1e-9)

    def test_error_grows_with_privacy_noise_and_with_attackers(self):
        """SAFE-DSHB's server step: clipped, noised momenta of honest workers against attackers at the noise's edge."""
        rng = np.random.default_rng(1)

        def error(noise, f, draws=40):
            total = 0.0
            for _ in range(draws):
                truth = rng.normal(size=10)
                x = truth + 0.3 * rng.normal(size=(11, 10))
                x *= np.minimum(1, 3 / np.linalg.norm(x, axis=1))[:, None]
                truth = x[f:].mean(axis=0)
                x = x + noise * rng.normal(size=x.shape)
                x[:f] = truth + 1.5 * (noise + 0.3)
                total += np.linalg.norm(aggregate(x, "smea", f=f).value - truth)
            return total / draws

        by_noise = [error(noise, 3) for noise in (0.0, 0.5, 2.0)]
        by_attackers = [error(0.5, f) for f in (1, 3, 5)]
        assert by_noise == sorted(by_noise)
        assert by_attackers == sorted(by_attackers)


def test_smea_refuses_too_many_subsets():
    with pytest.raises(RuleError, match=r"C\(40, 6\) = 3.84e\+06 subsets, more than 100000; lower f, put Bucketing"):
        rules.SMEA(f=6)([np.ones(1)] * 40)


def smea_by_brute_force(x, f):
    """Top eigenvalue of the scatter of every subset in R^d."""
    subsets = [list(s) for s in itertools.combinations(range(len(x)), len(x) - f)]
    tops = [np.linalg.norm(x[s] - x[s].mean(axis=0), 2) ** 2 for s in subsets]
    return subsets[int(np.argmin(tops))], min(tops)


@pytest.mark.parametrize("f", [1, 3, 4])
@pytest.mark.parametrize("kind", ["noise", "outliers", "huge", "plane", "near"])
def test_smea_bounds_lose_no_subset(f, kind):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(10, 2 if kind == "plane" else 15))
        if kind == "outliers":
            x[:f] += 3 * rng.normal(size=x.shape[1])
        if kind == "huge":
            x[: f + 1] *= np.array([1e3, 1e7, 1e12, 1e15, 1e20])[: f + 1, None]
        if kind == "near":
            x = 1e3 + 1e-2 * x
        expected, _ = smea_by_brute_force(x, f)
        found = np.flatnonzero(aggregate(x, "smea", f=f).weights)
        assert found.tolist() == expected


def test_smea_among_twenty_thousand_subsets():
    x = np.random.default_rng(3).normal(size=(50, 60))
    chosen = np.flatnonzero(aggregate(x, "smea", f=3).weights)
    least = np.linalg.norm(x[chosen] - x[chosen].mean(axis=0), 2) ** 2
    for gone in itertools.combinations(range(50), 3):
        if hash(gone) % 40 == 0:
            rest = np.delete(x, gone, axis=0)
            assert np.linalg.norm(rest - rest.mean(axis=0), 2) ** 2 >= least * (1 - 1e-9)


# --- bucketing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [1, 2, 3, 20])
def test_bucketing_averages_what_a_permutation_puts_together(s):
    x, w = cloud(7)
    order = np.random.default_rng(5).permutation(11)
    buckets = [order[k : k + s] for k in range(0, 11, s)]
    means = [weighted_mean(x, w, b) for b in buckets]
    sums = [w[b].sum() for b in buckets]
    rule = rules.Bucketing(s=s, seed=5)
    assert rule.leaves(11) == len(buckets)
    found = (rule >> rules.GeometricMedian())(list(x), w)
    np.testing.assert_allclose(found.value, rules.GeometricMedian()(means, sums).value, atol=1e-7)
    np.testing.assert_allclose((rule >> rules.Median())(list(x), w).value, rules.Median()(means, sums).value)
    np.testing.assert_allclose(rule(list(x), w).value, w @ x / w.sum())


def test_bucketing_seeds():
    x, _ = cloud(7)
    results = [rules.chain(rules.Bucketing(seed=k), rules.Median())(list(x)).value.tobytes() for k in (0, 0, 1, 2)]
    assert results[0] == results[1]
    assert len(set(results)) == 3


def test_a_chain_after_buckets_withstands_what_is_left():
    chain = rules.chain(rules.Bucketing(s=2), rules.MultiKrum(f=2))
    assert chain.tolerates(14) == 2
    assert chain.least == 13  # seven buckets
    with pytest.raises(RuleError, match="at least 7 contributors, and got 6"):
        chain([np.ones(1)] * 12)


# --- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", CHOOSING, ids=str)
def test_nobody_disturbs_who_is_chosen(rule):
    """Offsets, float32 and one absurd contribution: peers lose the honest distances under each of these."""
    rng = np.random.default_rng(8)
    base = 1e-3 * rng.normal(size=(11, 400))
    # No choice is close: each contribution is 15 % farther out than the one before.
    base *= 1.15 ** np.arange(11)[:, None]
    translation = {"translation"} <= type(rule).laws
    expected = rule(list(base)).weights
    if translation:
        np.testing.assert_allclose(rule(list(base + 1e3)).weights, expected, atol=1e-6)
        theta = rng.normal(size=400)
        np.testing.assert_allclose(rule(list((theta + base).astype(np.float32))).weights, expected, atol=2e-2)
    huge = base.copy()
    huge[10] *= 1e25
    assert np.isfinite(rule(list(huge)).value).all()
    if not isinstance(rule, (rules.AFA, rules.DnC)):  # which has no bound here
        np.testing.assert_allclose(rule(list(huge)).weights, expected, atol=1e-9)


@pytest.mark.parametrize("rule", CHOOSING, ids=str)
def test_nan_is_named_or_dropped(rule):
    """Peers return the NaN contribution itself, or NaN."""
    x, _ = cloud(9)
    x[3, 4] = np.nan
    with pytest.raises(NonFiniteError, match="contributor 3: NaN or Inf in the array"):
        rule(list(x))
    found = rule(list(x), nonfinite="drop")
    np.testing.assert_array_equal(found.value, rule(list(np.delete(x, 3, axis=0))).value)
    assert found.weights[3] == 0


@pytest.mark.parametrize("rule", CHOOSING, ids=str)
def test_duplicates_zeros_and_agreement(rule):
    x, _ = cloud(10)
    x[:4] = x[0]
    x[5] = 0
    before = x.copy()
    found = rule(list(x))
    assert np.isfinite(found.value).all()
    np.testing.assert_array_equal(x, before)  # some peers overwrite their input
    np.testing.assert_allclose(rule([np.full(3, 0.1)] * 11).value, 0.1)
    assert rule([np.zeros(3)] * 11).value.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda: rules.FABA(f=2), 5),
        (lambda: rules.CGE(f=2), 5),
        (lambda: rules.DnC(f=2), 5),
        (lambda: rules.DnC(f=2, filter=3.0), 7),
        (lambda: rules.MDA(f=2), 5),
        (lambda: rules.SMEA(f=2), 5),
        (lambda: rules.BulyanSelection(f=2), 11),
        (lambda: rules.Bulyan(f=2), 11),
    ],
)
def test_at_the_bound(make, least):
    rule, x = make(), np.random.default_rng(0).normal(size=(least, 3))
    assert np.isfinite(rule(list(x)).value).all()
    with pytest.raises(RuleError, match=f"at least {least} contributors, and got {least - 1}"):
        rule(list(x[1:]))


@pytest.mark.parametrize("f", [1, 2, 3])
@pytest.mark.parametrize("name", ["faba", "dnc", "mda", "smea", "bulyan_selection", "bulyan", "residual_reweighting"])
def test_declared_bounds_stand_a_search(name, f):
    """Many attacks, together and apart, near and far; up to as many attackers as the rule declares."""
    rng = np.random.default_rng(f)
    rule = rules.get(name) if name == "residual_reweighting" else rules.get(name, f=f)
    n = max(rule.least, 2 * f + 2) + 1
    for _ in range(3):
        x = rng.normal(size=(n, 3)) * rng.choice([0.01, 1.0], size=3)
        most = min(rule.tolerates(n), f)
        for bad in range(1, most + 1):
            honest = x[bad:]
            spread = max(np.linalg.norm(a - b) for a in honest for b in honest)
            for attack in attacks(rng, x, bad):
                attacked = x.copy()
                attacked[:bad] = attack
                moved = np.linalg.norm(rule(list(attacked)).value - honest.mean(axis=0))
                assert moved <= rule.breakdown_factor(n, 3) * spread * (1 + 1e-9)


def test_what_has_no_bound_has_none():
    """Three rules whose names promise more than their formulas keep; their docstrings say so."""
    x = np.zeros((11, 2))
    x[:, 0] = np.linspace(-1, 1, 11)
    two_ways = x.copy()
    two_ways[0], two_ways[1] = [1e9, 0], [5e7, 1e8]
    assert np.linalg.norm(rules.DnC(f=2)(list(two_ways)).value) > 1e6
    assert rules.DnC(f=2).tolerates(11) == 1
    together = x.copy()
    together[:2] = [0, 1e9]
    assert np.linalg.norm(rules.BulyanSelection(f=2)(list(together)).value) > 1e6
    assert rules.BulyanSelection(f=2).tolerates(11) == 1
    assert np.linalg.norm(rules.Bulyan(f=2)(list(together)).value) < 2
    assert rules.RFA().tolerates(1000) == 0
