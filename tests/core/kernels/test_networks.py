"""Comparator networks against sorting."""

from __future__ import annotations

import numpy as np
import pytest

from pluribus.core.kernels.networks import (
    BOTH,
    HIGH,
    LOW,
    Network,
    middle_network,
    odd_even_merge_sort,
    prune,
    rank_network,
)


def apply(network: Network, values: np.ndarray) -> np.ndarray:
    """Output rows of a network on the columns of ``values``; what a half comparator loses becomes NaN."""
    rows = values.astype(float).copy()
    for i, j, op in network.steps:
        low, high = np.minimum(rows[i], rows[j]), np.maximum(rows[i], rows[j])
        rows[i] = low if op in (BOTH, LOW) else np.nan
        rows[j] = high if op in (BOTH, HIGH) else np.nan
    return rows[list(network.outputs)]


def zeros_and_ones(n: int) -> np.ndarray:
    return (np.arange(2**n)[None, :] >> np.arange(n)[:, None]) & 1


@pytest.mark.parametrize("n", range(1, 13))
def test_zero_one_principle(n):
    # A network that is right on all inputs of zeros and ones is right on all inputs.
    inputs = zeros_and_ones(n)
    ordered = np.sort(inputs, axis=0)
    assert np.array_equal(apply(odd_even_merge_sort(n), inputs), ordered)
    for rank in range(n):
        assert np.array_equal(apply(rank_network(n, (rank,)), inputs), ordered[[rank]])
    for low in range(n):
        for high in range(low + 1, n + 1):
            outputs = apply(middle_network(n, low, high), inputs)
            assert np.array_equal(np.sort(outputs, axis=0), ordered[low:high])


@pytest.mark.parametrize("n", [13, 16, 17, 50, 100, 127, 200])
def test_random_inputs(n, rng):
    inputs = rng.integers(0, 50, (n, 300))
    ordered = np.sort(inputs, axis=0)
    assert np.array_equal(apply(odd_even_merge_sort(n), inputs), ordered)
    wanted = (0, n // 3, n - 1)
    assert np.array_equal(apply(rank_network(n, wanted), inputs), ordered[list(wanted)])
    for low, high in [((n - 1) // 2, n // 2 + 1), (n // 5, n - n // 5)]:
        assert np.array_equal(np.sort(apply(middle_network(n, low, high), inputs), axis=0), ordered[low:high])


@pytest.mark.parametrize(
    ("n", "full", "median", "trimmed"),
    [(10, 32, 29, 29), (20, 103, 84, 90), (50, 403, 330, 340), (100, 1104, 898, 931), (200, 2906, 2392, 2463)],
)
def test_number_of_comparators(n, full, median, trimmed):
    # Figures of an independent implementation without the sets; a set can only need fewer.
    assert len(odd_even_merge_sort(n).steps) == full
    assert len(middle_network(n, (n - 1) // 2, n // 2 + 1).steps) <= median
    assert len(middle_network(n, n // 5, n - n // 5).steps) <= trimmed
    assert middle_network(n, (n - 1) // 2, n // 2 + 1).operations < 2 * median


def test_pruning_drops_what_nobody_wants():
    network = odd_even_merge_sort(4)
    assert prune(network).steps == ()
    assert prune(network, together=range(4)).steps == ()  # the sum of all needs no order
    assert all(op == LOW for _, _, op in prune(network, alone=[0]).steps)
    assert all(op == HIGH for _, _, op in prune(network, alone=[3]).steps)
    assert prune(network, alone=[0, 1, 2, 3]) == network


@pytest.mark.parametrize("call", [
    lambda: odd_even_merge_sort(0),
    lambda: middle_network(4, 2, 2),
    lambda: middle_network(4, 0, 5),
    lambda: middle_network(4, -1, 2),
    lambda: rank_network(4, (4,)),
])  # fmt: skip
def test_impossible_ranks(call):
    with pytest.raises(ValueError, match=r"network|ranks"):
        call()
