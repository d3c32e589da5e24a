"""Flower: clients that follow the server's rule, with what it tells them, what they send beside and what they keep."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from flower_federation import (
    ArrayRecord,
    ConfigRecord,
    Memory,
    RecordDict,
    context_of,
    honest,
    model,
    one_round,
    record,
    reply,
)

from pluribus.core.errors import ContributionError, PluribusError, RuleError
from pluribus.federated import server
from pluribus.federated.clients import Plain
from pluribus.federated.data import Dataset
from pluribus.federated.flower import PluribusStrategy, by_node, client_app, record_of, strategy, tree_of
from pluribus.federated.flower_offers import MESSAGE, packed, unpacked
from pluribus.federated.models import MLP
from pluribus.federated.participation import everyone
from pluribus.federated.seeding import derived
from pluribus.federated.server.base import Offer
from pluribus.federated.server.rule import Server, Step, mean
from pluribus.federated.setup import Setup
from pluribus.federated.simulation import simulate
from pluribus.federated.training import LocalTraining

HOW = LocalTraining(epochs=2, batch_size=8, lr=0.1)
MODEL = MLP(4, 6, 3, dtype="float32")  # some rules need a hidden layer


pytestmark = pytest.mark.usefixtures("identity")


def samples(node):
    rng = np.random.default_rng(node)
    y = rng.integers(0, 3, size=20 + node)
    return Dataset(np.eye(4)[y] + rng.normal(size=(len(y), 4)), y, n_classes=3, name=f"of {node}")


def federation():
    """The same clients in a simulation."""
    clients = tuple(map(samples, range(3)))
    counts = np.stack([client.counts for client in clients])
    return Setup(MODEL, HOW, clients, samples(9), everyone(3), counts, proxy=samples(8))


class Nodes(Memory):
    """Nodes 0, 1 and 2, each with a client app and a Context of its own."""

    def __init__(self, app, n=3):
        self.contexts = {node: context_of(node) for node in range(n)}
        super().__init__({node: lambda m: app(m, self.contexts[m.metadata.dst_node_id]) for node in range(n)})


def app_of(**options):
    return client_app(MODEL, lambda context: samples(context.node_id), **options)


def start(seed=5):
    """What a simulation starts from."""
    return record_of(MODEL.init(derived(seed, "simulation.init")))


RULES = sorted(server.registered())


@pytest.mark.parametrize("text", [*RULES, "median", "nnm+trimmed_mean"])
def test_every_rule_does_in_flower_what_it_does_in_the_simulation(text, tmp_path):
    """The same bits; and again with the server ended after each round and started from its checkpoint."""
    rule, setup = server.parse(text), federation()
    if getattr(rule, "rates", "") == "told":  # Flower knows of none
        rule = replace(rule, rates="estimated")
    options = {"how": HOW, "seed": 5, "proxy": setup.objective(), "fraction_evaluate": 0.0, "min_train_nodes": 3}
    options["min_available_nodes"] = 3
    if rule.needs - {"losses"}:
        with pytest.raises(RuleError, match="use it in `pluribus federate`"):
            strategy(rule, **options)
        return
    whole, first = strategy(rule, **options), tree_of(start())
    grid = Nodes(app_of(label_counts=True))
    try:
        expected = simulate(setup, rule, 5, rounds=3).state
    except RuleError as refused:  # this model or so few clients
        with pytest.raises(RuleError, match=re.escape(str(refused))):
            whole.start(grid, start(), num_rounds=3)
        return
    whole.start(grid, start(), num_rounds=3)
    moved = any(not np.array_equal(expected["params"][name], value) for name, value in first.items())
    assert moved or rule.personal_models  # some of which share no parameters
    grid = Nodes(app_of(label_counts=True))
    for done in (1, 2, 3):
        broken = strategy(rule, checkpoint=tmp_path / "state.safetensors", resume=True, **options)
        broken.start(grid, start(), num_rounds=done)
    for found in (whole.state, broken.state):
        assert found.keys() == expected.keys()
        for name, value in expected["params"].items():
            np.testing.assert_array_equal(found["params"][name], value)
        np.testing.assert_array_equal(found["weights"], expected["weights"])


def test_what_a_client_keeps_outlives_it_in_a_file(tmp_path):
    def run(fresh, **options):
        grid, flower = Nodes(app_of(**options)), strategy("scaffold", how=HOW, fraction_evaluate=0.0)
        for _ in range(3):
            if fresh:
                grid.contexts = {node: context_of(node) for node in grid.contexts}
            flower.start(grid, start() if flower.rounds == 0 else flower.arrays(), num_rounds=1)
        return tree_of(flower.arrays())["output.weight"]

    kept = run(fresh=False)
    assert not np.array_equal(run(fresh=True), kept)  # the Context is lost, and the control variates with it
    in_files = {"memory": lambda context: tmp_path / f"{context.node_id}.safetensors"}
    np.testing.assert_array_equal(run(fresh=True, **in_files), kept)
    (tmp_path / "1.safetensors").write_bytes(b"rubbish")
    grid = Nodes(app_of(**in_files))
    messages = strategy("scaffold", how=HOW).configure_train(1, start(), ConfigRecord(), grid)
    with pytest.raises(Exception, match="holds no memory of a client"):
        grid.clients[1](next(m for m in messages if m.metadata.dst_node_id == 1))


def test_how_the_client_trains_is_the_servers_word_then_its_own_then_the_configs():
    def trained(config, **options):
        flower = strategy("fedavg", fraction_evaluate=0.0, **options.pop("server", {}))
        return flower.start(Nodes(app_of(**options)), start(), num_rounds=1, train_config=config).arrays["output.bias"]

    def config():
        return ConfigRecord({"epochs": 2, "batch_size": 8, "lr": 0.1, "note": "of one's own"})

    other = LocalTraining(lr=0.01)
    expected = trained(ConfigRecord(), server={"how": HOW}).data
    assert trained(config()).data == expected
    assert trained(ConfigRecord(), how=HOW).data == expected
    assert trained(config(), server={"how": HOW}, how=other).data == expected
    assert trained(config(), how=other).data != expected


def test_evaluation_on_the_nodes_own_samples():
    flower = strategy("fedavg", how=HOW)
    result = flower.start(Nodes(app_of()), start(), num_rounds=2)
    found = result.evaluate_metrics_clientapp[2]
    params, sizes = tree_of(result.arrays), [len(samples(i)) for i in range(3)]
    right = sum(int((MODEL.predict(params, samples(i).x) == samples(i).y).sum()) for i in range(3))
    assert found["accuracy"] == pytest.approx(right / sum(sizes))
    assert found["loss"] > 0


def test_a_method_of_ones_own_and_a_rule_that_nobody_knows():
    @dataclass(frozen=True)
    class Own(server.FedAvg):
        key = "own"

    grid = Nodes(app_of())
    (message, *_) = strategy(Own(), how=HOW).configure_train(1, start(), ConfigRecord(), grid)
    with pytest.raises(Exception, match="give client_app its method="):
        grid.clients[message.metadata.dst_node_id](message)
    arrays, _ = one_round(strategy(Own(), how=HOW), Nodes(app_of(method=Plain())), start())
    expected, _ = one_round(strategy("fedavg", how=HOW), Nodes(app_of()), start())
    assert arrays["output.bias"].data == expected["output.bias"].data


# --- what a rule may ask --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking(Server):
    """Keeps what a round told; each client starts from a model of its own."""

    key: ClassVar[str] = "asking"
    needs: ClassVar[frozenset[str]] = frozenset({"losses"})
    personal_models: ClassVar[bool] = True

    def remember(self, params, n_clients):
        return {"pairs": np.zeros((n_clients, n_clients)), "deep": {"losses": np.zeros(n_clients)}}

    def offer(self, state, client):
        return Offer(self.model_of(state, client), {"of": {"you": np.array(client)}})

    def model_of(self, state, client):
        return {name: value + np.float32(client) for name, value in state["params"].items()}

    def advance(self, state, round):
        losses = state["deep"]["losses"].copy()
        losses[list(round.clients)] = round.losses
        assert round.steps.tolist() == [HOW.planned_steps(len(samples(i))) for i in round.clients]
        counted = np.full(len(round.clients), 1 / len(round.clients))
        pairs = state["pairs"].copy()
        pairs[np.ix_(round.clients, round.clients)] += 1
        moved = self.moved(state["params"], mean(round, counted))
        return Step(moved, counted, {"pairs": pairs, "deep": {"losses": losses}})


def test_losses_models_of_ones_own_and_nodes_that_join(tmp_path):
    grid = Nodes(app_of(method=Plain()))
    flower = strategy(Asking(), how=HOW, min_train_nodes=2, checkpoint=tmp_path / "state", resume=True)
    late = grid.clients.pop(2)
    flower.start(grid, start(), num_rounds=1)
    grid.clients[2] = late
    flower = strategy(Asking(), how=HOW, min_train_nodes=2, checkpoint=tmp_path / "state", resume=True)
    before = tree_of(flower.arrays())
    result = flower.start(grid, start(), num_rounds=2)
    assert flower.state["pairs"].tolist() == [[2, 2, 1], [2, 2, 1], [1, 1, 1]]
    for node, loss in enumerate(flower.state["deep"]["losses"]):
        own = samples(node)
        sent = {name: value + np.float32(node) for name, value in before.items()}
        p = MODEL.probabilities(sent, own.x)[np.arange(len(own)), own.y]
        assert loss == pytest.approx(float(-np.log(p).mean()), rel=1e-5)
        np.testing.assert_array_equal(
            tree_of(flower.arrays(node))["output.bias"], tree_of(result.arrays)["output.bias"] + np.float32(node)
        )
    messages = {m.metadata.dst_node_id: m for m in flower.configure_evaluate(3, result.arrays, ConfigRecord(), grid)}
    assert messages[2].content["arrays"]["output.bias"].data == flower.arrays(2)["output.bias"].data


def test_what_flower_cannot_give_is_refused_with_a_sentence():
    @dataclass(frozen=True)
    class Back(Asking):
        needs: ClassVar[frozenset[str]] = frozenset({"validate"})

    @dataclass(frozen=True)
    class Schedule(Asking):
        def local(self, state, client, how):
            return how

    @dataclass(frozen=True)
    class Stale(Asking):
        needs: ClassVar[frozenset[str]] = frozenset({"staleness"})

    with pytest.raises(RuleError, match=r"asking steps as updates arrive, and Flower's rounds are synchronous"):
        strategy(Stale())
    with pytest.raises(RuleError, match=r"needs validate of its clients within a step, and a round of Flower asks"):
        strategy(Back())
    with pytest.raises(RuleError, match=r"the server must say how they do: give how=LocalTraining"):
        strategy(Schedule())
    assert strategy(Schedule(), how=HOW).how == HOW


# --- messages that cannot be used -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["none", "names", "shapes", "kinds", "paths", "branch", "rubbish", "huge", "NaN"])
def test_a_message_that_is_no_good_is_left_out(case):
    app, bad = app_of(), 1

    def spoil(reply):
        control = reply.content[MESSAGE]
        tree = unpacked(control, "it")
        if case == "none":
            del reply.content[MESSAGE]
            return
        if case == "names":
            tree = {"control_change": {"other": np.zeros(3, np.float32)}}
        if case == "shapes":
            tree["control_change"]["output.bias"] = np.zeros((3, 1), np.float32)
        if case == "kinds":
            tree["control_change"]["output.bias"] = np.zeros(3, np.int64)
        if case in ("huge", "NaN"):
            value = 1e30 if case == "huge" else np.nan
            tree["control_change"]["output.bias"] = np.full(3, value, np.float32)
        reply.content[MESSAGE] = packed(tree)
        if case == "paths":
            reply.content[MESSAGE] = record({"control_change": np.zeros(3), "[1]": np.zeros(1)})
        if case == "branch":
            reply.content[MESSAGE] = record({'["a"]': np.zeros(3), '["a", "b"]': np.zeros(1)})
        if case == "rubbish":
            array = control['["control_change", "output.bias"]']
            array.data = b"rubbish"
            reply.content[MESSAGE] = ArrayRecord({'["x"]': array})

    contexts = {node: context_of(node, RecordDict()) for node in range(4)}

    def client(message):
        node = message.metadata.dst_node_id
        reply = app(message, contexts[node])
        if node == bad:
            spoil(reply)
        return reply

    clients = dict.fromkeys(range(4), client)
    arrays, metrics = one_round(strategy("scaffold", how=HOW), clients, start())
    why = {"huge": 5, "NaN": 4}.get(case, 3)
    assert by_node(metrics, "left-out") == {bad: why}
    others = {node: c for node, c in clients.items() if node != bad}
    expected, _ = one_round(strategy("scaffold", how=HOW), others, start())
    assert sorted(by_node(metrics)) == [0, 2, 3]
    assert expected.keys() == arrays.keys()
    if why == 3:
        with pytest.raises(PluribusError, match="node 1"):
            one_round(PluribusStrategy("scaffold", how=HOW), clients, start())


def test_an_error_that_names_nobody_is_on_those_whose_message_is_odd():
    @dataclass(frozen=True)
    class Fragile(server.FedAvg):
        key = "fragile"

        def advance(self, state, round):
            for message in round.messages:
                assert message["sent"].keys() == {"a"}  # no error that teaches
            return super().advance(state, round)

    def client(message):
        node = message.metadata.dst_node_id
        found = reply(message, {"w": message.content["arrays"]["w"].numpy() + node})
        found.content[MESSAGE] = packed({"sent": {"b" if node == 2 else "a": np.zeros(1)}})
        return found

    clients, zero = dict.fromkeys([1, 2, 3], client), record({"w": np.zeros(1)})
    arrays, metrics = one_round(strategy(Fragile()), clients, zero)
    assert arrays["w"].numpy().tolist() == [2.0]
    assert by_node(metrics, "left-out") == {2: 3}
    with pytest.raises(AssertionError):
        one_round(PluribusStrategy(Fragile()), clients, zero)
    with pytest.raises(AssertionError):  # everybody's fault
        one_round(strategy(Fragile(), min_train_nodes=1, min_available_nodes=1), {2: client}, zero)


def test_clients_that_do_not_follow_the_rule_are_told_what_to_do():
    with pytest.raises(RuleError, match=r"needs 'control_change' beside each update, and .*node 2.*did not send it"):
        one_round(strategy("scaffold"), {1: honest, 2: honest}, record(model()))


def test_trees_of_arrays_travel_as_records():
    tree = {"a/b": {"c": np.arange(3), "d": {"e": np.array(1.5)}}, "a": np.zeros((0, 2), np.float16), '"]': np.ones(1)}
    found = unpacked(packed(tree), "it")
    assert found.keys() == tree.keys()
    np.testing.assert_array_equal(found["a/b"]["d"]["e"], 1.5)
    assert found["a"].shape == (0, 2)
    for bad in ("[]", "3", "[[[", '["a", 1]', "[" * 10_000, str(["a"] * 9).replace("'", '"')):
        with pytest.raises(ContributionError, match=r"node 7: .* is no path"):
            unpacked(record({bad: np.zeros(1)}), "node 7")
