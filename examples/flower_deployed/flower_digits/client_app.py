"""The client: trains on its own samples, which never leave it.

A node may be told to misbehave, to see what the server makes of it: ``--node-config 'fault="nan,shapes,huge"'`` is what
it sends in rounds 1, 2 and 3 (see `faults`).
"""

from __future__ import annotations

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_digits.faults import spoiled
from flower_digits.task import MODEL, part
from pluribus.federated import flower
from pluribus.federated.seeding import derived
from pluribus.federated.training import LocalTraining, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Some epochs from the server's model; what comes out goes back with the number of samples."""
    config = message.content["config"]
    which, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    samples = part(which, parts, config["seed"])
    params = flower.tree_of(message.content["arrays"])
    how = LocalTraining(epochs=config["epochs"], lr=config["lr"])
    result = train(MODEL, params, samples, how, seed=derived(config["seed"], "client", which, config["server-round"]))
    arrays = spoiled(result.params, str(context.node_config.get("fault", "")), config["server-round"])
    metrics = MetricRecord({"num-examples": len(samples), "loss": result.loss})
    return Message(RecordDict({"arrays": flower.record_of(arrays), "metrics": metrics}), reply_to=message)
