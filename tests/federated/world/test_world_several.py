"""FedAST: several models on common clients, on one clock."""

import dataclasses

import numpy as np
import pytest
from clocks import Exponential, Fixed
from federations import federation, quadratics
from server_rounds import same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import training
from pluribus.federated.errors import SettingError
from pluribus.federated.seeding import derived, generator
from pluribus.federated.world.base import World
from pluribus.federated.world.several import FedAST, dispersion


def timed(setup, speeds):
    return dataclasses.replace(setup, world=World(speeds=speeds))


@pytest.mark.parametrize("seed", range(20))
def test_the_total_is_conserved_and_nobody_goes_without(seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 6))
    rule = FedAST(jobs=int(rng.integers(m, 20)))
    shares = rule.shared_out(rng.exponential(size=m) ** 3)
    assert sum(shares) == rule.jobs
    assert min(shares) >= 1
    assert FedAST(jobs=12).shared_out([3.0, 1.0, 2.0]) == [6, 2, 4]
    assert sum(rule.shared_out([0.0] * m)) == rule.jobs


def drawn(number, load, seed):
    """The client of a job of model 0, among those with the fewest jobs; its load grows."""
    least = [i for i, jobs in enumerate(load) if jobs == min(load)]
    client = least[int(generator(seed, "several.client", 0, number).integers(len(least)))]
    load[client] += 1
    return client


def local(setup, params, client, number, seed):
    how = derived(seed, "several.training", 0, number)
    return training.train(setup.model, params, setup.clients[client], setup.training, how).params


def test_one_model_and_one_job_is_asynchronous_averaging():
    """Each update is added as it comes; with one job it is the client's own model that goes on."""
    setup = timed(quadratics(clients=4, steps=2)[0], Fixed((1.0, 2.0, 3.0, 4.0)))
    (task,) = FedAST(jobs=1, per_step=1, period=0).run([setup], 5, seconds=12)
    w, now = {"w": np.zeros(2)}, 0.0
    for number in range(len(task.times)):
        client = drawn(number, [0] * 4, 5)
        now += client + 1
        assert task.times[number] == now
        w = local(setup, w, client, number, 5)
    np.testing.assert_allclose(task.params["w"], w["w"], rtol=1e-12)
    assert task.staleness == [0] * len(task.times)
    assert len(task.times) >= 3


def test_asynchronous_with_two_jobs_written_out():
    """b = 1, R = 2: two jobs under way, each update is added to the model as it is by then."""
    setup = timed(quadratics(clients=3, steps=1)[0], Fixed((1.0, 2.5, 4.2)))
    (task,) = FedAST(jobs=2, per_step=2, period=0).run([setup], 1, seconds=20)
    x, free, load, flights, number = [np.zeros(2)], np.zeros(3), [0] * 3, [], 0

    def send(now):
        nonlocal number
        client = drawn(number, load, 1)
        free[client] = max(free[client], now) + (1.0, 2.5, 4.2)[client]
        ended = local(setup, {"w": x[-1]}, client, number, 1)["w"]
        flights.append((free[client], number, client, len(x) - 1, ended - x[-1]))
        number += 1

    send(0.0)
    send(0.0)
    stale = []
    while min(flights)[0] <= 20:
        now = min(flight[0] for flight in flights)
        ended = sorted(flight for flight in flights if flight[0] == now)
        flights = [flight for flight in flights if flight[0] > now]
        for _, _, client, version, delta in ended:
            load[client] -= 1
            stale.append(len(x) - 1 - version)
            x.append(x[-1] + delta)
        for _ in ended:
            send(now)
    np.testing.assert_allclose(task.params["w"], x[-1], rtol=1e-10)
    assert task.staleness == stale
    assert max(stale) >= 1


def test_equal_delays_and_whole_buffers_are_synchronous_fedavg():
    """All of a cohort end together: FedAST with b = R steps as its rival does, and as FedAvg on those drawn."""
    setup = timed(quadratics(clients=40, steps=3)[0], Fixed((1.0,) * 40))
    seed = 7
    one, other = (
        FedAST(jobs=3, per_step=1, period=0, synchronous=wait).run([setup], seed, seconds=4)[0]
        for wait in (False, True)
    )
    w = np.zeros(2)
    for number in range(4):
        load, jobs = [0] * 40, range(3 * number, 3 * number + 3)
        ends = [local(setup, {"w": w}, drawn(k, load, seed), k, seed)["w"] for k in jobs]
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(one.params["w"], w, rtol=1e-12)
    assert one.times == other.times == [1, 2, 3, 4]
    np.testing.assert_array_equal(one.params["w"], other.params["w"])


def two_tasks(seed):
    """Digits by a network and by logistic regression, a quicker job, on the same twelve machines."""
    network = federation(seed, clients=12, model="mlp:16", partition="dirichlet:1")
    logistic = federation(seed, clients=12, model="softmax", partition="dirichlet:1")
    return [timed(network, Exponential(4.0)), timed(logistic, Exponential(1.0))]


