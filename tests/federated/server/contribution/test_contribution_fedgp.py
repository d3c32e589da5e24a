"""FedDA and FedGP with a client as their target: formulas, the variance of an update, and help where there is some."""

from dataclasses import replace

import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job, Plain
from pluribus.federated.measuring import measure
from pluribus.federated.server import FedDA, FedGP
from pluribus.federated.server.contribution.shared import update_variance


def step(rule, deltas, **known):
    deltas = np.asarray(deltas, dtype=float)
    return rule.step(rule.init({"w": np.zeros(deltas.shape[1])}, len(deltas)), plain(deltas, **known))


def variances(k, target, value):
    return [{"variance": {"update": np.array(value)}} if i == target else {} for i in range(k)]


def test_the_mixtures_written_out():
    deltas = np.random.default_rng(0).normal(size=(4, 6))
    g, sources = deltas[2], deltas[[0, 1, 3]]
    da, gp, auto = np.zeros(6), np.zeros(6), np.zeros(6)
    for x in sources:
        da += (0.7 * g + 0.3 * x) / 3
        gp += (0.7 * g + 0.3 * max(g @ x, 0) / (x @ x) * x) / 3
        b = 0.5 / (0.5 + max((g - x) @ (g - x) - 0.5, 0))
        auto += ((1 - b) * g + b * x) / 3
    np.testing.assert_allclose(step(FedDA(target=2, beta=0.3), deltas)["params"]["w"], da, rtol=1e-10)
    np.testing.assert_allclose(step(FedGP(target=2, beta=0.3), deltas)["params"]["w"], gp, rtol=1e-10)
    found = step(FedDA(target=2), deltas, messages=variances(4, 2, 0.5))
    np.testing.assert_allclose(found["params"]["w"], auto, rtol=1e-10)
    np.testing.assert_allclose(found["weights"] @ deltas, auto, rtol=1e-10)
    found = step(FedGP(target=2, beta=0.3), deltas)
    np.testing.assert_allclose(found["weights"] @ deltas, gp, rtol=1e-10)


@pytest.mark.parametrize("rule", [FedDA, FedGP])
def test_the_ends(rule):
    deltas = np.random.default_rng(1).normal(size=(3, 5))
    np.testing.assert_allclose(step(rule(beta=0), deltas)["params"]["w"], deltas[0], rtol=1e-12)
    same = np.tile(deltas[:1], (3, 1))
    np.testing.assert_allclose(step(rule(beta=0.4), same)["params"]["w"], deltas[0], rtol=1e-12)
    sure = step(rule(), deltas, messages=variances(3, 0, 0.0))
    np.testing.assert_allclose(sure["params"]["w"], deltas[0], rtol=1e-12)
    alone = rule(beta=0.5)
    state = alone.step(alone.init({"w": np.zeros(1)}, 3), plain([[2.0]], clients=[0], n_clients=3))
    np.testing.assert_allclose(state["params"]["w"], [2.0])


def test_no_doubt_takes_the_sources_and_one_who_opposes_lends_nothing():
    deltas = np.array([[1.0, 0.0], [-1.0, 0.5], [-2.0, 0.0]])
    np.testing.assert_allclose(step(FedGP(beta=1.0), deltas)["params"]["w"], 0.0, atol=1e-15)
    doubt = step(FedDA(), deltas, messages=variances(3, 0, 1e12))
    np.testing.assert_allclose(doubt["params"]["w"], deltas[1:].mean(axis=0), rtol=1e-9)


def test_a_round_without_the_target_leaves_the_model():
    rule = FedGP(target=2)
    state = rule.step(rule.init({"w": np.ones(1)}, 3), plain([[2.0], [1.0]], clients=[0, 1], n_clients=3))
    np.testing.assert_array_equal(state["params"]["w"], 1.0)
    np.testing.assert_array_equal(state["weights"][:2], 0.0)


