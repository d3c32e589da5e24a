"""Fairness: numbers over clients by hand, the decomposition's canonical cases, and the frontier."""

import numpy as np
import pytest

from pluribus.core.errors import RuleError
from pluribus.federated.entropies import information, minimise, of_axes
from pluribus.federated.fairness import best_accuracy, client_fairness, disparity, frontier, group_table


def test_the_numbers_over_clients():
    accuracy = np.array([0.5, 0.7, np.nan, 0.9, 0.9])
    found = client_fairness(accuracy)
    known = np.array([0.5, 0.7, 0.9, 0.9])
    assert found.mean == pytest.approx(known.mean())
    assert found.variance == pytest.approx(((known - 0.75) ** 2).mean())
    assert found.deviation == pytest.approx(found.variance**0.5)
    assert (found.worst, found.best) == (0.5, 0.9)
    assert found.jain == pytest.approx(3.0**2 / (4 * (0.25 + 0.49 + 0.81 + 0.81)))
    assert (found.worst_tenth, found.best_tenth) == (0.5, 0.9)
    many = client_fairness(np.arange(20) / 20)
    assert many.worst_tenth == pytest.approx(0.025)
    assert many.best_tenth == pytest.approx(0.925)
    assert client_fairness([0.8] * 3).jain == pytest.approx(1.0)
    assert client_fairness([0.0, 0.0]).jain == 1.0
    assert client_fairness([1.0, 0.0, 0.0, 0.0]).jain == pytest.approx(0.25)
    with pytest.raises(RuleError, match="no client's accuracy is known"):
        client_fairness([np.nan])


def entropy(p):
    p = np.ravel(p)
    p = p[p > 0]
    return -(p * np.log2(p)).sum()


def test_informations_by_entropies():
    p = np.random.default_rng(0).uniform(size=(2, 3, 4))
    p /= p.sum()
    plain = entropy(p.sum((1, 2))) + entropy(p.sum((0, 2))) - entropy(p.sum(2))
    assert information(p, [0], [1]) == pytest.approx(plain, rel=1e-10)
    given = entropy(p.sum(1)) + entropy(p.sum(0)) - entropy(p) - entropy(p.sum((0, 1)))
    assert information(7 * p, [0], [1], [2]) == pytest.approx(given, rel=1e-10)


def test_slopes_by_differences():
    rng = np.random.default_rng(1)
    cells = rng.uniform(0.5, 1.0, 12)
    info = of_axes((2, 3, 2), [0], [1], [2])
    gradient, hessian = info.slopes(cells)
    for i in range(12):
        move = np.eye(12)[i] * 1e-6
        assert (info.value(cells + move) - info.value(cells - move)) / 2e-6 == pytest.approx(gradient[i], abs=1e-7)
        bend = (info.slopes(cells + move)[0] - info.slopes(cells - move)[0]) / 2e-6
        np.testing.assert_allclose(bend, hessian[i], atol=1e-6)


def test_the_canonical_cases():
    half = np.full((2, 2), 0.25)
    unique, masked, redundant = np.zeros((3, 2, 2, 2))
    for z in range(2):
        for s in range(2):
            unique[z, z, s] = half[z, s]  # the output is the group, whatever the client
            masked[z, z ^ s, s] = half[z, s]  # group xor client
            redundant[z, s, s] = 0.4 if z == s else 0.1  # the output is the client, who goes with the group
    one, other, third = disparity(unique), disparity(masked), disparity(redundant)
    np.testing.assert_allclose([one.unique, one.redundant, one.masked], [1, 0, 0], atol=1e-8)
    np.testing.assert_allclose([other.unique, other.redundant, other.masked], [0, 0, 1], atol=1e-8)
    told = 1 - entropy([0.8, 0.2])
    np.testing.assert_allclose([third.unique, third.redundant, third.masked], [0, told, 0], atol=1e-8)


def test_the_sums_hold_and_nothing_is_negative():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        table = rng.dirichlet(np.full(24, 0.4)).reshape(2, 3, 4)
        if seed % 2:
            table[0, 1] = 0.0
        found = disparity(table)
        assert found.over_all == pytest.approx(information(table, [0], [1]), abs=1e-8)
        assert found.at_clients == pytest.approx(information(table, [0], [1], [2]), abs=1e-8)
        assert min(found.unique, found.redundant, found.masked) >= 0


