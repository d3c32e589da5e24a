"""Flower: clients that lie, fail, fall silent and send rubbish are named and left out."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from flower_federation import (
    LIAR,
    SICK,
    TARGET,
    Array,
    ConfigRecord,
    Memory,
    Message,
    MetricRecord,
    RecordDict,
    changed,
    failing,
    honest,
    model,
    one_round,
    record,
    reply,
)

from pluribus import rules
from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, WeightError
from pluribus.federated import server
from pluribus.federated.flower import LEFT_OUT, PluribusStrategy, by_node, mean_metrics, strategy
from pluribus.federated.server import STATUS

pytestmark = pytest.mark.usefixtures("identity")


# --- replies that cannot be used ------------------------------------------------------------------------------------


def rubbish(message):
    found = honest(message)
    found.content["arrays"]["weight"] = Array("float32", (3,), "numpy.ndarray", b"rubbish")
    return found


def archive(message):
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros(3, np.float32))
    found = honest(message)
    found.content["arrays"]["weight"] = Array("float32", (3,), "numpy.ndarray", buffer.getvalue())
    return found


def two_records(message):
    found = honest(message)
    found.content["more"] = record({"weight": np.zeros(3)})
    return found


MALFORMED = {
    "shape": (changed(weight=np.zeros((3, 1), np.float32)), ContributionError, "weight"),
    "broadcast": (changed(weight=np.zeros(1, np.float32)), ContributionError, "weight"),
    "lacks": (changed(weight=None), ContributionError, "lacks 'weight'"),
    "extra": (changed(more=np.zeros(1)), ContributionError, "has 'more'"),
    "kind": (changed(weight=np.zeros(3, np.int64)), ContributionError, "different kinds"),
    "text": (changed(weight=np.array(["a", "b", "c"])), ContributionError, "cannot be combined"),
    "rubbish": (rubbish, ContributionError, "'weight' cannot be read"),
    "archive": (archive, ContributionError, "expected one array"),
    "two records": (two_records, ContributionError, "2 ArrayRecords"),
    "no size": (changed({"loss": 1.0}), WeightError, "'num-examples'"),
    "NaN size": (changed({"num-examples": float("nan")}), WeightError, "not nan"),
    "negative size": (changed({"num-examples": -1}), WeightError, "not -1"),
    "list of sizes": (changed({"num-examples": [1, 2]}), WeightError, r"not \[1, 2\]"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_reply_is_an_error_that_names_the_node(case):
    client, error, told = MALFORMED[case]
    flower = PluribusStrategy("median")
    with pytest.raises(error, match=told) as caught:
        one_round(flower, {1: honest, 2: honest, 77: client})
    assert "node 77" in str(caught.value)


@pytest.mark.parametrize("case", MALFORMED)
def test_or_it_is_left_out(case):
    flower = PluribusStrategy("median", malformed="drop")
    arrays, metrics = one_round(flower, {1: honest, 2: honest, 77: MALFORMED[case][0]})
    expected, _ = one_round(PluribusStrategy("median"), {1: honest, 2: honest})
    assert arrays["weight"].data == expected["weight"].data
    assert by_node(metrics, "left-out") == {77: LEFT_OUT.index("sent what cannot be combined")}


def test_a_node_that_answers_twice():
    flower = PluribusStrategy("median", malformed="drop")
    grid = Memory({1: honest, 2: honest})
    messages = flower.configure_train(1, record(model()), ConfigRecord(), grid)
    replies = grid.send_and_receive([*messages, messages[0]])
    _, metrics = flower.aggregate_train(1, replies)
    assert sum(by_node(metrics).values()) == pytest.approx(1)
    flower.malformed = "raise"
    with pytest.raises(ContributionError, match="answered twice"):
        flower.aggregate_train(2, replies)


def test_nan_under_raise_names_the_node():
    with pytest.raises(NonFiniteError, match="node 4: NaN or Inf in weight"):
        one_round(PluribusStrategy("median:nonfinite=raise"), {1: honest, 2: honest, 4: SICK})


def test_a_rule_that_was_told_to_raise_raises_also_where_malformed_replies_are_dropped():
    with pytest.raises(NonFiniteError, match="node 4: NaN or Inf in weight"):
        one_round(strategy("median:nonfinite=raise"), {1: honest, 2: honest, 4: SICK})


def test_overflow_to_infinity_is_dropped_without_a_warning():
    huge = changed(weight=np.full(3, 3e38, np.float32))
    start = {**model(), "weight": np.full(3, -3e38, np.float32)}
    _, metrics = one_round(PluribusStrategy("median"), {1: huge, 2: huge}, record(start))
    assert by_node(metrics, "left-out") == {1: 4, 2: 4}


def test_a_node_that_does_not_answer_in_time():
    _, metrics = one_round(PluribusStrategy("median"), {1: honest, 2: honest, 3: lambda m: None})
    assert by_node(metrics, "left-out") == {3: LEFT_OUT.index("did not answer")}


# --- rounds without a step ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "clients", "status"),
    [
        ("median", {1: failing, 2: failing}, "nobody came"),
        ("median", {1: SICK, 2: SICK}, "nobody came"),
        ("krum:f=1", {1: honest, 2: honest, 3: honest, 4: honest, 5: failing}, "too few for the rule"),
    ],
)
def test_the_model_stays(rule, clients, status):
    arrays, metrics = one_round(PluribusStrategy(rule), clients)
    assert list(arrays) == list(model())
    for name, value in model().items():
        np.testing.assert_array_equal(arrays[name].numpy(), value)
    assert STATUS[metrics["pluribus/status"]] == status
    assert by_node(metrics) == {}
    assert "pluribus/effective-size" not in metrics


def test_a_run_goes_on_after_an_empty_round():
    flower = PluribusStrategy("fedau:cutoff=9")
    start, _ = one_round(flower, {1: failing, 2: failing})
    assert flower.state["gaps"].tolist() == [1, 1]  # the rule hears of rounds in which nobody came
    arrays, metrics = one_round(flower, {1: honest, 2: honest}, start, 2)
    assert metrics["pluribus/status"] == 0
    np.testing.assert_allclose(arrays["weight"].numpy(), TARGET / 2, atol=0.02)


def test_no_training_at_all():
    flower = PluribusStrategy("median", fraction_train=0.0)
    arrays, metrics = one_round(flower, {1: honest, 2: honest})
    assert arrays["weight"].numpy().tolist() == [0, 0, 0]
    assert STATUS[metrics["pluribus/status"]] == "nobody came"


# --- options and metrics --------------------------------------------------------------------------------------------


def test_what_is_no_rule():
    for bad in (rules.Median, server.FedAdam, 3, None):
        with pytest.raises(RuleError, match="PluribusStrategy takes a rule"):
            PluribusStrategy(bad)
    with pytest.raises(RuleError, match="did you mean"):
        PluribusStrategy("mediam")
    with pytest.raises(RuleError, match="malformed must be"):
        PluribusStrategy("median", malformed="ignore")


def test_metrics_survive_clients_that_lack_or_spoil_them():
    contents = [
        RecordDict({"m": MetricRecord({"num-examples": n, **metrics})})
        for n, metrics in (
            (1, {"loss": 1.0, "curve": [1.0, 2.0], "odd": [1.0]}),
            (3, {"loss": 5.0, "curve": [3.0, 4.0], "odd": [1.0, 2.0], "own": 2}),
            (9, {"loss": float("nan"), "curve": [float("inf"), 0.0]}),
        )
    ]
    assert dict(mean_metrics(contents, "num-examples")) == {"loss": 4.0, "curve": [2.5, 3.5], "own": 2.0}
    nobody = [RecordDict({"m": MetricRecord({"num-examples": 0, "loss": x})}) for x in (1.0, 2.0)]
    assert dict(mean_metrics(nobody, "num-examples")) == {"loss": 1.5}


@pytest.mark.parametrize("malformed", ["raise", "drop"])
def test_evaluation(malformed):
    def without(message):
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 1.0})}), reply_to=message)

    flower = PluribusStrategy("median", malformed=malformed)
    grid = Memory({1: honest, 2: LIAR, 3: failing, 9: without})
    replies = grid.send_and_receive(flower.configure_evaluate(1, record(model()), ConfigRecord(), grid))
    if malformed == "raise":
        with pytest.raises(WeightError, match="node 9"):
            flower.aggregate_evaluate(1, replies)
    else:
        assert dict(flower.aggregate_evaluate(1, replies)) == {"accuracy": 0.5, "loss": 1.0}
    assert flower.aggregate_evaluate(1, []) is None


def test_metric_functions_of_ones_own_see_the_combined_replies_only():
    def count(contents, key):
        return MetricRecord({"replies": len(contents)})

    flower = PluribusStrategy("median", train_metrics_aggr_fn=count)
    _, metrics = one_round(flower, {1: honest, 2: honest, 3: SICK, 4: failing})
    assert metrics["replies"] == 2


# --- updates that are too long --------------------------------------------------------------------------------------


def test_an_update_far_longer_than_the_others_is_named_and_left_out(caplog):
    clients = {1: honest, 2: honest, 2**64 - 5: LIAR, 4: honest}
    with caplog.at_level("WARNING", "flwr"):
        arrays, metrics = one_round(strategy("fedavg"), clients)
    expected, _ = one_round(strategy("fedavg"), {n: c for n, c in clients.items() if c is honest})
    assert arrays["weight"].data == expected["weight"].data
    assert by_node(metrics, "left-out") == {2**64 - 5: LEFT_OUT.index("sent an update that is too long")}
    assert re.search(
        rf"node {2**64 - 5} sent an update of norm 1.73e\+06; at most \d+ is taken, 100 times the round's median norm",
        caplog.text,
    )


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({}, set()),
        ({"max_norm": 1e5}, {3, 5}),
        ({"max_norm": 1e7}, {5}),
        ({"max_norm_ratio": 1e9}, {5}),
        ({"max_norm": 1e9, "max_norm_ratio": 10.0}, {3, 5}),
    ],
)
def test_both_bounds(options, left_out):
    far = changed(weight=np.full(3, 1e20, np.float32))  # its square is no float32
    _, metrics = one_round(PluribusStrategy("median", **options), {1: honest, 2: honest, 3: LIAR, 4: SICK, 5: far})
    found = by_node(metrics, "left-out")
    assert {node for node, why in found.items() if why == 5} == left_out
    assert found[4] == 4  # NaN is the rule's affair, whatever the bounds


def test_of_two_nodes_the_long_one_goes_and_standing_still_bounds_nobody():
    start = record({"w": np.zeros(2)})
    still, step = (lambda m, x=x: reply(m, {"w": np.full(2, x)}) for x in (0.0, 1.0))

    def left_out(clients):
        return by_node(one_round(strategy("fedavg"), clients, start)[1], "left-out")

    assert left_out({1: step, 2: lambda m: reply(m, {"w": np.full(2, 1e6)})}) == {2: 5}
    assert left_out({1: still, 2: still, 3: step}) == {}


def test_bounds_that_make_no_sense():
    for name in ("max_norm", "max_norm_ratio", "grace"):
        with pytest.raises(RuleError, match=f"{name}"):
            PluribusStrategy("median", **{name: -1.0})