def test_bad_parameters_and_clients_that_do_not_play_along():
    for bad in ({"target": -1}, {"beta": 1.5}, {"beta": "half"}, {"server_lr": 0}):
        with pytest.raises(RuleError, match="FedGP"):
            FedGP(**bad)
    with pytest.raises(RuleError, match=r"target=5, and the clients are 0 \.\. 2"):
        FedDA(target=5).init({"w": np.zeros(1)}, 3)
    with pytest.raises(RuleError, match="client 0 did not send it"):
        step(FedGP(), [[1.0], [2.0]])


def job(setup, client, dataset, seed=0):
    return Job(
        model=setup.model,
        params=setup.model.init(0),
        told={"target": np.array(True)},
        dataset=dataset,
        how=setup.training,
        memory={},
        seed=seed,
        round=0,
        client=client,
    )


def test_the_variance_of_an_update_is_about_that_of_updates_on_fresh_samples():
    setup = federation(clients=1, rounds=1, model="softmax", lr=0.01)
    data, rng = setup.clients[0], np.random.default_rng(0)
    setup = replace(setup, training=replace(setup.training, steps=8, batch_size=8))
    updates, guesses = [], []
    for draw in range(40):
        own = data.take(rng.integers(len(data), size=32))
        report = Plain().train(job(setup, 0, own, draw))
        updates.append(np.concatenate([np.ravel(report.params[n]) for n in sorted(report.params)]))
        guesses.append(update_variance(job(setup, 0, own, draw), report.steps))
    true = ((np.stack(updates) - np.mean(updates, axis=0)) ** 2).sum() / 39
    assert np.mean(guesses) == pytest.approx(true, rel=0.3)
    single = update_variance(job(setup, 0, data.take([0])), 1)
    assert single > 0


def test_help_is_taken_where_it_is_help():
    """Auto: near the best of both ends without a shift, far above the sources alone where these mislead.

    That it is never below the better end (as in the paper's synthetic grid) does not hold at this size.
    """
    for seed in range(3):
        for shift in ("none", "labels:5"):
            setup = federation(seed=seed, clients=5, model="softmax", shift=shift, partition="iid", lr=0.05)
            few = setup.clients[0].take(np.sort(np.random.default_rng(seed).permutation(len(setup.clients[0]))[:20]))
            clients = (few, *setup.clients[1:])
            how = replace(setup.training, steps=10, batch_size=10)
            setup = replace(setup, clients=clients, training=how, true_counts=np.stack([c.counts for c in clients]))
            test = setup.test if setup.tests is None else setup.tests(0)

            def accuracy(rule, setup=setup, test=test, seed=seed):
                return measure(setup.model, simulate(setup, rule, seed=seed, rounds=6).state["params"], test)[1]

            auto, alone, sources = accuracy(FedDA()), accuracy(FedDA(beta=0)), accuracy(FedDA(beta=1))
            if shift == "none":
                assert auto > alone + 0.1
                assert auto > sources - 0.05
            else:
                assert auto > sources + 0.1


@pytest.mark.parametrize("rule", [FedDA, FedGP])
def test_on_a_grid_of_shifts_and_variances_auto_is_the_better_end_almost_everywhere(rule):
    """Updates of 200 coordinates, sources shifted in common, the target's noise of known variance."""
    below, below_mean = [], []
    for shift in (0.0, 0.3, 1.0, 2.0):
        for s2 in (0.05, 0.3, 1.0, 3.0):
            errors = []
            for seed in range(8):
                rng = np.random.default_rng(seed)
                true, noise, common = rng.normal(size=(3, 200)) / np.sqrt(200)
                target = true + np.sqrt(s2) * noise
                sources = true + shift * common + 0.05 * rng.normal(size=(4, 200)) / np.sqrt(200)
                deltas = np.vstack([target, sources])
                found = step(rule(), deltas, messages=variances(5, 0, s2))["params"]["w"]
                candidates = found, target, sources.mean(axis=0), deltas.mean(axis=0)
                errors.append([((one - true) ** 2).sum() for one in candidates])
            auto, alone, helped, everybody = np.mean(errors, axis=0)
            below.append(auto <= 1.05 * min(alone, helped) + 0.01)
            below_mean.append(auto < everybody)
    assert sum(below) >= 13
    assert sum(below_mean) >= 12
