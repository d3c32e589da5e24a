from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import plain, same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FOT, FedAvg, learn_tasks, project_inputs
from pluribus.federated.server.control.pullback import layer_inputs


def split_digits(seed, groups=((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)), **settings):
    """A federation a task: each has some of the classes."""
    whole = federation(seed, **({"clients": 4, "epochs": 2, "model": "mlp:32"} | settings))

    def only(dataset, classes):
        return dataset.take(np.flatnonzero(np.isin(dataset.y, classes)))

    return [
        replace(whole, clients=tuple(only(c, classes) for c in whole.clients), test=only(whole.test, classes))
        for classes in groups
    ]


def test_before_a_task_ends_it_is_fedavg_bit_for_bit():
    setup = federation(clients=3)
    one = simulate(setup, FOT(server_lr=0.5), seed=1, rounds=2).state["params"]
    same_bits(one, simulate(setup, FedAvg(server_lr=0.5), seed=1, rounds=2).state["params"])


def test_an_update_leaves_alone_what_old_inputs_see_bias_included():
    setup = split_digits(0)[0]
    rule = FOT(energy=0.9)
    state = simulate(setup, rule, seed=0, rounds=2).state
    sums = {}
    for i, dataset in enumerate(setup.clients):
        for name, value in project_inputs(rule, setup.model, state["params"], dataset, i).items():
            sums[name] = sums.get(name, 0) + value
    state = rule.end_task(state, sums)
    rng = np.random.default_rng(0)
    params = {name: value.astype(np.float64) for name, value in state["params"].items()}
    state = {**state, "params": params}
    updates = [{name: rng.normal(size=value.shape) for name, value in params.items()} for _ in range(4)]
    moved = rule.step(state, replace(plain(np.zeros((4, 1))), updates=updates))["params"]
    for name, basis in state["basis"].items():
        rank = int(basis.any(axis=0).sum())
        assert 0 < rank < len(basis)
        np.testing.assert_allclose(basis[:, :rank].T @ basis[:, :rank], np.eye(rank), atol=1e-10)
        bias = name.replace("weight", "bias")
        change = np.column_stack([moved[name] - params[name], moved[bias] - params[bias]])
        assert np.abs(change).max() > 0.1
        np.testing.assert_allclose(change @ basis, 0, atol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_subspace_of_summed_projections_is_that_of_pooled_data(seed):
    """Inputs that lie in five dimensions: every way to share them out finds the same five."""
    rng = np.random.default_rng(seed)
    setup = federation(clients=3, model="softmax")
    plane = rng.normal(size=(5, 64))
    params = setup.model.init(0)
    rule = FOT(energy=1.0, width=12)
    datasets = [replace(c, x=rng.normal(size=(len(c), 5)) @ plane) for c in setup.clients]
    sums = sum(project_inputs(rule, setup.model, params, d, i)["output.weight"] for i, d in enumerate(datasets))
    state = rule.end_task(rule.init(params, 3), {"output.weight": sums})
    basis = state["basis"]["output.weight"]
    inputs = np.concatenate([layer_inputs(setup.model, params, d.x)["output.weight"] for d in datasets])
    pooled = np.linalg.svd(np.column_stack([inputs, np.ones(len(inputs))]).T, full_matrices=False)[0][:, :6]
    np.testing.assert_allclose(basis @ basis.T, pooled @ pooled.T, atol=1e-5)
    assert int(basis.any(axis=0).sum()) == 6
    again = rule.end_task(state, {"output.weight": sums})
    assert int(again["basis"]["output.weight"].any(axis=0).sum()) == 6
    assert int(again["tasks"]) == 2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_split_digits_are_forgotten_less(seed):
    setups = split_digits(seed)
    test = setups[0].test

    def kept(rule):
        found = []

        def look(task, state):
            found.append((setups[0].model.predict(state["params"], test.x) == test.y).mean())

        learn_tasks(setups, rule, seed, 8, after_task=look)
        return found

    class Forgetful(FOT):
        def end_task(self, state, projections):
            return state

    ours, theirs = kept(FOT()), kept(Forgetful())
    assert ours[0] == theirs[0] > 0.85
    assert ours[0] - ours[1] < 0.1
    assert theirs[0] - theirs[1] > 0.5
    # and something new is learned: among its own classes the second task is told apart
    state = learn_tasks(setups, FOT(), seed, 8)
    p = setups[1].model.probabilities(state["params"], setups[1].test.x)[:, 5:]
    assert (5 + p.argmax(axis=1) == setups[1].test.y).mean() > 0.6


def test_bad_input_is_told():
    with pytest.raises(RuleError, match=r"energy must be a number in \(0, 1\]"):
        FOT(energy=0.0)
    with pytest.raises(RuleError, match="needs layers"):
        FOT().init({"w": np.zeros(3)}, 2)
    with pytest.raises(RuleError, match="no tasks"):
        learn_tasks([], FOT(), 0, 1)
    rule = FOT()
    state = rule.init({"a.weight": np.zeros((2, 3)), "a.bias": np.zeros(2)}, 2)
    with pytest.raises(RuleError, match=r"a.weight: projections have shape \(3, 1\); expected \(4, directions\)"):
        rule.end_task(state, {"a.weight": np.ones((3, 1))})
