"""SCAFFOLD against its algorithm written out, and what it is for: no drift on quadratics."""

from dataclasses import replace

import numpy as np
import pytest
from federations import quadratics
from server_rounds import a_round, model

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.server import FedAvg, Scaffold
from pluribus.federated.server.base import Round


def test_the_algorithm_written_out():
    setup, targets, curvatures = quadratics(clients=3, steps=4, lr=0.1)
    x, c, own = np.zeros(2), np.zeros(2), np.zeros((3, 2))
    run = simulate(setup, Scaffold(server_lr=0.7), seed=0, rounds=5)
    for _ in range(5):
        ends, changes = [], []
        for i in range(3):
            y = x.copy()
            for _ in range(4):
                y -= 0.1 * (curvatures[i] * (y - targets[i]) - own[i] + c)
            changes.append(-c + (x - y) / (4 * 0.1))
            ends.append(y)
        x = x + 0.7 * (np.mean(ends, axis=0) - x)
        own += np.array(changes)
        c = c + np.mean(changes, axis=0)
    np.testing.assert_allclose(run.state["params"]["w"], x, rtol=1e-12)
    np.testing.assert_allclose(run.state["control"]["w"], c, rtol=1e-12)


def test_it_ends_at_the_optimum_where_fedavg_does_not():
    setup, targets, curvatures = quadratics(clients=4, steps=10, lr=0.1)
    optimum = (curvatures * targets).sum(axis=0) / curvatures.sum(axis=0)

    def gap(rule):
        return np.abs(simulate(setup, rule, seed=0, rounds=200).state["params"]["w"] - optimum).max()

    assert gap(Scaffold()) < 1e-6
    assert gap(FedAvg(weighting="uniform")) > 1e-2


def test_absent_clients_keep_their_variate_and_count_in_the_mean_of_all():
    setup, *_ = quadratics(clients=4, steps=2, lr=0.1, participation="cyclic:2")
    one = simulate(setup, Scaffold(), seed=0, rounds=1)
    here = np.flatnonzero(one.history.present[0])
    assert len(here) == 2
    assert sorted(one.memories) == [str(i) for i in here]
    mine = [one.memories[str(i)]["method"]["control"]["w"] for i in here]
    np.testing.assert_allclose(one.state["control"]["w"], np.sum(mine, axis=0) / 4, rtol=1e-12)


def test_clients_that_do_not_play_along_are_named():
    rule = Scaffold()
    state = rule.init({"w": np.zeros(2)}, 3)
    updates = [{"w": np.ones(2)}] * 2
    with pytest.raises(RuleError, match=r"client 0, client 2 did not send it; .*Scaffold\(\).client"):
        rule.step(state, Round(number=0, clients=(0, 2), updates=updates, sizes=np.ones(2), n_clients=3, total_size=3))


def test_buffers_and_counters_are_averaged_not_corrected():
    """Whatever the server's step and the control variates are, which are of the trained tensors alone."""
    params = model()
    told = a_round(params)
    changes = {name: np.ones_like(params[name]) for name in ("layer.weight", "layer.bias")}
    told = replace(told, messages=[{"control_change": changes}] * len(told.clients))
    rule = Scaffold(server_lr=3.0)
    after = rule.step(rule.init(params, told.n_clients), told)
    assert after["control"].keys() == changes.keys()
    for name, step in (("norm.running_var", 1.0), ("layer.bias", 3.0)):
        mean = np.mean([update[name] for update in told.updates], axis=0)
        np.testing.assert_allclose(after["params"][name], params[name] + step * mean, rtol=1e-12)
    growth = after["params"]["norm.num_batches_tracked"] - params["norm.num_batches_tracked"]
    assert growth == round(np.mean([int(update["norm.num_batches_tracked"]) for update in told.updates]))
