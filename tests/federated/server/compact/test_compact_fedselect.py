from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import plain, same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.seeding import derived
from pluribus.federated.server import FedAvg, FedSelect
from pluribus.federated.server.compact.fedselect import shared_mean


def test_two_rounds_written_out():
    rng = np.random.default_rng(0)
    rule = FedSelect(growth=0.3, cap=0.5)
    state = rule.init({"w": np.zeros(10)}, 3)
    x, masks, own = np.zeros(10), np.zeros((3, 10), dtype=bool), np.zeros((3, 10))
    sizes = np.array([1.0, 2.0, 5.0])
    for number in range(3):
        starts = np.where(masks, own, x)
        deltas = rng.normal(size=(3, 10))
        offered = [{"w": start} for start in starts]
        for i in range(3):
            np.testing.assert_allclose(rule.offer(state, i).params["w"], starts[i], rtol=1e-12)
        state = rule.step(state, replace(plain(deltas, sizes), starts=offered, number=number))
        ends, before = starts + deltas, x.copy()
        for j in range(10):
            share = sum(sizes[i] for i in range(3) if not masks[i, j])
            if share:
                x[j] = sum(sizes[i] * ends[i, j] for i in range(3) if not masks[i, j]) / share
            else:
                x[j] = before[j]
        for i in range(3):
            own[i][masks[i]] = ends[i][masks[i]]
            free = [j for j in range(10) if not masks[i, j]]
            count = min(int(np.ceil(0.3 * len(free) - 1e-9)), 5 - int(masks[i].sum()))
            for j in sorted(free, key=lambda j: -abs(deltas[i, j]))[:count]:
                masks[i, j], own[i, j] = True, ends[i, j]
        np.testing.assert_allclose(state["params"]["w"], x, rtol=1e-12)
        np.testing.assert_array_equal(state["mask"]["w"], masks)
        for i in range(3):
            np.testing.assert_allclose(rule.model_of(state, i)["w"], np.where(masks[i], own[i], x), rtol=1e-12)
    assert masks.sum(axis=1).max() == 5


def test_without_masks_it_is_fedavg_and_with_all_of_them_local_training():
    setup = federation(clients=3)
    run = simulate(setup, FedSelect(growth=0.0), seed=1, rounds=3)
    other = simulate(setup, FedAvg(), seed=1, rounds=3).state["params"]
    for name in other:
        np.testing.assert_allclose(run.state["params"][name], other[name], rtol=1e-4, atol=1e-6)
    same_bits(FedSelect().model_of(run.state, 1), run.state["params"])
    rule = FedSelect(growth=1.0, cap=1.0)
    run = simulate(setup, rule, seed=1, rounds=3)
    params = setup.model.init(derived(1, "simulation.init"))
    for number in range(3):
        seed = derived(1, "simulation.training", number, 2)
        job = Job(setup.model, params, {}, setup.clients[2], setup.training, {}, seed=seed, round=number, client=2)
        params = job.train().params
    for name, value in rule.model_of(run.state, 2).items():
        np.testing.assert_allclose(value, params[name], rtol=1e-4, atol=1e-6)


def test_what_nobody_shares_keeps_its_value_and_absent_clients_keep_theirs():
    ends = np.array([[3.0, 5.0], [7.0, 9.0]])
    masks = np.array([[True, False], [True, True]])
    np.testing.assert_allclose(shared_mean(np.array([1.0, 2.0]), ends, masks, np.array([0.2, 0.8])), [1.0, 5.0])
    setup = federation(clients=4, participation="cyclic:2")
    run = simulate(setup, FedSelect(), seed=0, rounds=1)
    absent = np.flatnonzero(~run.history.present[0])
    assert not run.state["mask"]["hidden.weight"][absent].any()
    assert run.state["mask"]["hidden.weight"].any()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_skewed_digits_personal_accuracy_is_above_fedavgs(seed):
    setup = federation(seed, clients=10, partition="dirichlet:0.1", epochs=2, model="mlp:16")
    ends = [
        np.nanmean(simulate(setup, rule, seed=seed, rounds=8, eval_every=8).history.client_accuracy)
        for rule in (FedAvg(), FedSelect())
    ]
    assert ends[1] > ends[0] + 0.1


def test_bad_input_is_told():
    for bad in ({"growth": 1.5}, {"cap": -0.1}, {"weighting": "all"}):
        with pytest.raises(RuleError, match=next(iter(bad))):
            FedSelect(**bad)
