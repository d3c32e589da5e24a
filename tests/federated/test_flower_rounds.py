"""Rules as a strategy of Flower: rounds of a federation in memory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from flower_federation import (
    LIAR,
    SICK,
    TARGET,
    Array,
    ClientApp,
    Memory,
    ServerApp,
    changed,
    context_of,
    failing,
    honest,
    model,
    one_round,
    record,
    reply,
    theirs,
    tree,
)

from pluribus import rules
from pluribus.core.rule import chain
from pluribus.federated import server
from pluribus.federated.flower import LEFT_OUT, PluribusStrategy, by_node
from pluribus.federated.server import STATUS

pytestmark = pytest.mark.usefixtures("identity")


# --- the whole ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", ["median", "multi_krum:f=1", "nnm:f=1+trimmed_mean:f=1", chain(rules.NNM(f=1), rules.Median())]
)
def test_a_federation_with_a_liar_a_sick_client_and_one_that_fails(rule):
    clients = {7: honest, 2**63 + 11: honest, 3: honest, 5: honest, 1: honest, 2**64 - 5: LIAR, 4: SICK, 6: failing}
    strategy = PluribusStrategy(rule)
    results = []
    app = ServerApp()

    @app.main()
    def main(grid, context):
        results.append(strategy.start(grid, record(model()), num_rounds=8))

    app(Memory(clients), context_of())
    (result,) = results
    np.testing.assert_allclose(result.arrays["weight"].numpy(), TARGET, atol=0.05)
    assert list(result.train_metrics_clientapp) == list(range(1, 9))
    for metrics in result.train_metrics_clientapp.values():
        assert STATUS[metrics["pluribus/status"]] == "stepped"
        assert by_node(metrics, "left-out") == {4: LEFT_OUT.index("sent NaN or Inf"), 6: 2}
        counted = by_node(metrics)
        assert sorted(counted) == sorted(set(clients) - {4, 6})
        assert sum(counted.values()) == pytest.approx(1.0)
        assert counted[2**64 - 5] <= 1 / 6 + 1e-12
        assert 1 < metrics["pluribus/effective-size"] <= 6
        assert metrics["loss"] == pytest.approx(1.0)
    assert result.evaluate_metrics_clientapp[8]["accuracy"] == pytest.approx(0.5)


def test_flowers_own_mean_is_carried_away_by_the_same_liar():
    grid = Memory({1: honest, 2: honest, 3: honest, 4: honest, 5: LIAR})
    result = theirs.FedAvg(fraction_evaluate=0.0).start(grid, record(model()), num_rounds=2)
    assert np.abs(result.arrays["weight"].numpy()).max() > 1e5


def test_a_client_app_of_flower_is_served():
    app = ClientApp()

    @app.train()
    def train(message, context):
        return honest(message)

    def client(message):
        node = message.metadata.dst_node_id
        return app(message, context_of(node))

    arrays, _ = one_round(PluribusStrategy("fedavg"), {1: client, 2: client})
    np.testing.assert_allclose(arrays["weight"].numpy(), TARGET / 2, atol=0.02)


def test_the_page_does_what_it_shows(tmp_path, monkeypatch, capsys):
    """The server's and the client's lines: a liar counts for nothing, and a server started again has nothing to do."""
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")
    server_app, client_app = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    scopes = {"server": {"__name__": "page"}, "client": {"__name__": "page"}}
    exec(compile(server_app, "docs/flower.md", "exec"), scopes["server"])
    exec(compile(client_app, "docs/flower.md", "exec"), scopes["client"])

    def client(message):
        node = message.metadata.dst_node_id
        found = scopes["client"]["app"](message, context_of(node, **{"partition-id": node - 1, "num-partitions": 6}))
        if node == 5 and "arrays" in found.content:
            found.content["arrays"]["output.bias"] = Array(np.full(10, 8.0, np.float32))
        return found

    grid = Memory(dict.fromkeys([1, 2, 3, 4, 5, 6], client))
    scopes["server"]["app"](grid, context_of())
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3
    assert all(line.startswith(f"{number} {{1: ") and "5: 0.0" in line for number, line in enumerate(shown, 1))
    assert (tmp_path / "state.safetensors").exists()
    scopes["server"]["app"](grid, context_of())
    assert capsys.readouterr().out == ""


# --- beside Flower --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ("fedavg", theirs.FedAvg()),
        ("median", theirs.FedMedian()),
        ("fedavgm:momentum=0.5:server_lr=0.7", theirs.FedAvgM(server_momentum=0.5, server_learning_rate=0.7)),
    ],
    ids=["mean", "median", "momentum"],
)
def test_the_same_numbers_as_flower(ours, other):
    sizes = {1: 5, 2: 50, 3: 7, 4: 20}

    def client(message):
        start = tree(message.content["arrays"])
        node = message.metadata.dst_node_id
        noise = np.random.default_rng(node).normal(size=(4, 5)).astype(np.float32)
        return reply(message, {"w": start["w"] * 0.5 + noise}, {"num-examples": sizes[node]})

    strategy = PluribusStrategy(ours)
    found, expected = (
        s.start(Memory(dict.fromkeys(sizes, client)), record({"w": np.ones((4, 5), np.float32)}), num_rounds=3).arrays
        for s in (strategy, other)
    )
    np.testing.assert_allclose(found["w"].numpy(), expected["w"].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrapper", [theirs.DifferentialPrivacyServerSideFixedClipping])
def test_inside_of_flowers_privacy_wrapper(wrapper):
    start = record({"w": np.zeros(3, np.float32)})

    def client(message):
        return reply(message, {"w": message.content["arrays"]["w"].numpy() + np.float32(1)})

    strategy = PluribusStrategy("median")
    wrapped = wrapper(strategy, noise_multiplier=1e-3, clipping_norm=0.1, num_sampled_clients=3)
    result = wrapped.start(Memory(dict.fromkeys([1, 2, 3], client)), start, num_rounds=2)
    # Each round moves by the clipped step, 0.1 / sqrt(3) a coordinate; the noise goes into what the next one starts at.
    np.testing.assert_allclose(result.arrays["w"].numpy(), 0.2 / np.sqrt(3), atol=2e-3)


# --- arrays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["median", "fedavg", "fedadam", "krum:f=1"])
def test_names_order_shapes_dtypes_and_counters_are_kept(rule):
    def shuffled(message):
        found = honest(message)
        arrays = tree(found.content["arrays"])
        return reply(message, dict(sorted(arrays.items())))

    arrays, _ = one_round(PluribusStrategy(rule), dict.fromkeys([1, 2, 3, 4, 5], shuffled))
    after, before = tree(arrays), model()
    assert list(after) == list(before)
    assert {n: (v.dtype, v.shape) for n, v in after.items()} == {n: (v.dtype, v.shape) for n, v in before.items()}
    assert after["bn.num_batches_tracked"] == 400_010
    assert after["byte"].tolist() == [249, 3]
    assert after["a.mask"].tolist() == [True, False]
    np.testing.assert_allclose(after["bn.running_var"], 1.5, rtol=1e-6)


def test_unsigned_counters_may_go_down():
    clients = {n: changed(byte=np.array([250 + n, 3 - n], np.uint8)) for n in (1, 3)}
    clients[2] = changed(byte=np.array([246, 3], np.uint8))
    arrays, _ = one_round(PluribusStrategy("fedavg"), clients)
    assert arrays["byte"].numpy().tolist() == [250, 2]  # 250 + (1 + 3 - 4) / 3, 3 + (-1 - 3 + 0) / 3


def test_wider_floats_of_a_client_come_back_in_the_models_dtype():
    wide = changed(weight=np.full(3, 2.0))
    arrays, _ = one_round(PluribusStrategy("median"), {1: wide, 2: wide})
    assert arrays["weight"].numpy().dtype == np.float32
    assert arrays["weight"].numpy().tolist() == [2, 2, 2]


def test_the_order_of_arrival_does_not_matter():
    clients = dict.fromkeys((9, 4, 6, 1), honest)
    found = [
        one_round(PluribusStrategy("fedavg"), {n: clients[n] for n in order}, turned=turned)[0]
        for order, turned in (((9, 4, 6, 1), False), ((1, 4, 6, 9), False), ((4, 1, 9, 6), True))
    ]
    assert len({arrays["weight"].data for arrays in found}) == 1


def test_the_model_that_was_sent_is_the_one_that_moves():
    """Whatever made it: noise of a privacy wrapper, a caller who goes back to an older model."""
    strategy = PluribusStrategy("fedavg:server_lr=2")
    clients = dict.fromkeys([1, 2], lambda m: reply(m, {"w": m.content["arrays"]["w"].numpy() + 1}))
    one_round(strategy, clients, record({"w": np.zeros(2)}))
    arrays, _ = one_round(strategy, clients, record({"w": np.full(2, 50.0)}), 2)
    assert arrays["w"].numpy().tolist() == [52, 52]


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("fedavg", 7.75),  # (1 x 1 + 3 x 10) / 4
        ("fedavg:weighting=uniform", 5.5),
        ("mean", 5.5),
        ("mean:weighting=size", 7.75),
        (rules.Mean(), 5.5),
        (server.Stateless(rules.Mean(), weighting="size"), 7.75),
        (server.FedAvg(server_lr=2.0), 15.5),
    ],
)
def test_sizes_count_where_the_rule_says_so(rule, expected):
    clients = {
        node: lambda m, n=size, value=value: reply(m, {"w": np.array([value])}, {"num-examples": n, "loss": value})
        for node, size, value in ((1, 1, 1.0), (2, 3, 10.0))
    }
    arrays, metrics = one_round(PluribusStrategy(rule), clients, record({"w": np.zeros(1)}))
    assert arrays["w"].numpy()[0] == pytest.approx(expected)
    assert metrics["loss"] == pytest.approx(7.75)


def test_another_key_for_the_number_of_examples():
    clients = {
        node: lambda m, n=size, value=value: reply(m, {"w": np.array([value])}, {"rows": n})
        for node, size, value in ((1, 1, 1.0), (2, 3, 10.0))
    }
    arrays, _ = one_round(PluribusStrategy("fedavg", weighted_by_key="rows"), clients, record({"w": np.zeros(1)}))
    assert arrays["w"].numpy()[0] == pytest.approx(7.75)
