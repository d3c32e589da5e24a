import numpy as np
import pytest
from server_rounds import plain

from pluribus.core.errors import RuleError
from pluribus.federated.server import FedAU, FedAvg


class ByTheList:
    """Every gap of one client in a list, as the authors' code keeps them."""

    def __init__(self, cutoff):
        self.gaps, self.absent, self.cutoff = [], 0, cutoff

    def round(self, comes):
        weight = np.mean(self.gaps) if self.gaps else 1.0
        if comes:
            self.gaps.append(self.absent + 1)
            self.absent = 0
            return weight
        self.absent += 1
        if self.absent >= self.cutoff:
            self.gaps.append(self.absent)
            self.absent = 0
        return np.nan


def walk(rule, comes, delta=1.0):
    """States of the given participation, shape (rounds, N), each client sending ``delta``."""
    n = comes.shape[1]
    state = rule.init({"w": np.zeros(1)}, n)
    for here in comes:
        clients = np.flatnonzero(here)
        state = rule.step(state, plain([[delta]] * len(clients), clients=clients, n_clients=n))
        yield state


@pytest.mark.parametrize("cutoff", [1, 2, 5, 50])
def test_weights_are_means_of_past_gaps(cutoff):
    comes = np.random.default_rng(0).random((200, 4)) < [0.05, 0.1, 0.3, 0.6]
    assert not comes.any(axis=1).all()
    clients = [ByTheList(cutoff) for _ in range(4)]
    before = 0.0
    for here, state in zip(comes, walk(FedAU(cutoff=cutoff), comes), strict=True):
        expected = np.array([client.round(came) for client, came in zip(clients, here, strict=True)])
        if here.any():
            np.testing.assert_allclose(state["weights"] * 4, expected, rtol=1e-12)
            now = float(state["params"]["w"][0])
            np.testing.assert_allclose(now - before, np.nansum(expected) / 4, rtol=1e-9)
            before = now
        assert [len(client.gaps) for client in clients] == state["counts"].tolist()


def test_whoever_is_always_there_counts_one_and_the_rule_is_fedavg():
    deltas = np.random.default_rng(1).normal(size=(5, 3, 4))
    rule, average = FedAU(), FedAvg(weighting="uniform")
    state, other = rule.init({"w": np.zeros(4)}, 3), average.init({"w": np.zeros(4)}, 3)
    for each in deltas:
        state, other = rule.step(state, plain(each)), average.step(other, plain(each))
        np.testing.assert_allclose(state["weights"], 1 / 3)
        np.testing.assert_allclose(state["params"]["w"], other["params"]["w"], rtol=1e-12)


def test_weights_converge_to_one_over_the_probability():
    p = np.array([0.1, 0.25, 0.5, 1.0])
    comes = np.random.default_rng(2).random((2000, 4)) < p
    *_, state = walk(FedAU(cutoff=10_000), comes)
    np.testing.assert_allclose(state["means"], 1 / p, rtol=0.15)


def test_a_dropped_participant_did_not_come():
    rule = FedAU()
    state = rule.init({"w": np.zeros(1)}, 2)
    state = rule.step(state, plain([[1.0], [np.nan]]))
    assert state["gaps"].tolist() == [0, 1]
    assert state["counts"].tolist() == [1, 0]


def fixed_point(rule, rounds):
    """Where two clients with optima 0 and 1, present with probability 0.1 and 0.9, pull the model on average."""
    comes = np.random.default_rng(4).random((rounds, 2)) < [0.1, 0.9]
    optima = np.array([0.0, 1.0])
    state, tail = rule.init({"w": np.array([0.5])}, 2), []
    for here in comes:
        clients = np.flatnonzero(here)
        x = state["params"]["w"]
        state = rule.step(state, plain([0.02 * (optima[i] - x) for i in clients], clients=clients, n_clients=2))
        tail.append(float(x[0]))
    return np.mean(tail[rounds // 3 :])


def test_on_two_quadratics_only_fedau_ends_at_the_equal_weight_optimum():
    # The biased averages have closed forms: 1/N weighs by p, the participants' mean by who came with whom.
    assert fixed_point(FedAU(cutoff=100), 2500) == pytest.approx(0.5, abs=0.06)
    assert fixed_point(FedAvg(weighting="uniform"), 1000) == pytest.approx(0.855 / 0.91, abs=0.04)
    assert fixed_point(FedAvg(weighting="all"), 1000) == pytest.approx(0.9, abs=0.04)


def test_bad_options():
    with pytest.raises(RuleError, match="cutoff must be a whole number of at least 1"):
        FedAU(cutoff=0)
