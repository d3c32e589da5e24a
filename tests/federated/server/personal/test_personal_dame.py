"""DAMe: structural entropy by hand, the search, the mixture, and two groups of digits."""

from itertools import combinations

import numpy as np
import pytest
from personal_digits import SAME, finish, two_groups
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated.server import DAMe
from pluribus.federated.server.personal import entropy_groups, similar_groups, structural_entropy
from pluribus.federated.server.personal.dame import blend, lowest_share


def test_structural_entropy_written_out():
    rng = np.random.default_rng(0)
    a = rng.uniform(size=(5, 5))
    a = np.triu(a, 1) + np.triu(a, 1).T
    groups, d, total, expected = [0, 1, 0, 1, 1], a.sum(axis=1), a.sum(), 0.0
    for c in (0, 1):
        members = [i for i in range(5) if groups[i] == c]
        cut = sum(a[i, j] for i in members for j in range(5) if groups[j] != c)
        volume = sum(d[i] for i in members)
        expected -= cut / total * np.log2(volume / total)
        for i in members:
            expected -= d[i] / total * np.log2(d[i] / volume)
    assert structural_entropy(a, groups) == pytest.approx(expected, rel=1e-12)
    alone = -(d / total * np.log2(d / total)).sum()
    assert structural_entropy(a, np.arange(5)) == pytest.approx(alone, rel=1e-12)
    assert structural_entropy(a, np.zeros(5)) == pytest.approx(alone, rel=1e-12)


def test_two_cliques_with_a_bridge_are_two_groups():
    a = np.zeros((8, 8))
    for part in (range(4), range(4, 8)):
        for i, j in combinations(part, 2):
            a[i, j] = a[j, i] = 1.0
    a[3, 4] = a[4, 3] = 0.2
    np.testing.assert_array_equal(entropy_groups(a), [0] * 4 + [1] * 4)
    order = np.random.default_rng(1).permutation(8)
    groups = entropy_groups(a[np.ix_(order, order)])
    assert len({(int(g), int(o >= 4)) for g, o in zip(groups, order, strict=True)}) == 2
    for bad in (np.zeros((2, 3)), [[0, 1], [2, 0]], [[0, -1], [-1, 0]]):
        with pytest.raises(RuleError, match="graph's weights"):
            structural_entropy(bad, [0, 1])
    assert structural_entropy(np.zeros((2, 2)), [0, 1]) == 0.0


def test_the_merges_are_those_of_the_entropy_itself():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        a = rng.uniform(size=(7, 7)) * (rng.uniform(size=(7, 7)) < 0.6)
        a = np.triu(a, 1) + np.triu(a, 1).T
        choice = np.arange(7)
        while True:
            found = []
            for first, second in combinations(np.unique(choice), 2):
                if a[np.ix_(choice == first, choice == second)].any():
                    tried = np.where(choice == second, first, choice)
                    found.append((structural_entropy(a, tried), tried))
            best = min(found, key=lambda pair: pair[0], default=(np.inf, choice))
            if best[0] >= structural_entropy(a, choice) - 1e-12:
                break
            choice = best[1]
        groups = entropy_groups(a)
        np.testing.assert_array_equal(groups[:, None] == groups, choice[:, None] == choice)


def test_groups_by_similarity():
    alike = np.where(SAME, 0.9, 0.1) + 0.1 * np.eye(6)
    np.testing.assert_array_equal(similar_groups(alike), np.arange(6) % 2)
    np.testing.assert_array_equal(similar_groups(np.ones((5, 5))), 0)
    noisy = 0.9 + 0.02 * np.random.default_rng(2).uniform(size=(6, 6))
    np.testing.assert_array_equal(similar_groups((noisy + noisy.T) / 2), 0)
    np.testing.assert_array_equal(similar_groups(np.ones((1, 1))), 0)


