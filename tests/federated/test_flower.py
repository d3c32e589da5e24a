"""Rules as a strategy of Flower: rounds of a federation in memory, with clients that lie, fail and send rubbish."""

from __future__ import annotations

import io
import logging
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
with warnings.catch_warnings():
    # Flower brings a typer that uses names which click 8.5 gives up.
    warnings.filterwarnings("ignore", "'click", DeprecationWarning)
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pluribus[flower]'")
    from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp import strategy as theirs
    from flwr.supercore.task_identity import TaskIdentity
    from safetensors.numpy import load_file, save_file

    from pluribus import rules
    from pluribus.core.errors import ContributionError, NonFiniteError, RuleError, WeightError
    from pluribus.core.rule import chain
    from pluribus.federated import server
    from pluribus.federated.flower import LEFT_OUT, PluribusStrategy, by_node, mean_metrics
    from pluribus.federated.server import STATUS

    logging.getLogger("flwr").setLevel(logging.CRITICAL)

TARGET = np.array([1.0, -2.0, 3.0], dtype=np.float32)


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """What Flower's runtime sets before it calls a ServerApp."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def model():
    """Of several kinds, and in an order that is not that of the names."""
    return {
        "weight": np.zeros(3, np.float32),
        "bias": np.zeros((), np.float16),
        "bn.running_var": np.ones(2, np.float32),
        "bn.num_batches_tracked": np.array(400_000),
        "byte": np.array([250, 3], np.uint8),
        "a.mask": np.array([True, False]),
    }


def record(tree):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in tree.items()})


def tree(arrays):
    return {name: array.numpy() for name, array in arrays.items()}


def trained(start, node, step=0.5):
    """A client's model: half of the way to a target that is a little its own."""
    own = np.random.default_rng(node).normal(scale=0.01, size=3).astype(np.float32)
    return {
        **start,
        "weight": start["weight"] + np.float32(step) * (TARGET + own - start["weight"]),
        "bias": np.asarray(start["bias"] + np.float16(0.25)),
        "bn.running_var": np.full(2, 1.5, np.float32),
        "bn.num_batches_tracked": start["bn.num_batches_tracked"] + 10,
        "byte": start["byte"] - np.array([1, 0], np.uint8),
    }


def reply(message, arrays, metrics=None):
    metrics = {"num-examples": 10, "loss": 1.0} if metrics is None else metrics
    return Message(RecordDict({"arrays": record(arrays), "metrics": MetricRecord(metrics)}), reply_to=message)


class Memory(Grid):
    """A grid that calls the clients here: ``clients[node](message) -> reply``; raising is an error reply, None none."""

    def __init__(self, clients, turned=False):
        self.clients, self.turned = clients, turned

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    push_messages = pull_messages = create_message

    def get_node_ids(self):
        return list(self.clients)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            try:
                replies.append(self.clients[message.metadata.dst_node_id](message))
            except RuntimeError as error:
                replies.append(Message(Error(code=1, reason=str(error)), reply_to=message))
        found = [r for r in replies if r is not None]
        return found[::-1] if self.turned else found


def honest(message):
    if message.metadata.message_type == "evaluate":
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 5, "accuracy": 0.5})}), reply_to=message)
    return reply(message, trained(tree(message.content["arrays"]), message.metadata.dst_node_id))


def failing(message):
    raise RuntimeError("out of memory")


def changed(metrics=None, **tensors):
    """A client that sends other tensors than an honest one, whatever it is asked; None leaves one away."""

    def client(message):
        arrays = trained(tree(message.content["arrays"]), message.metadata.dst_node_id) | tensors
        return reply(message, {name: value for name, value in arrays.items() if value is not None}, metrics)

    return client


LIAR = changed(weight=np.full(3, 1e6, np.float32))
SICK = changed(weight=np.array([0, np.nan, 0], np.float32))


def one_round(strategy, clients, start=None, server_round=1, turned=False):
    grid = clients if isinstance(clients, Grid) else Memory(clients, turned)
    start = record(model()) if start is None else start
    messages = strategy.configure_train(server_round, start, _config(), grid)
    return strategy.aggregate_train(server_round, grid.send_and_receive(messages))


