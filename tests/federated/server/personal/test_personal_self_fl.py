"""Self-FL against the exact posterior of a hierarchical Gaussian, and between its two ends."""

import numpy as np
import pytest
from federations import federation
from personal_digits import ALONE, finish, two_groups
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated.clients.base import Job, Plain
from pluribus.federated.server import SelfFL
from pluribus.federated.server.personal.self_fl import half_variance
from pluribus.federated.training import LocalTraining


def step(rule, deltas, variances, steps=None):
    deltas = np.asarray(deltas, dtype=float)
    messages = [{"variance": {"update": np.array(float(v))}} for v in variances]
    round = plain(deltas, messages=messages, steps=steps)
    return rule.step(rule.init({"w": np.zeros(deltas.shape[1])}, len(deltas)), round)


def test_the_exact_posterior():
    rng = np.random.default_rng(0)
    k, s2, v = 5, 0.7, rng.uniform(0.2, 3.0, 5)
    y = rng.normal(size=(k, 3))
    # Joint normal of the optima and theta under a flat prior: precision matrix, and its mean.
    precision = np.zeros((k + 1, k + 1))
    for i in range(k):
        precision[i, i] = 1 / v[i] + 1 / s2
        precision[i, k] = precision[k, i] = -1 / s2
    precision[k, k] = k / s2
    mean = np.linalg.solve(precision, np.vstack([y / v[:, None], np.zeros(3)]))
    state = step(SelfFL(between=s2), y, v)
    np.testing.assert_allclose(state["personal"]["w"], mean[:k], rtol=1e-9)
    np.testing.assert_allclose(state["params"]["w"], mean[k], rtol=1e-9)
    np.testing.assert_allclose(state["mixing"] @ y, mean[:k], rtol=1e-9)


def test_the_ends():
    y, v = np.random.default_rng(1).normal(size=(3, 2)), np.array([1.0, 2.0, 4.0])
    shared = step(SelfFL(between=0), y, v)
    np.testing.assert_allclose(shared["weights"], np.array([4, 2, 1]) / 7)
    np.testing.assert_allclose(shared["personal"]["w"], np.tile((1 / v) @ y / (1 / v).sum(), (3, 1)), rtol=1e-12)
    alone = step(SelfFL(between=float("inf")), y, v)
    np.testing.assert_allclose(alone["personal"]["w"], y, rtol=1e-12)
    np.testing.assert_allclose(alone["weights"], 1 / 3)
    sure = step(SelfFL(between=0), y, np.zeros(3))
    np.testing.assert_allclose(sure["personal"]["w"], np.tile(y.mean(axis=0), (3, 1)), rtol=1e-12)
    one_sure = step(SelfFL(between=0), y, np.array([0.0, 1.0, 1.0]))
    np.testing.assert_allclose(one_sure["params"]["w"], y[0])


def test_the_estimate_and_that_shrinking_pays():
    errors = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        k, d, s2 = 8, 60, 1.0
        v = rng.uniform(0.3, 4.0, k)
        optima = 2.0 + np.sqrt(s2) * rng.normal(size=(k, d))
        y = optima + np.sqrt(v)[:, None] * rng.normal(size=(k, d))
        state = step(SelfFL(), y, v * d)  # sums over the coordinates
        scatter = ((y - y.mean(axis=0)) ** 2).sum() / (k - 1)
        assert state["between"] == pytest.approx(scatter - v.mean() * d, rel=1e-9)
        assert state["between"] / d == pytest.approx(s2, rel=0.6)
        errors.append([((state["personal"]["w"] - optima) ** 2).mean(), ((y.mean(0) - optima) ** 2).mean(), v.mean()])
    ours, fedavg, local = np.mean(errors, axis=0)
    assert ours < 0.85 * min(fedavg, local)


def test_fewer_steps_for_those_who_share():
    rule = SelfFL(between=1.0, least_steps=0.5)
    how = LocalTraining(epochs=2)
    before = rule.init({"w": np.zeros(1)}, 2)
    assert rule.local(before, 0, how) == how
    state = step(rule, [[1.0], [2.0]], [1.0, 0.0], steps=np.array([8, 8]))
    assert rule.local(state, 0, how).steps == 6  # 0.5 + 0.5 * 1/2 of 8
    assert rule.local(state, 1, how).steps == 8
    assert SelfFL().local(state, 0, how) == how


def test_the_variance_from_halves():
    setup = federation(clients=1, rounds=1, model="softmax", lr=0.1)
    data, rng = setup.clients[0], np.random.default_rng(0)
    how = LocalTraining(steps=20, batch_size=8, lr=0.1)
    ends, guesses = [], []
    for draw in range(30):
        own = data.take(rng.integers(len(data), size=64))
        job = Job(setup.model, setup.model.init(0), {}, own, how, {}, draw, 0, 0)
        report = Plain().train(job)
        ends.append(np.concatenate([np.ravel(report.params[n]) for n in sorted(report.params)]))
        guesses.append(half_variance(job, report.steps))
    true = ((np.stack(ends) - np.mean(ends, axis=0)) ** 2).sum() / 29
    assert np.mean(guesses) == pytest.approx(true, rel=0.4)
    single = Job(setup.model, setup.model.init(0), {}, data.take([0]), how, {}, 0, 0, 0)
    assert half_variance(single, 1) > 0


def test_what_the_rule_takes_for_a_buffer_is_no_part_of_the_variance():
    setup = federation(clients=1, rounds=1, model="softmax")
    job = Job(setup.model, setup.model.init(0), {}, setup.clients[0], setup.training, {}, 0, 0, 0)
    whole, weight, bias = (
        float(SelfFL(buffers=out).client.train(job).message["variance"]["update"])
        for out in ((), ("output.weight",), ("*.bias",))
    )
    assert 0 < weight < bias < whole == pytest.approx(weight + bias, rel=1e-12)


def test_it_shares_where_clients_are_alike_and_less_where_they_differ():
    """On digits it is nearer to local training where groups differ; FedAvg is better where nobody does, by little."""
    for seed in range(3):
        apart, alike = two_groups(seed), two_groups(seed, shift="none")
        run, accuracy = finish(apart, SelfFL(), seed)
        assert accuracy > finish(apart, "fedavg", seed)[1] + 0.05
        assert run.state["own"].mean() > 0.4
        run, accuracy = finish(alike, SelfFL(), seed)
        assert run.state["own"].mean() < 0.3
        assert accuracy > finish(alike, ALONE, seed)[1]


def test_bad_parameters_and_clients():
    for bad in ({"between": -1}, {"between": "some"}, {"least_steps": 0}, {"least_steps": 2}, {"start": "x"}):
        with pytest.raises(RuleError, match="SelfFL"):
            SelfFL(**bad)
    rule = SelfFL()
    with pytest.raises(RuleError, match="did not send it"):
        rule.step(rule.init({"w": np.zeros(1)}, 2), plain([[1.0], [2.0]]))
