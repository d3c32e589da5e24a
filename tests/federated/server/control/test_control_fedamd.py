from dataclasses import replace

import numpy as np
import pytest
from federations import federation, quadratics

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.models import Batch
from pluribus.federated.server import FedAMD, FedAvg
from pluribus.federated.simulation import advance, begin


def test_with_anchors_alone_it_is_gradient_descent_on_all_samples():
    setup, targets, curvatures = quadratics(clients=4, steps=5, lr=0.1)
    run = simulate(setup, FedAMD(probability=1.0, server_lr=1.5), seed=0, rounds=5)
    x = np.zeros(2)
    for _ in range(5):
        v = (curvatures * (x - targets)).mean(axis=0)
        x = x - 1.5 * 0.1 * v
    np.testing.assert_allclose(run.state["params"]["w"], x, rtol=1e-12)
    np.testing.assert_allclose(run.state["direction"]["w"], v, rtol=1e-12)
    assert run.state["known"].all()


def miners_round(steps):
    """A second round in which everybody mines, from caches that are as fresh as can be."""
    setup, targets, curvatures = quadratics(clients=3, steps=steps, lr=0.1)
    first = advance(setup, FedAMD(probability=1.0), 0, begin(setup, FedAMD(probability=1.0), 0, 2))
    rule = FedAMD(probability=1e-12)
    x = first.state["params"]["w"]
    v = (curvatures * -targets).mean(axis=0)
    after = advance(setup, rule, 0, first).state
    return x, v, curvatures, after


def test_one_step_of_a_miner_follows_the_cached_mean_gradient():
    x, v, _, after = miners_round(steps=1)
    np.testing.assert_allclose(after["params"]["w"], x - 0.1 * v, rtol=1e-12)


def test_steps_of_miners_written_out():
    x, v, curvatures, after = miners_round(steps=4)
    ends = []
    for a in curvatures:
        y, last, d = x.copy(), x.copy(), v.copy()
        for _ in range(4):
            d = d + a * (y - last)
            last = y
            y = y - 0.1 * d
        ends.append(y)
    np.testing.assert_allclose(after["params"]["w"], np.mean(ends, axis=0), rtol=1e-12)


def test_who_never_came_is_no_part_of_the_mean_and_miners_alone_move_the_model():
    setup, targets, curvatures = quadratics(clients=4, steps=2, lr=0.1, participation="cyclic:2")
    run = simulate(setup, FedAMD(probability=0.5), seed=3, rounds=1)
    here = np.flatnonzero(run.history.present[0])
    assert 0 < len(here) < 4
    np.testing.assert_array_equal(np.flatnonzero(run.state["known"]), here)
    np.testing.assert_allclose(run.state["direction"]["w"], (curvatures * -targets)[here].mean(axis=0), rtol=1e-12)
    setup = federation(clients=8)
    later = simulate(setup, FedAMD(probability=0.5), seed=0, rounds=2)
    assert set(later.history.weights[1]) == {0.0, later.history.weights[1].max()}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_under_a_fifth_of_the_clients_the_gradient_falls_below_fedavgs(seed):
    """Logistic regression on digits, Dirichlet(0.1), 4 of 20 clients: gradient norm over rounds 51 to 60."""
    setup = federation(
        seed, clients=20, partition="dirichlet:0.1", epochs=2, model="softmax", participation="sample:4", rounds=60
    )
    whole = Batch(*(np.concatenate([getattr(c, name) for c in setup.clients]) for name in ("x", "y")))

    def level(rule):
        run, norms = begin(setup, rule, seed, 60), []
        for _ in range(60):
            run = advance(setup, rule, seed, run, eval_every=60)
            _, grads = setup.model.loss_and_grad(run.state["params"], whole)
            norms.append(np.sqrt(sum(float((g**2).sum()) for g in grads.values())))
        return np.mean(norms[-10:])

    assert level(FedAMD()) < level(FedAvg(weighting="uniform"))


def test_bad_input_is_told():
    for bad in (0.0, 1.5):
        with pytest.raises(RuleError, match="probability must be"):
            FedAMD(probability=bad)
    rule = replace(FedAMD(), server_lr=2.0)
    state = rule.init({"w": np.zeros(2)}, 2)
    from server_rounds import plain

    with pytest.raises(RuleError, match=r"FedAMD\(\)\.client"):
        rule.step(state, plain(np.ones((2, 2))))
