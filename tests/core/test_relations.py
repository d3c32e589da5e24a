"""Distances: exact where float32 Gram matrices are not, whoever sends what, whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus import rules
from pluribus.core import kernels, passes
from pluribus.core.contributions import gather
from pluribus.core.passes import Active
from pluribus.core.relations import Norms
from pluribus.engines import local


def gram_of(xs):
    data = gather(xs)
    return passes.gram(Active(data, tuple(range(data.n))))


def brute(xs):
    wide = [np.asarray(x, dtype=np.longdouble).ravel() for x in xs]
    return np.array([[float(((a - b) ** 2).sum()) for b in wide] for a in wide])


def relative_error(found, expected, rows=slice(None)):
    off = ~np.eye(len(expected), dtype=bool)[rows, rows]
    return (np.abs(found - expected)[rows, rows][off] / expected[rows, rows][off]).max()


def test_one_huge_row_does_not_spoil_the_others(rng):
    base = rng.normal(size=2000)
    xs = [base + 1e-2 * rng.normal(size=2000) for _ in range(10)]
    xs[0] = xs[0] * 1e6
    found = gram_of(xs).squared_distances
    assert relative_error(found, brute(xs), slice(1, None)) <= 1e-9
    xs[0] = xs[0] * 1e140
    assert relative_error(gram_of(xs).squared_distances, brute(xs), slice(1, None)) <= 1e-9


def test_raw_float32_weights_a_hair_apart_agree_with_brute_force(rng):
    """|x| = 70 and differences of 0.014: a float32 Gram matrix is 1200 % off there and admits attackers."""
    d = 200_000
    base = rng.normal(size=d)
    base *= 70 / np.linalg.norm(base)
    steps = [rng.normal(size=d) for _ in range(12)]
    xs = [(base + 0.0099 * s / np.linalg.norm(s)).astype(np.float32) for s in steps]
    expected = brute(xs)
    assert 0.013 < np.sqrt(expected[0, 1]) < 0.016
    assert relative_error(gram_of(xs).squared_distances, expected) <= 1e-6
    coarse = np.stack(xs) @ np.stack(xs).T
    norms = np.diag(coarse)
    assert relative_error((norms[:, None] + norms - 2 * coarse).astype(float), expected) > 0.5, "the trap is not there"


@pytest.mark.parametrize("offset", [1e6, 1e9])
def test_an_offset_of_a_million_is_measured_nearer_by(rng, offset):
    xs = [offset + rng.normal(size=500) for _ in range(6)]
    assert relative_error(gram_of(xs).squared_distances, brute(xs)) <= 1e-6


def test_clusters_within_clusters(rng):
    centre = 1e8 * rng.normal(size=50)
    pair = centre + 1e2 * rng.normal(size=50)
    xs = [pair, pair + 1e-4 * rng.normal(size=50), centre, centre + rng.normal(size=50), -centre, np.zeros(50)]
    assert relative_error(gram_of(xs).squared_distances, brute(xs)) <= 1e-5


def test_duplicates_are_at_distance_zero(rng):
    x = 1e5 + rng.normal(size=100)
    found = gram_of([x, x.copy(), x + 1, x.copy()]).squared_distances
    assert found[0, 1] == found[0, 3] == found[1, 3] == 0.0
    assert found[0, 2] == pytest.approx(100.0)


def test_gram_norms_and_cosines(rng):
    xs = [rng.normal(size=(3, 4)) for _ in range(4)] + [np.zeros((3, 4))]
    relation = gram_of(xs)
    flat = np.stack([x.ravel() for x in xs])
    np.testing.assert_allclose(relation.gram, flat @ flat.T, atol=1e-12)
    np.testing.assert_allclose(np.diag(relation.cosines), [1, 1, 1, 1, 0])
    np.testing.assert_allclose(relation.distances**2, relation.squared_distances)


def test_mixed_follows_linear_pre_rules(rng):
    xs = [rng.normal(size=20) for _ in range(5)]
    relation = gram_of(xs)
    for mixing in (rng.random(size=(5, 5)), np.full((5, 5), 0.2), np.diag(rng.random(5))):
        stochastic = mixing / mixing.sum(axis=1, keepdims=True)
        for m in (mixing, stochastic):
            made = m @ np.stack(xs)
            np.testing.assert_allclose(relation.mixed(m).gram, made @ made.T, atol=1e-12)
            np.testing.assert_allclose(relation.mixed(m).squared_distances, brute(made), atol=1e-12)


def test_distances_to_a_combination(rng):
    xs = np.stack([rng.normal(size=20) for _ in range(5)])
    relation = gram_of(list(xs))
    for w in (np.full(5, 0.2), rng.random(5), np.zeros(5)):
        expected = ((xs - w @ xs) ** 2).sum(axis=1)
        np.testing.assert_allclose(relation.squared_distances_to(w), expected, atol=1e-12)


def test_bits_do_not_depend_on_threads(rng, monkeypatch):
    xs = [rng.normal(size=300_000).astype(np.float32) for _ in range(5)]
    found = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(local, "threads_for", lambda values, t=threads: t)
        aggregate = rules.MultiKrum(f=1)(xs)
        found.append((aggregate.relation.gram.tobytes(), aggregate.value.tobytes()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("size", [1, 1000, 4097, 1 << 20])
@pytest.mark.parametrize("rule", [rules.Mean(), rules.Median(), rules.TrimmedMean(f=1)], ids=str)
def test_bits_do_not_depend_on_tiles(rng, monkeypatch, rule, size):
    xs = [rng.normal(size=5000 if size > 1 else 50).astype(np.float32) for _ in range(5)]
    expected = rule(xs).value.tobytes()
    monkeypatch.setattr(kernels, "tile_size", lambda n, itemsize: size)
    assert rule(xs).value.tobytes() == expected


def test_rules_pay_only_for_what_they_read(rng, monkeypatch):
    xs = [rng.normal(size=10) for _ in range(5)]

    def forbidden(active, **options):
        raise AssertionError("this rule must not compute the Gram matrix")

    monkeypatch.setattr(passes, "gram", forbidden)
    for rule in (
        rules.Mean(),
        rules.Median(),
        rules.TrimmedMean(f=1),
        rules.Clip(1.0),
        rules.Clip(1.0) >> rules.Median(),
    ):
        rule(xs)
    assert isinstance(rules.Clip(1.0)(xs).relation, Norms)
    assert rules.Mean()(xs).relation is None
    with pytest.raises(AssertionError):
        rules.Krum(f=1)(xs)
