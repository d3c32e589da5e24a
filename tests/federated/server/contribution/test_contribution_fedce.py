"""FedCE against its scores written out, its special cases, and the site whose classes nobody else has."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FedCE


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("mode", ["plus", "times"])
def test_the_scores_written_out(mode):
    rng = np.random.default_rng(0)
    rule, n = FedCE(mode=mode, floor=0.2), 4

    def validate(client, params):
        return 0.0, float(1 / (1 + np.exp(-params["w"][0] * (client + 1))))

    state = rule.init({"w": rng.normal(size=3)}, n)
    c, cosines, errors = np.full(n, 1 / n), [], []
    for number in range(3):
        x, deltas = state["params"]["w"], rng.normal(size=(n, 3))
        cosines.append([cosine(deltas[i], sum(c[j] * deltas[j] for j in range(n) if j != i)) for i in range(n)])
        errors.append(
            [
                validate(i, {"w": sum(c[j] * (x + deltas[j]) for j in range(n) if j != i) / (1 - c[i])})[1]
                for i in range(n)
            ]
        )
        first, second = 1 - np.mean(cosines, axis=0), np.mean(errors, axis=0)
        first, second = np.maximum(first / first.sum(), 0.2), np.maximum(second / second.sum(), 0.2)
        both = first + second if mode == "plus" else first * second
        c = both / both.sum()
        state = rule.step(state, replace(plain(deltas, validate=validate), number=number))
        np.testing.assert_allclose(state["weights"], c, rtol=1e-10)
        np.testing.assert_allclose(state["params"]["w"], x + c @ deltas, rtol=1e-10)
    np.testing.assert_allclose(state["contribution"], c, rtol=1e-10)


def perfect(client, params):
    return 0.0, 0.0


def test_equal_updates_without_errors_count_alike():
    rule = FedCE()
    state = rule.step(rule.init({"w": np.zeros(2)}, 3), plain([[1.0, 2.0]] * 3, validate=perfect))
    np.testing.assert_allclose(state["weights"], 1 / 3, rtol=1e-12)


@pytest.mark.parametrize("mode", ["plus", "times"])
def test_without_a_floor_scores_of_zero_count_alike_too(mode):
    rule = FedCE(mode=mode, floor=0.0)
    state = rule.step(rule.init({"w": np.zeros(2)}, 3), plain([[1.0, 2.0]] * 3, validate=perfect))
    np.testing.assert_allclose(state["weights"], 1 / 3, rtol=1e-12)


def test_a_copy_makes_a_client_count_less():
    deltas = [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]
    rule = FedCE()
    alone = rule.step(rule.init({"w": np.zeros(3)}, 3), plain(deltas, validate=perfect))["weights"]
    twice = rule.step(rule.init({"w": np.zeros(3)}, 4), plain([*deltas, deltas[0]], validate=perfect))["weights"]
    assert twice[0] < 0.75 * alone[0]  # 3/4 is what one more client costs anybody
    assert twice[0] < twice[1]


def test_one_alone_and_those_absent():
    rule = FedCE()
    state = rule.init({"w": np.zeros(1)}, 3)
    state = rule.step(state, plain([[2.0]], clients=[1], n_clients=3, validate=perfect))
    np.testing.assert_allclose(state["params"]["w"], [2.0])
    state = rule.step(state, plain([[1.0], [-1.0]], clients=[0, 1], n_clients=3, validate=perfect))
    assert np.isnan(state["weights"][2])
    assert np.isnan(state["contribution"][2])
    assert state["coefficients"][2] == pytest.approx(1 / 3)
    assert state["coefficients"].sum() == pytest.approx(1)


def test_it_asks_the_clients():
    rule = FedCE()
    assert "validate" in rule.needs
    with pytest.raises(RuleError, match="has no validate; run it where clients can be asked back"):
        rule.step(rule.init({"w": np.zeros(1)}, 2), plain([[1.0], [2.0]]))
    for bad in ({"mode": "minus"}, {"floor": 1.0}, {"server_lr": 0}):
        with pytest.raises(RuleError, match="FedCE"):
            FedCE(**bad)


def with_own_classes(seed):
    """Client 0 has all of classes 8 and 9, the others share the rest evenly."""
    setup = federation(seed=seed, clients=5, rounds=5, model="softmax")
    x, y = (np.concatenate([getattr(c, name) for c in setup.clients]) for name in "xy")
    rest = np.random.default_rng(seed).permutation(np.flatnonzero(y < 8))
    parts = [np.flatnonzero(y >= 8), *np.array_split(rest, 4)]
    clients = tuple(replace(setup.clients[0], x=x[part], y=y[part]) for part in parts)
    return replace(setup, clients=clients, true_counts=np.stack([c.counts for c in clients]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["plus", "times"])
def test_a_client_with_classes_of_its_own_counts_most(seed, mode):
    weights = simulate(with_own_classes(seed), FedCE(mode=mode), seed=seed, rounds=5).history.weights[-1]
    assert weights[0] > 1.5 * weights[1:].max()
