"""Trees of aggregators (LIFL): any shape and order gives the flat weighted mean, in the memory of one model each."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from pluribus.core.errors import RuleError
from pluribus.federated import topology
from pluribus.rules import Mean


def clients(n=11, seed=0, size=40, dtype="float64"):
    rng = np.random.default_rng(seed)
    models = [{"w": rng.normal(size=size).astype(dtype), "n": np.array(int(rng.integers(9)))} for _ in range(n)]
    return models, rng.integers(1, 50, size=n).astype(float)


SHAPES = {
    "flat": topology.flat(11),
    "pairs": topology.balanced(11, 2),
    "threes": topology.balanced(11, 3),
    "chain": ((((((((((0, 1), 2), 3), 4), 5), 6), 7), 8), 9), 10),
    "random": topology.scattered(11, 0),
    "random too": topology.scattered(11, 1),
    "late": (topology.balanced(11, 4)[::-1],),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_any_tree_gives_the_flat_mean(shape):
    models, sizes = clients()
    tree = SHAPES[shape]
    assert sorted(topology.leaves(tree)) == list(range(11))
    found = topology.tree_mean(tree, models, sizes).value
    wanted = sum(n * m["w"] for n, m in zip(sizes, models, strict=True)) / sizes.sum()
    np.testing.assert_allclose(found["w"], wanted, rtol=1e-13, atol=1e-15)
    assert found["n"] == Mean()({str(k): m for k, m in enumerate(models)}, sizes).value["n"]


def test_float32_models_give_the_same_bits_through_any_tree():
    models, sizes = clients(dtype="float32")
    bits = {topology.tree_mean(tree, models, sizes).value["w"].tobytes() for tree in SHAPES.values()}
    assert len(bits) == 1


def test_partial_states_merge_associatively():
    models, sizes = clients(n=9)
    a, b, c = ((0, 1, 2), (3, 4, 5), (6, 7, 8))
    left = topology.tree_fold(((a, b), c), models.__getitem__, sizes).result().value["w"]
    right = topology.tree_fold((a, (b, c)), models.__getitem__, sizes).result().value["w"]
    np.testing.assert_allclose(left, right, rtol=1e-14)


def test_memory_is_that_of_a_few_models_and_not_of_all_clients():
    size = 50_000

    def fetch(i):
        return {"w": np.full(size, float(i))}

    peaks = []
    for n in (8, 64):
        tracemalloc.start()
        topology.tree_mean(topology.flat(n), fetch, np.ones(n))
        peaks.append(tracemalloc.get_traced_memory()[1] / (8 * size))
        tracemalloc.stop()
    assert max(peaks) < 5
    assert all(later < earlier + 0.5 for earlier, later in pairwise(peaks))


def test_workers_change_no_bit():
    models, sizes = clients()
    with ThreadPoolExecutor(2) as pool:
        for tree in SHAPES.values():
            alone = topology.tree_mean(tree, models, sizes)
            shared = topology.tree_mean(tree, models, sizes, pool)
            np.testing.assert_allclose(shared.value["w"], alone.value["w"], rtol=1e-14)
            again = topology.tree_mean(tree, models, sizes, pool)
            assert shared.value["w"].tobytes() == again.value["w"].tobytes()
            assert shared.labels == alone.labels == tuple(f"client {i}" for i in topology.leaves(tree))


@pytest.mark.parametrize(("tree", "message"), [((0, (1, 0)), "each client once"), ((), "at least"), ((0, 12), "12")])
def test_what_is_no_tree_is_refused(tree, message):
    models, sizes = clients()
    with pytest.raises(RuleError, match=message):
        topology.tree_mean(tree, models, sizes)
