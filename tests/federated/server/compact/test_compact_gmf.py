from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from federations import federation
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.server import GMF, FedAvg
from pluribus.federated.server.compact.gmf import GMFClient, fuse
from pluribus.federated.training import LocalTraining


def test_one_tensor_written_out():
    rng = np.random.default_rng(0)
    update, everybody, momentum, owed = rng.normal(size=(4, 3, 4))
    split = fuse(update, everybody, 0.3, density=0.25, decay=0.6, momentum=momentum, owed=owed)
    u = 0.6 * momentum + update
    v = owed + u
    z = np.abs(0.7 * v / np.linalg.norm(v) + 0.3 * everybody / np.linalg.norm(everybody))
    largest = set(sorted(np.ndindex(3, 4), key=lambda place: -z[place])[:3])
    for place in np.ndindex(3, 4):
        chosen = place in largest
        assert split.sent[place] == (v[place] if chosen else 0)
        assert split.owed[place] == (0 if chosen else v[place])
        assert split.momentum[place] == (0 if chosen else u[place])
    np.testing.assert_array_equal(split.sent + split.owed, v)


def test_without_fusion_the_choice_is_that_of_the_largest_and_ties_go_to_the_earlier():
    split = fuse(np.array([1.0, -2.0, 2.0, 2.0]), np.array([9.0, 0.0, 0.0, 0.0]), 0.0, density=0.5)
    np.testing.assert_array_equal(split.mask, [False, True, True, False])
    fused = fuse(np.array([1.0, -2.0, 2.0, 2.0]), np.array([9.0, 0.0, 0.0, 0.0]), 0.9, density=0.25)
    np.testing.assert_array_equal(fused.mask, [True, False, False, False])


def test_a_clients_rounds_owe_what_was_not_sent():
    setup = federation(clients=3)
    params = setup.model.init(0)
    told = {"momentum": {n: np.zeros_like(v) for n, v in params.items()}, "tau": np.array(0.0)}
    job = Job(setup.model, params, told, setup.clients[0], LocalTraining(), {}, seed=1, round=0, client=0)
    client = GMF(density=0.1).client
    first = client.train(job)
    whole = job.train().params
    for name in params:
        sent = first.params[name] - params[name]
        assert np.count_nonzero(sent) <= np.ceil(0.1 * sent.size)
        np.testing.assert_allclose(sent + first.memory["owed"][name], whole[name] - params[name], atol=1e-7)
    second = client.train(replace(job, memory=first.memory))
    name = "hidden.weight"
    total = second.params[name] - params[name] + second.memory["owed"][name]
    np.testing.assert_allclose(total, whole[name] - params[name] + first.memory["owed"][name], atol=1e-6)


def test_all_coordinates_and_no_momentum_is_fedavg():
    setup = federation(clients=3)
    one = simulate(setup, GMF(density=1.0, momentum=0.0, tau=0.4), seed=1, rounds=2).state["params"]
    other = simulate(setup, FedAvg(), seed=1, rounds=2).state["params"]
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=1e-6)


def test_the_servers_half_written_out_and_the_ramp():
    rule = GMF(beta=0.5, tau=0.4, ramp=2)
    state = rule.init({"w": np.zeros(2)}, 2)
    assert [float(rule.fusion(t)) for t in range(4)] == [0.0, 0.2, 0.4, 0.4]
    for _ in range(2):
        state = rule.step(state, plain([[1.0, 0.0], [0.0, 3.0]], sizes=[1, 3]))
    np.testing.assert_allclose(state["params"]["w"], [0.5, 4.5])
    np.testing.assert_allclose(state["momentum"]["w"], [0.25 * 1.5, 2.25 * 1.5])
    assert float(rule.offer(state, 0).told["tau"]) == 0.4


@dataclass(frozen=True)
class Watched(GMF):
    """Keeps how large the union of the clients' choices is, against one client's."""

    key = "watched_gmf"
    seen: list = field(default_factory=list, compare=False)

    def advance(self, state, round):
        masks = [np.concatenate([(u[n] != 0).ravel() for n in sorted(u)]) for u in round.updates]
        self.seen.append(np.logical_or.reduce(masks).sum() / np.mean([mask.sum() for mask in masks]))
        return super().advance(state, round)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_choices_overlap_more_the_more_everybodys_direction_decides(seed):
    setup = federation(seed, clients=10, partition="dirichlet:0.1", epochs=2, model="mlp:16")
    unions = []
    for tau in (0.0, 0.5):
        rule = Watched(tau=tau, seen=[])
        simulate(setup, rule, seed=seed, rounds=10, eval_every=10)
        unions.append(np.mean(rule.seen))
    assert unions[1] < 0.9 * unions[0]


def test_bytes_and_bad_input():
    update = {"w": np.array([0.0, 1.0, 0.0, 2.0] * 4, dtype=np.float32), "n": np.array(3)}
    assert GMFClient.upload_bytes(update, {}) == 2 + 8 * 4 + 8
    assert GMFClient.upload_bytes({"w": np.ones(16, np.float32)}, {}) == 64  # whole is less
    for bad in ({"density": 0.0}, {"density": 2.0}, {"tau": 1.0}, {"ramp": -1}):
        with pytest.raises(RuleError, match=next(iter(bad))):
            GMF(**bad)