def test_the_unique_part_against_scipys_solver():
    from scipy.optimize import minimize as solve

    for seed in (0, 4, 5):
        rng = np.random.default_rng(seed)
        p = rng.dirichlet(np.ones(12)).reshape(2, 2, 3)
        info = of_axes(p.shape, [0], [1], [2])
        start = (p.sum(2)[:, :, None] * p.sum(1)[:, None, :] / p.sum((1, 2))[:, None, None]).ravel()
        free = []  # the changes that keep both marginals of each group
        for z in range(2):
            for s in range(2):
                move = np.zeros(p.shape)
                move[z, :, s] = [1, -1]
                move[z, :, s + 1] = [-1, 1]
                free.append(move.ravel())
        moves = np.array(free).T
        found = [
            solve(
                lambda u, m=moves, q=start, f=info: f.value(np.maximum(q + m @ u, 0)),
                0.001 * rng.normal(size=4),
                method="SLSQP",
                constraints={"type": "ineq", "fun": lambda u, m=moves, q=start: q + m @ u - 1e-12},
                options={"maxiter": 500, "ftol": 1e-13},
            ).fun
            for _ in range(3)
        ]
        ours = disparity(p).unique
        assert ours <= min(found) + 1e-7
        assert ours == pytest.approx(min(found), abs=1e-3)


def test_tables_from_samples():
    table = group_table(["a", "b", "b"], [0, 1, 1], [5, 5, 7])
    assert table.shape == (2, 2, 2)
    assert table[1, 1, 0] == table[1, 1, 1] == table[0, 0, 0] == 1
    for bad in (([], [], []), ([1], [1, 2], [1, 2])):
        with pytest.raises(RuleError, match="arrays of one length"):
            group_table(*bad)
    for bad in (np.zeros((2, 2, 2)), -np.ones((2, 2, 2)), np.ones((2, 2))):
        with pytest.raises(RuleError, match="expected a table of group"):
            disparity(bad)


def test_the_best_accuracy_under_caps():
    # Two groups whose labels differ, at two clients who differ in groups: p(z, s, y).
    table = np.zeros((2, 2, 2))
    for z in range(2):
        for s in range(2):
            share = 0.35 if z == s else 0.15
            table[z, s] = share * (np.array([0.8, 0.2]) if z == 0 else np.array([0.3, 0.7]))
    free, _ = best_accuracy(table, np.inf, np.inf)
    assert free == pytest.approx(1.0, abs=1e-6)
    accuracy, decided = best_accuracy(table, 0.01, np.inf)
    np.testing.assert_allclose(decided.sum(axis=3), 1.0, atol=1e-9)
    whole = decided * table[..., None]
    assert np.trace(whole.sum(axis=(0, 1))) == pytest.approx(accuracy)
    assert information(whole, [0], [3]) == pytest.approx(0.01, abs=1e-6)
    # Perfect parity by hand: both groups get the same share of ones, and the nearest is any in between the two.
    none, _ = best_accuracy(table, 0.0, np.inf)
    assert none == pytest.approx(1 - 0.5 * (0.7 - 0.2), abs=2e-4)


def test_the_frontier_is_monotone_and_below_one():
    rng = np.random.default_rng(3)
    table = rng.dirichlet(np.ones(8)).reshape(2, 2, 2)
    caps = [0.0, 0.03, 1.0]
    found = frontier(table, caps, caps)
    assert (np.diff(found, axis=0) >= -1e-6).all()
    assert (np.diff(found, axis=1) >= -1e-6).all()
    assert found.max() <= 1 + 1e-9
    assert found[0, 0] < found[-1, -1] - 0.01
    with pytest.raises(RuleError, match="caps are numbers of bits"):
        best_accuracy(table, -0.1, 1.0)


def test_a_start_outside_is_told():
    info = of_axes((2, 2), [0], [1])
    with pytest.raises(RuleError, match="strictly below every cap"):
        minimise(info, np.array([0.4, 0.1, 0.1, 0.4]), [np.array([0, 0, 1, 1])], [(info, 0.01)])
