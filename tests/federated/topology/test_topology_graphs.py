"""Graphs and mixing matrices: what they must be, known spectra, and what a gossip step keeps and shrinks."""

import numpy as np
import pytest

from pluribus.core.errors import RuleError
from pluribus.federated import topology

GRAPHS = {
    "complete": topology.complete(6),
    "ring": topology.ring(7),
    "wide ring": topology.ring(9, reach=2),
    "torus": topology.torus(3, 4),
    "star": topology.star(5),
    "regular": topology.random_regular(10, 3, seed=0),
    "dense": topology.random_regular(8, 6, seed=1),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_metropolis_weights_average_and_keep_the_mean(name):
    graph = GRAPHS[name]
    n = len(graph)
    assert topology.connected(graph)
    mixing = topology.metropolis(graph)
    degrees = graph.sum(axis=1)
    for i in range(n):
        for j in range(n):
            if i != j:
                assert mixing[i, j] == (1 / (1 + max(degrees[i], degrees[j])) if graph[i, j] else 0)
    np.testing.assert_allclose(mixing.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_array_equal(mixing, mixing.T)
    assert (mixing >= 0).all()
    rng = np.random.default_rng(0)
    models = [{"w": rng.normal(size=5), "b": rng.normal(size=(2, 2)).astype("float32")} for _ in range(n)]
    after = topology.mix(models, mixing)
    for key in ("w", "b"):
        np.testing.assert_allclose(np.mean([m[key] for m in after], 0), np.mean([m[key] for m in models], 0), atol=1e-6)
        stacked = np.array([m[key] for m in models], dtype=float)
        np.testing.assert_allclose([m[key] for m in after], np.einsum("ij,j...->i...", mixing, stacked), atol=1e-6)
        assert after[0][key].dtype == models[0][key].dtype
    bound = (1 - topology.spectral_gap(mixing)) ** 2
    assert topology.consensus_distance(after) <= bound * topology.consensus_distance(models) * (1 + 1e-6) + 1e-12


def test_degrees():
    assert (topology.ring(7).sum(0) == 2).all()
    assert (topology.ring(9, reach=2).sum(0) == 4).all()
    assert (topology.torus(3, 4).sum(0) == 4).all()
    assert (topology.complete(6).sum(0) == 5).all()
    assert topology.ring(2).sum() == 2
    for seed in range(5):
        for n, degree in ((10, 3), (9, 4), (8, 6), (6, 5)):
            graph = topology.random_regular(n, degree, seed)
            assert (graph.sum(0) == degree).all()
            assert (graph == graph.T).all()
            assert not graph.diagonal().any()
            assert topology.connected(graph)
    assert (topology.random_regular(10, 3, 4) == topology.random_regular(10, 3, 4)).all()
    assert (topology.random_regular(10, 3, 4) != topology.random_regular(10, 3, 5)).any()


def test_known_spectra():
    assert topology.spectral_gap(topology.metropolis(topology.complete(6))) == pytest.approx(1)
    n = 12
    assert topology.spectral_gap(topology.metropolis(topology.ring(n))) == pytest.approx(
        2 / 3 * (1 - np.cos(2 * np.pi / n))
    )
    assert topology.spectral_gap(np.eye(3)) == pytest.approx(0)
    apart = np.kron(np.eye(2), np.ones((3, 3))).astype(bool) & topology.complete(6)
    assert not topology.connected(apart)
    assert topology.spectral_gap(topology.metropolis(apart)) == pytest.approx(0)


def test_consensus_distance_written_out():
    models = [{"w": np.array([0.0, 2.0])}, {"w": np.array([2.0, 2.0])}]
    assert topology.consensus_distance(models) == 1.0
    assert topology.consensus_distance(models[:1]) == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: topology.random_regular(5, 3, 0), "n degree even"),
        (lambda: topology.random_regular(4, 4, 0), "below n"),
        (lambda: topology.ring(0), "at least 1"),
        (lambda: topology.metropolis(np.ones((2, 2))), "boolean"),
        (lambda: topology.metropolis(np.ones((2, 2), dtype=bool)), "no loops"),
        (lambda: topology.mix([{"w": np.zeros(1)}] * 3, np.eye(2)), "3 models"),
        (lambda: topology.spectral_gap(np.array([[0.5, 0.5], [0.1, 0.9]])), "symmetric"),
        (lambda: topology.spectral_gap(np.array([[2.0, -1.0], [-1.0, 2.0]])), "no negative"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(RuleError, match=message):
        make()
