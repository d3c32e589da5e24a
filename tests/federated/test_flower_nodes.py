"""Flower: which nodes are awaited and known, and what rules may ask of them."""

from __future__ import annotations

import numpy as np
import pytest
from flower_federation import (
    Memory,
    failing,
    honest,
    model,
    one_round,
    record,
    reply,
)

from pluribus.core.errors import RuleError
from pluribus.federated.flower import PluribusStrategy, by_node, strategy

pytestmark = pytest.mark.usefixtures("identity")


# --- nodes ----------------------------------------------------------------------------------------------------------


def test_as_many_nodes_are_awaited_as_the_rule_needs():
    assert PluribusStrategy("krum:f=2").min_available_nodes == 7
    assert PluribusStrategy("krum:f=2").min_train_nodes == 7
    assert PluribusStrategy("krum:f=2", min_train_nodes=9).min_train_nodes == 9
    with pytest.raises(RuleError, match=r"at least 7 participants.*2 clients"):
        one_round(PluribusStrategy("krum:f=2", min_train_nodes=2, min_available_nodes=2), {1: honest, 2: honest})


def test_all_that_are_awaited_are_asked(monkeypatch):
    clients = {}
    monkeypatch.setattr("time.sleep", lambda seconds: clients.setdefault(len(clients) + 1, honest))
    flower = PluribusStrategy("median", min_available_nodes=4)
    _, metrics = one_round(flower, clients)
    assert sorted(by_node(metrics)) == [1, 2, 3, 4]  # Flower's FedAvg asks two of the four


@pytest.mark.parametrize("rule", ["fedau:cutoff=9", "fedavg:weighting=all", "median", "fedadam"])
def test_nodes_that_join_later(rule):
    flower = PluribusStrategy(rule)
    arrays, _ = one_round(flower, {5: honest, 8: honest})
    arrays, metrics = one_round(flower, {5: honest, 8: failing, 2: honest}, arrays, 2)
    assert len(flower.state["weights"]) == 3
    assert sorted(by_node(metrics)) == [2, 5]
    if rule.startswith("fedau"):
        # 5 came twice (gaps of 1 and 1), 8 once and is away since, 2 has just come for the first time.
        assert flower.state["gaps"].tolist() == [0, 1, 0]
        assert flower.state["counts"].tolist() == [2, 1, 1]
    if rule == "fedavg:weighting=all":
        assert by_node(metrics) == pytest.approx({5: 1 / 3, 2: 1 / 3})


class Counting:
    """A server rule of one's own, with the least that one needs: keeps each node's number, and sees rounds."""

    name = "counting"

    def __init__(self):
        self.seen = []

    def init(self, params, n_clients):
        return {"params": params, "weights": np.full(n_clients, np.nan), "own": 10 * np.arange(n_clients)}

    def step(self, state, round):
        self.seen.append((round.number, round.clients, round.sizes.tolist(), round.n_clients, round.seed))
        return state


def test_a_server_rule_of_ones_own():
    rule = Counting()
    flower = PluribusStrategy(rule, seed=5)
    arrays, metrics = one_round(flower, {8: honest, 5: honest})
    assert dict(metrics) == {"loss": 1.0, "pluribus/status": 0}
    one_round(flower, {8: honest, 5: failing, 2: honest}, arrays, 2)
    assert flower.state["own"].tolist() == [0, 10, 20]
    again = PluribusStrategy(rule)
    again.load_state_dict(flower.state_dict())
    one_round(again, {2: honest, 5: honest}, arrays, 1)
    # Nodes 5, 8, 2 are clients 0, 1, 2, and rounds are counted on after a state was loaded.
    assert rule.seen == [
        (0, (0, 1), [10, 10], 2, 5),
        (1, (2, 1), [10, 10], 3, 5),
        (2, (2, 0), [10, 10], 3, 0),
    ]


# --- what rules may ask for -----------------------------------------------------------------------------------------


def test_labels_for_feddisco():
    def client(counts):
        return lambda m: reply(m, {"w": np.array([1.0 * m.metadata.dst_node_id])}, {"num-examples": 4, **counts})

    even, skewed = client({"label-counts": [2, 2]}), client({"label-counts": [4, 0]})
    _, metrics = one_round(PluribusStrategy("feddisco"), {1: even, 2: skewed}, record({"w": np.zeros(1)}))
    assert by_node(metrics) == pytest.approx({1: 0.6 / 0.7, 2: 0.1 / 0.7})
    assert "label-counts" not in metrics
    with pytest.raises(RuleError, match="label_counts"):
        one_round(PluribusStrategy("feddisco"), {1: even, 2: client({})}, record({"w": np.zeros(1)}))


def test_a_proxy_set_for_fedlaw():
    def proxy(params):
        return float(((params["w"] - 1) ** 2).sum()), {"w": 2 * (params["w"] - 1)}

    clients = {n: lambda m, value=value: reply(m, {"w": np.full(2, value)}) for n, value in ((1, 1.0), (2, -5.0))}
    _, metrics = one_round(PluribusStrategy("fedlaw:gamma=1", proxy=proxy), clients, record({"w": np.zeros(2)}))
    assert by_node(metrics)[1] > 0.8


# --- waiting --------------------------------------------------------------------------------------------------------


class Slow(Memory):
    """A grid on which nodes take their time: ``seconds[node]`` on a clock that stands still but for ``sleep``."""

    def __init__(self, clients, seconds, monkeypatch):
        super().__init__(clients)
        self.seconds, self.now, self.sent = seconds, 0.0, {}
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds

    def push_messages(self, messages):
        names = [f"{self.now}-{message.metadata.dst_node_id}" for message in messages]
        for name, message in zip(names, messages, strict=True):
            message.metadata.__dict__["_message_id"] = name
            self.sent[name] = (message, self.now + self.seconds[message.metadata.dst_node_id])
        return names

    def pull_messages(self, message_ids):
        return Memory.send_and_receive(
            self, [self.sent[i][0] for i in sorted(message_ids) if self.sent[i][1] <= self.now]
        )


def test_a_round_ends_a_while_after_the_quorum(monkeypatch):
    clients = {1: honest, 2: honest, 3: failing, 4: honest, 5: honest}
    grid = Slow(clients, {1: 0.0, 2: 5.0, 3: 1.0, 4: 8.0, 5: 1e9}, monkeypatch)
    options = {"min_train_nodes": 2, "fraction_evaluate": 0.0}
    result = strategy("median", grace=4.0, **options).start(grid, record(model()), num_rounds=1, timeout=100.0)
    assert grid.now == pytest.approx(9.0)  # two have answered without error after 5 seconds
    assert by_node(result.train_metrics_clientapp[1], "left-out") == {3: 2, 5: 1}
    assert sorted(by_node(result.train_metrics_clientapp[1])) == [1, 2, 4]
    result = strategy("median", grace=4.0, **options | {"min_train_nodes": 5}).start(
        grid, record(model()), num_rounds=1, timeout=20.0
    )
    assert grid.now == pytest.approx(29.0)  # no quorum: the timeout
    assert sorted(by_node(result.train_metrics_clientapp[1])) == [1, 2, 4]
