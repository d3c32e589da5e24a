"""The server: a rule of pluribus as the strategy, a checkpoint after each round, the accuracy on samples of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_digits.task import MODEL, data
from pluribus.core.files import write_text
from pluribus.federated import flower
from pluribus.federated.training import LocalTraining

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; where a checkpoint is found, go on from it."""
    config = context.run_config
    folder = Path(config["output"]) if config["output"] else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    strategy = flower.strategy(
        config["rule"],
        checkpoint=folder / "checkpoint.safetensors" if folder else None,
        resume=folder is not None,
        min_available_nodes=config["nodes"],
        min_train_nodes=config["nodes"],
        grace=config["grace"],
        fraction_evaluate=0.0,  # the server has samples of its own
        how=LocalTraining(epochs=config["epochs"], lr=config["lr"]),
        seed=config["seed"],
    )
    test = data(config["seed"]).test

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy = float(np.mean(MODEL.predict(flower.tree_of(arrays), test.x) == test.y))
        if folder:
            line = {"round": server_round, "accuracy": accuracy}
            with (folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return MetricRecord({"accuracy": accuracy})

    result = strategy.start(
        grid,
        initial_arrays=flower.record_of(MODEL.init(config["seed"])),
        num_rounds=config["rounds"],
        timeout=config["round-timeout"],
        evaluate_fn=evaluate,
    )
    if folder:
        told = {number: dict(record) for number, record in result.train_metrics_clientapp.items()}
        write_text(folder / "metrics.json", json.dumps(told, indent=1))