def _config():
    from flwr.app import ConfigRecord

    return ConfigRecord()


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

    app(Memory(clients), Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}))
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
        return app(message, Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={}))

    arrays, _ = one_round(PluribusStrategy("fedavg"), {1: client, 2: client})
    np.testing.assert_allclose(arrays["weight"].numpy(), TARGET / 2, atol=0.02)


def test_the_page_does_what_it_shows(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)

    def client(message):
        start = message.content["arrays"]["0"].numpy()
        return reply(message, {"0": start + np.float32(1e6 if message.metadata.dst_node_id == 5 else 1)})

    scope = {"__name__": "page"}
    exec(compile(first, "docs/flower.md", "exec"), scope)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    scope["app"](Memory(dict.fromkeys([1, 2, 3, 4, 5, 6], client)), context)
    assert "5: 0.0" in capsys.readouterr().out
    exec(compile(second, "docs/flower.md", "exec"), scope)
    np.testing.assert_array_equal(scope["again"]["0"].numpy(), np.full((2, 3), 3, np.float32))


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
    strategy = PluribusStrategy("median")
    with pytest.raises(error, match=told) as caught:
        one_round(strategy, {1: honest, 2: honest, 77: client})
    assert "node 77" in str(caught.value)


@pytest.mark.parametrize("case", MALFORMED)
def test_or_it_is_left_out(case):
    strategy = PluribusStrategy("median", malformed="drop")
    arrays, metrics = one_round(strategy, {1: honest, 2: honest, 77: MALFORMED[case][0]})
    expected, _ = one_round(PluribusStrategy("median"), {1: honest, 2: honest})
    assert arrays["weight"].data == expected["weight"].data
    assert by_node(metrics, "left-out") == {77: LEFT_OUT.index("sent what cannot be combined")}


def test_a_node_that_answers_twice():
    strategy = PluribusStrategy("median", malformed="drop")
    grid = Memory({1: honest, 2: honest})
    messages = strategy.configure_train(1, record(model()), _config(), grid)
    replies = grid.send_and_receive([*messages, messages[0]])
    _, metrics = strategy.aggregate_train(1, replies)
    assert sum(by_node(metrics).values()) == pytest.approx(1)
    strategy.malformed = "raise"
    with pytest.raises(ContributionError, match="answered twice"):
        strategy.aggregate_train(2, replies)


def test_nan_under_raise_names_the_node():
    with pytest.raises(NonFiniteError, match="node 4: NaN or Inf in weight"):
        one_round(PluribusStrategy("median:nonfinite=raise"), {1: honest, 2: honest, 4: SICK})


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
    strategy = PluribusStrategy("fedau:cutoff=9")
    start, _ = one_round(strategy, {1: failing, 2: failing})
    assert strategy.state["gaps"].tolist() == [1, 1]  # the rule hears of rounds in which nobody came
    arrays, metrics = one_round(strategy, {1: honest, 2: honest}, start, 2)
    assert metrics["pluribus/status"] == 0
    np.testing.assert_allclose(arrays["weight"].numpy(), TARGET / 2, atol=0.02)


def test_no_training_at_all():
    strategy = PluribusStrategy("median", fraction_train=0.0)
    arrays, metrics = one_round(strategy, {1: honest, 2: honest})
    assert arrays["weight"].numpy().tolist() == [0, 0, 0]
    assert STATUS[metrics["pluribus/status"]] == "nobody came"


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
    strategy = PluribusStrategy("median", min_available_nodes=4)
    _, metrics = one_round(strategy, clients)
    assert sorted(by_node(metrics)) == [1, 2, 3, 4]  # Flower's FedAvg asks two of the four


@pytest.mark.parametrize("rule", ["fedau:cutoff=9", "fedavg:weighting=all", "median", "fedadam"])
def test_nodes_that_join_later(rule):
    strategy = PluribusStrategy(rule)
    arrays, _ = one_round(strategy, {5: honest, 8: honest})
    arrays, metrics = one_round(strategy, {5: honest, 8: failing, 2: honest}, arrays, 2)
    assert len(strategy.state["weights"]) == 3
    assert sorted(by_node(metrics)) == [2, 5]
    if rule.startswith("fedau"):
        # 5 came twice (gaps of 1 and 1), 8 once and is away since, 2 has just come for the first time.
        assert strategy.state["gaps"].tolist() == [0, 1, 0]
        assert strategy.state["counts"].tolist() == [2, 1, 1]
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
    strategy = PluribusStrategy(rule, seed=5)
    arrays, metrics = one_round(strategy, {8: honest, 5: honest})
    assert dict(metrics) == {"loss": 1.0, "pluribus/status": 0}
    one_round(strategy, {8: honest, 5: failing, 2: honest}, arrays, 2)
    assert strategy.state["own"].tolist() == [0, 10, 20]
    again = PluribusStrategy(rule)
    again.load_state_dict(strategy.state_dict())
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


