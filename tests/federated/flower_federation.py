"""A federation of Flower in memory, for its tests; a module that imports this one is skipped where Flower is absent."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
with warnings.catch_warnings():
    # Flower brings a typer that uses names which click 8.5 gives up.
    warnings.filterwarnings("ignore", "'click", DeprecationWarning)
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pluribus[flower]'")
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp import strategy as theirs

    logging.getLogger("flwr").setLevel(logging.CRITICAL)

__all__ = [
    "LIAR",
    "SICK",
    "TARGET",
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Memory",
    "Message",
    "MetricRecord",
    "RecordDict",
    "ServerApp",
    "changed",
    "context_of",
    "example_modules",
    "failing",
    "honest",
    "model",
    "one_round",
    "record",
    "reply",
    "theirs",
    "trained",
    "tree",
]

TARGET = np.array([1.0, -2.0, 3.0], dtype=np.float32)


@contextlib.contextmanager
def example_modules():
    """The modules of the example, by the last part of their names."""
    folder = str(Path(__file__).parents[2] / "examples" / "flower_deployed")
    names = ("deploy", "certificates", "flower_digits.client_app", "flower_digits.server_app")
    sys.path.insert(0, folder)
    try:
        yield SimpleNamespace(**{name.rpartition(".")[2]: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(folder)
        for name in [name for name in sys.modules if name in names or name.startswith("flower_digits")]:
            del sys.modules[name]


def context_of(node=1, state=None, **node_config):
    state = RecordDict() if state is None else state
    return Context(run_id=1, node_id=node, node_config=node_config, state=state, run_config={})


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
    messages = strategy.configure_train(server_round, start, ConfigRecord(), grid)
    return strategy.aggregate_train(server_round, grid.send_and_receive(messages))
