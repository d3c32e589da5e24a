"""FedLoGe: heads that are trained apart from the features, and realigned.

That rare classes beat FedAvg's does not separate at this size. On a long tail divided alike (mlp:32, 30 rounds of 5
epochs, seeds 3 to 8, which chose nothing) they have .581 where FedAvg has .533, ahead on 4 of 6 seeds, at .777 to .787
of all; by Dirichlet(1) .551 to .540, ahead on 3. With fewer steps FedAvg was ahead in both (seeds 0 to 2). What holds
on every seed is what the realignment does to the head that was trained: .376 to .581.
"""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.measuring import measure
from pluribus.federated.server import FedLoGe
from pluribus.federated.server.heads.fedloge import realigned


def test_realignment_written_out():
    rng = np.random.default_rng(0)
    head, own = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    sizes, theirs = np.linalg.norm(head, axis=1), np.linalg.norm(own, axis=1)
    for c in range(4):
        equal = head[c] / sizes[c] * sizes.mean()
        np.testing.assert_allclose(realigned(head)[c], equal)
        np.testing.assert_allclose(realigned(head, own)[c], equal * theirs[c] / theirs.mean())


def test_with_equal_norms_it_is_the_identity():
    rng = np.random.default_rng(1)
    head, own = (3 * v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(2, 4, 3)))
    np.testing.assert_allclose(realigned(head), head)
    np.testing.assert_allclose(realigned(head, own), head)
    np.testing.assert_array_equal(realigned(np.zeros((4, 3)), own), np.zeros((4, 3)))


def test_a_round_written_out():
    setup = federation(clients=3, partition="dirichlet:1")
    rule = FedLoGe()
    run = simulate(setup, rule, seed=0, rounds=1)
    start = rule.init(setup.model.init(0), 3)
    assert (start["fixed"] == 0).mean() == pytest.approx(0.6, abs=0.02)
    state = run.state
    np.testing.assert_allclose(state["params"]["output.weight"], realigned(state["aux"]["output.weight"]))
    assert [len(value) for value in state["own"].values()] == [3, 3]
    for i in range(3):
        expected = realigned(state["aux"]["output.weight"], state["own"]["output.weight"][i])
        np.testing.assert_allclose(rule.model_of(state, i)["output.weight"], expected)
    # After one round all heads started alike, so the auxiliary one is the mean of the clients' own.
    for name, value in state["aux"].items():
        mean = np.average(state["own"][name], axis=0, weights=setup.sizes)
        np.testing.assert_allclose(value, mean, rtol=1e-4, atol=1e-6)


def long_tailed(seed, **settings):
    setup = federation(seed=seed, clients=5, model="mlp:32", **settings)
    share = 0.7 ** np.arange(10)
    rng = np.random.default_rng(seed)
    clients = tuple(c.take(np.flatnonzero(rng.random(len(c)) < share[c.y])) for c in setup.clients)
    return replace(setup, clients=clients, true_counts=np.stack([c.counts for c in clients]))


def test_on_a_long_tail_realignment_brings_the_rare_classes_up():
    for seed in range(3, 6):
        setup = long_tailed(seed, partition="iid", epochs=5)
        state = simulate(setup, FedLoGe(), seed=seed, rounds=20, eval_every=20).state
        before, after = (
            measure(setup.model, {**state["params"], **head}, setup.test)[:2] for head in (state["aux"], {})
        )
        assert after[0][6:].mean() > before[0][6:].mean() + 0.05
        assert after[1] > before[1]


def test_bad_parameters_are_refused():
    with pytest.raises(RuleError, match="zeros must be below 1"):
        FedLoGe(zeros=1.0)
