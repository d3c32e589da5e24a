"""The benchmark's federation on Flower's simulation. Runs in an environment with ``flwr[simulation]``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.federated import CLIENTS, HIDDEN, mark
from pluribus.federated.data import Dataset
from pluribus.federated.models import MLP
from pluribus.federated.training import LocalTraining, train

MODEL = MLP(64, HIDDEN, 10, dtype="float32")
HOW = LocalTraining(epochs=2, batch_size=32, lr=0.1)


@lru_cache(maxsize=1)
def federation(folder: str) -> dict[str, Any]:
    """The arrays, read once a process."""
    with np.load(Path(folder) / "federation.npz") as file:
        return dict(file)


@lru_cache(maxsize=CLIENTS)
def samples(folder: str, client: int) -> Dataset:
    """A client's samples, cut out once a process."""
    arrays = federation(folder)
    start, end = (0, *arrays["ends"])[client], arrays["ends"][client]
    return Dataset(arrays["x"][start:end], arrays["y"][start:end], 10)


def record(arrays: dict[str, Any]) -> ArrayRecord:
    """Arrays as a record."""
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def tree(found: ArrayRecord) -> dict[str, Any]:
    """A record as arrays."""
    return {name: array.numpy() for name, array in found.items()}


class Trained:
    """A client's half, in a class that Ray pickles by name."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, message: Message, context: Context) -> Message:
        """Train and reply."""
        data = samples(self.folder, int(context.node_config["partition-id"]))
        seed = int(message.content["config"]["server-round"]) * CLIENTS
        result = train(MODEL, tree(message.content["arrays"]), data, HOW, seed)
        metrics = MetricRecord({"num-examples": len(data), "train_loss": result.loss})
        return Message(RecordDict({"arrays": record(result.params), "metrics": metrics}), reply_to=message)


def run(folder: str, rounds: int) -> None:
    """All rounds; marks each."""
    arrays = federation(folder)
    start = {name.partition(":")[2]: value for name, value in arrays.items() if name.startswith("start:")}
    client, server = ClientApp(), ServerApp()
    client.train()(Trained(folder))

    def evaluate(number: int, found: ArrayRecord) -> MetricRecord:
        right = float((MODEL.predict(tree(found), arrays["test_x"]) == arrays["test_y"]).mean())
        if number > 0:
            mark(right)
        return MetricRecord({"accuracy": right})

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        strategy = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS
        )
        strategy.start(grid, initial_arrays=record(start), num_rounds=rounds, evaluate_fn=evaluate)

    run_simulation(
        server,
        client,
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "log_to_driver": False},
        },
    )
