"""Affinities of tasks, and the exact search for groups of them."""

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pluribus.core.errors import RuleError
from pluribus.federated.task_groups import affinity, partition, pooled, score, split


def brute(s, groups, alone=0.0):
    n = len(s)
    labelled = (labels for labels in product(range(groups), repeat=n) if len(set(labels)) == groups)
    best = -np.inf
    for labels in labelled:
        total = 0.0
        for j in range(n):
            others = [i for i in range(n) if i != j and labels[i] == labels[j]]
            total += sum(s[i, j] for i in others) / len(others) if others else alone
        best = max(best, total)
    return best


@pytest.mark.parametrize("n", [1, 2, 4, 5, 6])
def test_the_search_equals_brute_force(n):
    rng = np.random.default_rng(n)
    for alone in (0.0, 0.3):
        s = rng.normal(size=(n, n))
        for groups in range(1, n + 1):
            found = partition(s, groups, alone)
            assert len(found) == groups
            assert sorted(task for group in found for task in group) == list(range(n))
            assert score(found, s, alone) == pytest.approx(brute(s, groups, alone))


def regression(seed=0, tasks=4):
    """Tasks 0, 1 need the first shared feature, tasks 2, 3 its opposite; each has a head of one number."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 3))
    goal = np.array([1.0, 0.5, -0.3])
    signs = np.array([1, 1, -1, -1])

    def loss(params, task):
        h = x @ params["shared"]
        gap = params[f"head{task}"] * h - signs[task] * (x @ goal)
        grads = {"shared": 2 * x.T @ (gap * params[f"head{task}"]) / 60}
        return float((gap**2).mean()), grads | {f"head{task}": np.asarray(2 * (gap * h).mean())}

    params = {"shared": np.zeros(3), **{f"head{task}": np.asarray(1.0) for task in range(tasks)}}
    return loss, params


def test_affinity_written_out_and_planted_blocks_are_split_exactly():
    found = []
    for client in range(3):
        loss, params = regression(client)
        s = affinity(loss, params, 4, ["shared"], 0.05)
        for i, j in product(range(4), repeat=2):
            moved = {**params, "shared": params["shared"] - 0.05 * loss(params, i)[1]["shared"]}
            assert s[i, j] == pytest.approx(1 - loss(moved, j)[0] / loss(params, j)[0])
        found.append(s)
    mean = pooled(found, [1, 2, 3])
    assert_allclose(mean, (found[0] + 2 * found[1] + 3 * found[2]) / 6)
    assert partition(mean, 2) == [[0, 1], [2, 3]]


def descend(params, loss, tasks, steps=5):
    params = {name: np.array(value) for name, value in params.items()}
    for _ in range(steps):
        grads = [loss(params, task)[1] for task in tasks]
        for name in params:
            params[name] = params[name] - 0.05 * sum(grad[name] for grad in grads if name in grad)
    return params


def test_one_group_goes_on_as_one_and_n_groups_apart():
    loss, params = regression()
    heads = {task: [f"head{task}"] for task in range(4)}
    (whole,) = split(params, [[0, 1, 2, 3]], heads)
    for name, value in descend(params, loss, range(4)).items():
        np.testing.assert_array_equal(descend(whole, loss, range(4))[name], value)
    for task, tree in enumerate(split(params, [[0], [1], [2], [3]], heads)):
        assert set(tree) == {"shared", f"head{task}"}
        alone = descend({"shared": params["shared"], f"head{task}": params[f"head{task}"]}, loss, [task])
        np.testing.assert_array_equal(descend(tree, loss, [task])["shared"], alone["shared"])
        assert tree["shared"] is not params["shared"]


def test_bad_input_is_told():
    with pytest.raises(RuleError, match="cannot be divided into 3 groups"):
        partition(np.zeros((2, 2)), 3)
    with pytest.raises(RuleError, match=r"finite \(n, n\) matrix"):
        partition(np.full((2, 2), np.nan), 1)
    with pytest.raises(RuleError, match=r"task 0 has loss 0\.0"):
        affinity(lambda params, task: (0.0, {}), {}, 1, [], 0.1)
    with pytest.raises(RuleError, match="each of the tasks"):
        split({}, [[0], [0]], {0: [], 1: []})
