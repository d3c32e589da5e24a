from dataclasses import dataclass

import numpy as np
import pytest
from federations import federation
from server_rounds import plain, same_bits

from pluribus.core.errors import RuleError
from pluribus.federated import simulate
from pluribus.federated.clients.base import Job
from pluribus.federated.server import FRL, FedAvg
from pluribus.federated.server.compact.frl import FRLClient, masked, ranks_of, score_of, vote
from pluribus.federated.training import LocalTraining, batches


def ranking(rng, size):
    return rng.permutation(size)


def test_ranks_votes_and_masks_written_out():
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(ranks_of(np.array([[0.3, -1.0], [0.3, 2.0]])), [[1, 0], [2, 3]])
    rankings = [ranking(rng, 12).reshape(3, 4) for _ in range(5)]
    tally = [[sum(int(r[i, j]) for r in rankings) for j in range(4)] for i in range(3)]
    places = sorted((tally[i][j], 4 * i + j) for i in range(3) for j in range(4))
    expected = np.empty(12, dtype=int)
    for rank, (_, place) in enumerate(places):
        expected[place] = rank
    np.testing.assert_array_equal(vote(rankings), expected.reshape(3, 4))
    for one in rankings:
        np.testing.assert_array_equal(vote([one]), one)
        np.testing.assert_array_equal(vote([one, one, one]), one)
        np.testing.assert_array_equal(ranks_of(score_of(one, np.zeros(1))), one)
    kept = masked({"w": np.full((3, 4), 2.0)}, {"w": rankings[0]}, 0.25)["w"]
    np.testing.assert_array_equal(kept, np.where(rankings[0] >= 9, 2.0, 0.0))


def test_a_clients_training_written_out():
    setup = federation(clients=3, model="softmax")
    rule = FRL(keep=0.3, score_lr=0.7)
    state = rule.init(setup.model.init(0), 3)
    offer = rule.offer(state, 0)
    how = LocalTraining(epochs=1, batch_size=64, momentum=0.5)
    report = rule.client.train(
        Job(setup.model, offer.params, offer.told, setup.clients[0], how, {}, seed=9, round=0, client=0)
    )
    edges, rank = state["edges"]["output.weight"], state["rank"]["output.weight"]
    scores = ((2 * (rank + 0.5) / rank.size - 1) / 8).astype(edges.dtype)  # +- 1 / sqrt(64)
    velocity = np.zeros_like(scores)
    for batch in batches(setup.clients[0], how, 9):
        cut = np.sort(scores, axis=None)[-round(0.3 * scores.size)]
        weights = {"output.weight": edges * (scores >= cut), "output.bias": offer.params["output.bias"]}
        slope = setup.model.loss_and_grad(weights, batch)[1]["output.weight"]
        velocity = 0.5 * velocity + slope * edges
        scores = scores - 0.7 * velocity
    np.testing.assert_array_equal(report.message["rank"]["output.weight"], ranks_of(scores))
    same_bits(report.params, offer.params)
    assert set(np.unique(np.abs(edges))) == {np.float32(np.sqrt(2 / (0.3 * 64)))}


def a_round(rule, state, votes, updates=None):
    names = list(state["rank"])
    told = [{"rank": {names[0]: vote_}} for vote_ in votes]
    from dataclasses import replace

    zero = {name: np.zeros_like(value) for name, value in state["params"].items()}
    return replace(plain(np.zeros((len(votes), 1))), updates=updates or [zero] * len(votes), messages=told)


def test_updates_of_any_size_change_nothing_and_a_vote_moves_a_tally_by_d_at_most():
    rng = np.random.default_rng(1)
    rule = FRL()
    state = rule.init({"w": np.zeros((4, 5)), "b": np.ones(4)}, 4)
    votes = [ranking(rng, 20).reshape(4, 5) for _ in range(4)]
    honest = rule.step(state, a_round(rule, state, votes))
    huge = [{name: np.full(value.shape, 1e6) for name, value in state["params"].items()} for _ in votes]
    scaled = rule.step(state, a_round(rule, state, votes, huge))
    same_bits(scaled["params"], honest["params"])
    np.testing.assert_array_equal(honest["params"]["b"], np.ones(4))
    without = sum(votes[:3])
    for _ in range(20):
        tally = without + ranking(rng, 20).reshape(4, 5)
        assert np.abs(tally - (without + votes[3])).max() <= 19


def test_who_sends_no_ranking_is_left_out():
    rng = np.random.default_rng(2)
    rule = FRL()
    state = rule.init({"w": np.zeros((4, 5))}, 5)
    good = [ranking(rng, 20).reshape(4, 5) for _ in range(2)]
    bad = [good[0] * 1000, good[0].astype(float), np.zeros((4, 5), dtype=int)]
    both = rule.step(state, a_round(rule, state, [*good, *bad]))
    np.testing.assert_array_equal(both["rank"]["w"], vote(good))
    np.testing.assert_array_equal(both["weights"], [0.5, 0.5, 0, 0, 0])
    with pytest.raises(RuleError, match="no participant sent a ranking"):
        rule.step(state, a_round(rule, state, [bad[0]] * 5))
    with pytest.raises(RuleError, match=r"FRL\(\)\.client"):
        rule.step(state, plain([np.zeros((4, 5))] * 5))


@dataclass(frozen=True)
class Liars:
    """Clients of which the first few send their ranking upside down."""

    honest: FRLClient
    liars: int

    def train(self, job):
        report = self.honest.train(job)
        if job.client >= self.liars:
            return report
        return report._replace(message={"rank": {n: v.size - 1 - v for n, v in report.message["rank"].items()}})


@dataclass(frozen=True)
class Attacked(FRL):
    key = "attacked_frl"
    liars: int = 0

    @property
    def client(self):
        return Liars(super().client, self.liars)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_fifth_of_reversed_rankings_costs_less_than_a_fifth_of_scaled_updates_costs_fedavg(seed):
    def end(rule, **settings):
        setup = federation(seed, clients=10, epochs=2, model="mlp:32", **settings)
        return simulate(setup, rule, seed=seed, rounds=10, eval_every=10).history.accuracy[-1]

    ours = end(Attacked()) - end(Attacked(liars=2))
    theirs = end(FedAvg()) - end(FedAvg(), attack="sign_flip:2:10")
    assert end(Attacked()) > 0.6
    assert ours < theirs


def test_bytes_and_bad_input():
    message = {"rank": {"w": np.arange(20), "v": np.arange(16)}}
    assert FRLClient.upload_bytes({}, message) == 13 + 8  # 20 times 5 bits, 16 times 4
    for bad in ({"keep": 0.0}, {"keep": 1.0}, {"score_lr": 0.0}, {"seed": -1}):
        with pytest.raises(RuleError, match=next(iter(bad))):
            FRL(**bad)
    with pytest.raises(RuleError, match="needs matrices"):
        FRL().init({"b": np.zeros(3)}, 2)