@pytest.mark.parametrize("seed", range(3))
def test_both_tasks_are_through_before_the_synchronous_schedule(seed):
    setups = two_tasks(seed)
    last = {
        wait: max(
            task.seconds_to(0.75)
            for task in FedAST(jobs=8, per_step=2, period=40, synchronous=wait).run(setups, seed, seconds=100)
        )
        for wait in (False, True)
    }
    assert last[False] < last[True]


def test_the_same_seed_the_same_bits():
    setups, rule = two_tasks(1), FedAST(jobs=8, period=40)
    one, other = rule.run(setups, 1, seconds=30), rule.run(setups, 1, seconds=30)
    for a, b in zip(one, other, strict=True):
        same_bits(a.params, b.params)
        assert a.times == b.times


def test_jobs_go_to_the_model_whose_updates_disagree():
    apart = quadratics(clients=6, steps=1, lr=0.1)[0]
    alike = dataclasses.replace(apart, clients=apart.clients[:1] * 6)
    setups = [timed(setup, Exponential(1.0)) for setup in (alike, apart)]
    tasks = FedAST(jobs=8, per_step=2, period=20).run(setups, 0, seconds=60)
    assert tasks[1].active > 4
    assert sum(task.active for task in tasks) == 8
    assert [task.buffer for task in tasks] == [-(-task.active // 2) for task in tasks]
    fixed = FedAST(jobs=8, per_step=2, period=0).run(setups, 0, seconds=60)
    assert [task.active for task in fixed] == [4, 4]


def test_a_client_with_jobs_does_them_in_turn():
    setup = timed(quadratics(clients=1, steps=1)[0], Fixed((2.0,)))
    (task,) = FedAST(jobs=3, per_step=3, period=0).run([setup], 0, seconds=9)
    assert task.times == [2, 4, 6, 8]
    assert task.staleness == [0, 1, 2, 2]


class Measured:
    """Logistic regression beside a variance that every client measures as a thousandth, coming from one."""

    def __init__(self, model):
        self.model, self.predict, self.probabilities = model, model.predict, model.probabilities

    def init(self, seed):
        return {**self.model.init(seed), "norm.running_var": np.ones(1)}

    def loss_and_grad(self, params, batch):
        return self.model.loss_and_grad(params, batch)

    def loss_grad_and_buffers(self, params, batch):
        return *self.loss_and_grad(params, batch), {"norm.running_var": np.full(1, 1e-3)}


def test_a_variance_stays_between_measured_ones_however_stale_and_is_no_part_of_the_dispersion():
    """Six jobs from one start: summed differences would make it -5."""
    setup = federation(0, clients=6, model="softmax")
    setup = timed(dataclasses.replace(setup, model=Measured(setup.model)), Exponential(1.0))
    (task,) = FedAST(jobs=6, per_step=6, period=0, server_lr=1.5).run([setup], 0, seconds=3)
    assert max(task.staleness) > 3
    np.testing.assert_allclose(task.params["norm.running_var"], 1e-3, rtol=1e-9)
    assert all(update.keys() == {"output.weight", "output.bias"} for update in task.recent)


def test_an_update_with_nan_is_left_out():
    """Of a client whose samples overflow; the others' steps go on."""
    setup = timed(quadratics(clients=3, steps=1)[0], Fixed((1.0, 1.0, 1.0)))
    broken = dataclasses.replace(setup.clients[0], x=np.full_like(setup.clients[0].x, 1e300))
    setup = dataclasses.replace(setup, clients=(broken, *setup.clients[1:]))
    (task,) = FedAST(jobs=3, per_step=1, period=0).run([setup], 0, seconds=2)
    assert len(task.times) == 2
    assert np.isfinite(task.params["w"]).all()
    assert task.params["w"].any()


class FirstLost:
    """Each client's first job never answers."""

    def lost(self, client, job, seed):
        return job == 0


def test_a_lost_job_makes_room_and_no_step():
    setup = dataclasses.replace(quadratics(clients=1, steps=1)[0], world=World(losses=FirstLost()))
    (task,) = FedAST(jobs=1, per_step=1, period=0).run([setup], 5, seconds=3)
    assert task.times == [2, 3]
    start = {"w": np.zeros(2)}
    first = local(setup, start, 0, 1, 5)
    np.testing.assert_allclose(task.params["w"], local(setup, first, 0, 2, 5)["w"], rtol=1e-12)


def test_dispersion():
    updates = [{"a": np.array([3.0, 0.0])}, {"a": np.array([1.0, 2.0])}]
    assert dispersion(updates) == pytest.approx(np.sqrt(2 / 5))
    assert dispersion([{"a": np.zeros(2)}]) == 0


def test_settings_that_mean_nothing():
    setup, *_ = quadratics(clients=2)
    with pytest.raises(SettingError, match="a job for each model"):
        FedAST(jobs=1).run([setup, setup], 0, seconds=1)
    with pytest.raises(SettingError, match="number of clients"):
        FedAST().run([setup, quadratics(clients=3)[0]], 0, seconds=1)
    with pytest.raises(SettingError, match="at least one"):
        FedAST().run([], 0, seconds=1)
    for bad in ({"jobs": 0}, {"per_step": 0}, {"period": -1}, {"server_lr": 0}):
        with pytest.raises(RuleError, match=next(iter(bad))):
            FedAST(**bad)