# --- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["fedadam", "fedavgm", "fedau", "centered_clipping:radius=1", "median"])
def test_a_run_taken_up_again_is_an_unbroken_one(rule, tmp_path):
    clients = {1: honest, 2**64 - 7: honest, 3: honest}
    unbroken = PluribusStrategy(rule).start(Memory(clients), record(model()), num_rounds=4).arrays

    first = PluribusStrategy(rule)
    first.start(Memory(clients), record(model()), num_rounds=2)
    save_file(first.state_dict(), tmp_path / "state.safetensors")
    second = PluribusStrategy(rule)
    second.load_state_dict(load_file(tmp_path / "state.safetensors"))
    assert list(second.arrays()) == list(model())
    resumed = second.start(Memory(dict(reversed(clients.items()))), second.arrays(), num_rounds=2).arrays
    assert {n: a.data for n, a in resumed.items()} == {n: a.data for n, a in unbroken.items()}
    assert second.state_dict()["rounds"] == 4


def test_a_state_that_is_not_this_strategys():
    strategy = PluribusStrategy("fedadam")
    one_round(strategy, {1: honest, 2: honest})
    saved = strategy.state_dict()
    with pytest.raises(RuleError, match=r"not one of fedavgm.*state/m/bias"):
        PluribusStrategy("fedavgm").load_state_dict(saved)
    with pytest.raises(RuleError, match="not one of fedadam"):
        PluribusStrategy("fedadam").load_state_dict({k: v for k, v in saved.items() if k != "state/v/weight"})
    with pytest.raises(RuleError, match=r"not one of fedadam.*state/v/weight"):
        PluribusStrategy("fedadam").load_state_dict({**saved, "state/v/weight": np.zeros(4)})
    with pytest.raises(RuleError, match="no whole state"):
        PluribusStrategy("fedadam").load_state_dict({})


def test_a_saved_state_is_a_copy():
    strategy = PluribusStrategy("fedadam")
    one_round(strategy, {1: honest, 2: honest})
    saved = strategy.state_dict()
    saved["state/params/weight"][:] = 99
    assert strategy.state["params"]["weight"].max() < 99
    other = PluribusStrategy("fedadam")
    other.load_state_dict(saved)
    saved["state/params/weight"][:] = -99
    assert other.state["params"]["weight"].min() == 99


def test_before_there_is_a_model_and_with_another_one():
    strategy = PluribusStrategy("median")
    for ask in (strategy.arrays, strategy.state_dict, lambda: strategy.aggregate_train(1, [])):
        with pytest.raises(RuleError, match="no model yet"):
            ask()
    one_round(strategy, {1: honest, 2: honest})
    with pytest.raises(ContributionError, match="the strategy's model"):
        one_round(strategy, {1: honest, 2: honest}, record({"other": np.zeros(2)}))
    with pytest.raises(ContributionError, match="the model to send: the ArrayRecord is empty"):
        one_round(PluribusStrategy("median"), {1: honest, 2: honest}, ArrayRecord())


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

    strategy = PluribusStrategy("median", malformed=malformed)
    grid = Memory({1: honest, 2: LIAR, 3: failing, 9: without})
    replies = grid.send_and_receive(strategy.configure_evaluate(1, record(model()), _config(), grid))
    if malformed == "raise":
        with pytest.raises(WeightError, match="node 9"):
            strategy.aggregate_evaluate(1, replies)
    else:
        assert dict(strategy.aggregate_evaluate(1, replies)) == {"accuracy": 0.5, "loss": 1.0}
    assert strategy.aggregate_evaluate(1, []) is None


def test_metric_functions_of_ones_own_see_the_combined_replies_only():
    def count(contents, key):
        return MetricRecord({"replies": len(contents)})

    strategy = PluribusStrategy("median", train_metrics_aggr_fn=count)
    _, metrics = one_round(strategy, {1: honest, 2: honest, 3: SICK, 4: failing})
    assert metrics["replies"] == 2
