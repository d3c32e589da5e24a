"""IDA against its formula, and its special cases."""

import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import server, simulate
from pluribus.federated.server import IDA


def step(rule, deltas, start=None, **known):
    deltas = np.asarray(deltas, dtype=float)
    start = np.zeros(deltas.shape[1]) if start is None else start
    return rule.step(rule.init({"w": start}, len(deltas)), plain(deltas, **known))


@pytest.mark.parametrize("times", ["none", "size", "accuracy", "both"])
def test_the_formula_written_out(times):
    rng = np.random.default_rng(1)
    deltas, sizes, errors = rng.normal(size=(5, 4)), rng.uniform(1, 9, 5), np.array([0.1, 0.5, 0.95, 0.3, 0.2])
    state = step(IDA(times=times), deltas, sizes=sizes, validate=lambda client, params: (0.0, errors[client]))
    middle, expected = deltas.mean(axis=0), []
    for i in range(5):
        a = 1 / sum(abs(deltas[i][j] - middle[j]) for j in range(4))
        if times in ("size", "both"):
            a *= sizes[i]
        if times in ("accuracy", "both"):
            a /= max(1 - errors[i], 0.1)
        expected.append(a)
    expected = np.array(expected) / sum(expected)
    np.testing.assert_allclose(state["weights"], expected, rtol=1e-12)
    np.testing.assert_allclose(state["params"]["w"], expected @ deltas, rtol=1e-12)


def test_it_looks_at_the_local_models_accuracy():
    seen = {}

    def validate(client, params):
        seen[client] = params["w"].copy()
        return 0.0, 0.0

    step(IDA(times="accuracy"), [[1.0, 2.0], [3.0, 5.0]], start=np.array([10.0, 20.0]), validate=validate)
    np.testing.assert_allclose(seen[1], [13.0, 25.0])


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_equal_distances_give_the_mean_and_one_far_off_nearly_nothing(norm):
    np.testing.assert_allclose(step(IDA(norm=norm), np.eye(4))["weights"], 0.25, rtol=1e-12)
    n = 5
    deltas = np.zeros((n, 3))
    deltas[2] = 1e6
    np.testing.assert_allclose(step(IDA(norm=norm), deltas)["weights"][2], 1 / ((n - 1) ** 2 + 1), rtol=1e-9)


def test_the_order_and_a_common_shift_change_nothing():
    deltas = np.random.default_rng(2).normal(size=(4, 3))
    weights = step(IDA(), deltas)["weights"]
    np.testing.assert_allclose(step(IDA(), deltas[::-1])["weights"], weights[::-1], rtol=1e-12)
    np.testing.assert_allclose(step(IDA(), deltas + 7.0)["weights"], weights, rtol=1e-9)


def test_who_equals_the_mean_or_everybody():
    weights = step(IDA(), [[0.0], [1.0], [-1.0]])["weights"]
    assert np.isfinite(weights).all()
    assert weights[0] > 0.999
    np.testing.assert_allclose(step(IDA(), np.ones((3, 2)))["weights"], 1 / 3)


def test_l2_is_the_stateless_rule():
    deltas = np.random.default_rng(3).normal(size=(5, 4))
    other = server.parse("inverse_distance")
    np.testing.assert_allclose(step(IDA(norm="l2"), deltas)["weights"], step(other, deltas)["weights"], rtol=1e-9)


def test_bad_parameters_and_rounds():
    for bad in ({"times": "x"}, {"norm": "l3"}, {"least_accuracy": 1.5}, {"least_share": 0}):
        with pytest.raises(RuleError, match="IDA"):
            IDA(**bad)
    assert IDA().needs == frozenset()
    assert IDA(times="both").needs == {"validate"}
    with pytest.raises(RuleError, match="or take times=size"):
        step(IDA(times="accuracy"), [[1.0], [2.0]])


def test_the_simulation_asks_for_it():
    run = simulate(federation(clients=3, rounds=1), IDA(times="both"), seed=0, rounds=1)
    assert np.isfinite(run.history.weights[0]).all()


def test_noisy_clients_count_less():
    for seed in range(3):
        setup = federation(seed=seed, clients=8, model="softmax", epochs=3, label_noise="2:0.9", partition="iid")
        weights = simulate(setup, IDA(), seed=seed, rounds=5).history.weights
        assert weights[:, list(setup.noisy)].sum(axis=1).mean() < 0.75 * 2 / 8
