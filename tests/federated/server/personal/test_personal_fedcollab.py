"""FedCollab's coalitions against brute force, its divergences, and two groups of digits."""

import numpy as np
import pytest
from personal_digits import ALONE, OTHERS, SAME, finish, two_groups
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated.server import (
    FedCollab,
    coalition_errors,
    coalitions,
    label_divergences,
    two_sample_divergences,
)


def partitions(n):
    """All partitions of n things, as restricted growth strings."""
    if n == 1:
        yield [0]
        return
    for rest in partitions(n - 1):
        for c in range(max(rest) + 2):
            yield [*rest, c]


def test_the_bound_written_out():
    sizes, rng = np.array([10.0, 30, 60]), np.random.default_rng(0)
    d = rng.uniform(size=(3, 3))
    d = d + d.T
    np.fill_diagonal(d, 0)
    m, b = sizes.sum(), sizes / sizes.sum()
    for choice in ([0, 0, 1], [0, 0, 0], [0, 1, 2]):
        expected = []
        for i in range(3):
            a = np.array([b[j] if choice[j] == choice[i] else 0 for j in range(3)])
            a /= a.sum()
            expected.append(2.0 * np.sqrt((a**2 / b).sum() / m) + (a * d[i]).sum())
        np.testing.assert_allclose(coalition_errors(choice, sizes, d, 2.0), expected, rtol=1e-12)


@pytest.mark.parametrize("n", [3, 5, 7])
def test_it_is_the_best_of_all_partitions(n):
    worse = 0
    for seed in range(8 if n < 7 else 4):
        rng = np.random.default_rng(seed)
        sizes, points = rng.integers(5, 200, n), rng.normal(size=(n, 2))
        d = np.linalg.norm(points[:, None] - points[None], axis=2) / 4
        found = coalition_errors(coalitions(sizes, d, 3.0), sizes, d, 3.0).mean()
        best = min(coalition_errors(p, sizes, d, 3.0).mean() for p in partitions(n))
        assert found <= 1.05 * best
        worse += found > best + 1e-9
    assert worse <= 1  # a greedy search: now and then another partition is a little better


def test_the_ends():
    sizes, d = [20, 30, 40, 50], np.ones((4, 4)) - np.eye(4)
    np.testing.assert_array_equal(coalitions(sizes, 0 * d, 1.0), 0)
    np.testing.assert_array_equal(coalitions(sizes, 100 * d, 1.0), np.arange(4))
    np.testing.assert_array_equal(coalitions(sizes, d, 0.0), np.arange(4))
    d = 0.2 * d
    assert coalitions([400] * 4, d, 3.0).max() > coalitions([20] * 4, d, 3.0).max()


def test_label_divergences():
    found = label_divergences([[10, 0], [5, 5], [0, 3]])
    np.testing.assert_allclose(found, [[0, 0.5, 1], [0.5, 0, 0.5], [1, 0.5, 0]])
    with pytest.raises(RuleError, match="with a sample in every row"):
        label_divergences([[1, 0], [0, 0]])
    with pytest.raises(RuleError, match="do not fit"):
        coalitions([1, 2], np.zeros((3, 3)), 1.0)
    with pytest.raises(RuleError, match="must be positive"):
        coalitions([1, 0], np.zeros((2, 2)), 1.0)


def test_swapped_labels_are_seen_by_a_classifier_alone():
    for seed in range(3):
        setup = two_groups(seed)
        d = two_sample_divergences(setup.clients)
        assert d[~SAME].mean() > d[SAME & OTHERS].mean() + 0.4
        blind = two_sample_divergences(setup.clients, labelled=False)
        assert blind[~SAME].mean() < 0.3
        labels = label_divergences(setup.label_counts)
        assert abs(labels[~SAME].mean() - labels[SAME & OTHERS].mean()) < 0.15
        groups = coalitions(setup.sizes, d, 5.0)
        np.testing.assert_array_equal(groups, np.arange(6) % 2)
        _, accuracy = finish(setup, FedCollab(groups="-".join(map(str, groups))), seed)
        assert accuracy > finish(setup, "fedavg", seed)[1] + 0.2
        assert accuracy > finish(setup, ALONE, seed)[1]


def test_the_rule_averages_within_coalitions_and_members_need_not_be_there():
    rule = FedCollab(groups="0-1-0-1")
    state = rule.init({"w": np.zeros(1)}, 4)
    state = rule.step(state, plain([[1.0], [4.0], [3.0]], sizes=[1, 1, 3], clients=[0, 1, 2], n_clients=4))
    np.testing.assert_allclose(state["personal"]["w"][:, 0], [2.5, 4.0, 2.5, 4.0])
    np.testing.assert_allclose(state["mixing"][0, :3], [0.25, 0, 0.75])


def test_coalitions_by_labels_grow_with_those_who_come():
    rule = FedCollab(complexity=1.0)
    state = rule.init({"w": np.zeros(1)}, 3)
    counts = np.array([[100, 0], [0, 100]])
    state = rule.step(state, plain([[1.0], [2.0]], clients=[0, 1], n_clients=3, label_counts=counts))
    np.testing.assert_array_equal(state["coalition"], [0, 1, -1])
    state = rule.step(state, plain([[1.0]], clients=[2], n_clients=3, label_counts=np.array([[100, 0]])))
    np.testing.assert_array_equal(state["coalition"], [0, 1, 0])
    np.testing.assert_allclose(
        state["personal"]["w"][:, 0], [state["personal"]["w"][2, 0], 2.0, state["personal"]["w"][2, 0]]
    )


def test_bad_parameters_and_rounds():
    for bad in ({"complexity": -1}, {"groups": "0,1"}, {"groups": "a-b"}, {"groups": 3}):
        with pytest.raises(RuleError, match="FedCollab"):
            FedCollab(**bad)
    with pytest.raises(RuleError, match="names 2 clients, and there are 3"):
        FedCollab(groups="0-1").init({"w": np.zeros(1)}, 3)
    rule = FedCollab()
    with pytest.raises(RuleError, match="has no label_counts"):
        rule.step(rule.init({"w": np.zeros(1)}, 2), plain([[1.0], [2.0]]))