def test_the_search_is_never_above_either_end():
    for minimum in (-1.0, 0.0, 0.31, 0.77, 1.0, 2.0):
        seen = []

        def loss(t, minimum=minimum, seen=seen):
            seen.append(t)
            return (t - minimum) ** 2

        share = lowest_share(loss, 8)
        assert loss(share) <= min(loss(0.0), loss(1.0))
        assert abs(share - np.clip(minimum, 0, 1)) < 0.05
        assert len(set(seen)) <= 10
    wild = np.random.default_rng(0).uniform(size=100)
    share = lowest_share(lambda t: wild[int(99 * t)], 8)
    assert wild[int(99 * share)] <= min(wild[0], wild[99])
    assert lowest_share(lambda t: 1.0, 5) == 1.0
    assert lowest_share(lambda t: np.nan if t > 0.5 else 1.0 - t, 5) <= 0.5
    assert lowest_share(lambda t: t, 0) == 0.0


def test_the_mixture():
    got = {"w": np.array([1.0, 2.0], dtype="float32"), "n": np.array(4)}
    had = {"w": np.array([3.0, 6.0], dtype="float32"), "n": np.array(9)}
    mixed = blend(got, had, 0.25)
    np.testing.assert_allclose(mixed["w"], [2.5, 5.0])
    assert mixed["w"].dtype == np.float32
    assert mixed["n"] == 4
    np.testing.assert_array_equal(blend(got, had, 1.0)["w"], got["w"])
    np.testing.assert_array_equal(blend(got, had, 0.0)["w"], had["w"])


def step(deltas, outputs, shares):
    rule = DAMe()
    deltas = np.asarray(deltas, dtype=float)
    messages = [
        {"embedding": {"outputs": np.asarray(o, dtype=float)}, "mixture": {"share": np.array(s)}}
        for o, s in zip(outputs, shares, strict=True)
    ]
    return rule, rule.step(rule.init({"w": np.zeros(deltas.shape[1])}, len(deltas)), plain(deltas, messages=messages))


def test_equal_clients_get_the_mean_and_use_their_mixture():
    rule, state = step([[1.0], [2.0], [6.0]], np.ones((3, 4)), [1.0, 0.5, 0.0])
    np.testing.assert_allclose(state["mixing"], 1 / 3, rtol=1e-12)
    np.testing.assert_allclose(state["personal"]["w"][:, 0], 3.0)
    used = [float(rule.model_of(state, i)["w"][0]) for i in range(3)]
    np.testing.assert_allclose(used, [3.0, 2.5, 6.0])
    np.testing.assert_allclose(rule.offer(state, 2).params["w"], 3.0)


def test_weights_are_similarities_within_the_group():
    rng = np.random.default_rng(3)
    outputs = np.array([[1.0, 0, 0], [0.9, 0.3, 0], [0.8, 0, 0.4], [-1, 0, 0.1], [-0.9, 0.2, 0], [-1, 0.1, 0.1]])
    deltas = rng.normal(size=(6, 2))
    _, state = step(deltas, outputs, np.ones(6))
    np.testing.assert_array_equal(state["group"], [0, 0, 0, 1, 1, 1])
    unit = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
    row = np.array([unit[1] @ unit[j] for j in range(3)])
    np.testing.assert_allclose(state["mixing"][1], [*(row / row.sum()), 0, 0, 0], rtol=1e-10)
    np.testing.assert_allclose(state["personal"]["w"], state["mixing"] @ deltas, rtol=1e-10)


@pytest.mark.parametrize("model", ["softmax", "mlp:16"])
def test_two_groups_find_each_other(model):
    for seed in range(3):
        setup = two_groups(seed, model)
        run, accuracy = finish(setup, DAMe(), seed, rounds=10)
        assert (run.state["mixing"] * SAME).sum(axis=1).min() > 0.9
        assert ((run.state["share"] >= 0) & (run.state["share"] <= 1)).all()
        assert accuracy > finish(setup, "fedavg", seed, rounds=10)[1] + 0.2


def test_clients_who_are_alike_stay_together():
    for seed in range(2):
        run, _ = finish(two_groups(seed, shift="none"), DAMe(), seed)
        np.testing.assert_array_equal(run.state["group"], 0)


def test_bad_parameters():
    for bad in ({"holdout": 1.0}, {"tries": -1}, {"gap": 1}, {"probes": 0}, {"seed": -1}):
        with pytest.raises(RuleError, match="DAMe"):
            DAMe(**bad)
