"""A ClientApp of Flower that trains a model of ours, by the method of whatever rule the server follows.

Part of `pluribus.federated.flower`, which is where to begin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pluribus.core.errors import FileError, RuleError, require
from pluribus.core.files import told, write_bytes
from pluribus.federated.clients.base import ClientMethod, Job, Kept, Plain
from pluribus.federated.data import Dataset
from pluribus.federated.flower_offers import MEMORY, MESSAGE, ORDERS, TOLD, packed, unpacked
from pluribus.federated.flower_records import record_of, tree_of
from pluribus.federated.measuring import measure
from pluribus.federated.models import Model, Tree
from pluribus.federated.seeding import derived
from pluribus.federated.server import parse
from pluribus.federated.training import LocalTraining

require("flwr.clientapp", "flower")

from flwr.app import Message, MetricRecord, RecordDict  # noqa: E402 - asked for by name first
from flwr.clientapp import ClientApp  # noqa: E402

Samples = Callable[[Any], Dataset]
Memory = Callable[[Any], "str | Path | None"]


def client_app(
    model: Model,
    dataset: Dataset | Samples,
    *,
    how: LocalTraining | None = None,
    method: ClientMethod | None = None,
    memory: Memory | None = None,
    label_counts: bool = False,
    mods: Sequence[Any] = (),
) -> Any:
    """A ClientApp that trains and evaluates a model on a node's own samples.

    Parameters
    ----------
    model
        A model of ours, such as ``MLP(64, 32, 10)`` or a `TorchModel`.
    dataset
        The node's samples, or a function of Flower's Context that gives them (``context.node_config`` says which).
    how
        How the node trains, where the server does not say it with ``strategy(..., how=...)``. By default as
        `LocalTraining` does; ``train_config`` values under the names of its fields (``lr``, ``epochs``) change that.
    method
        What the node does with a job. By default the method of the server's rule, which the server names.
    memory
        What a method keeps between rounds (a control variate) lies in Flower's Context, which ends with the SuperNode
        and with the run. This function of the Context may name a file for it that outlives both.
    label_counts
        Whether to tell the server how many samples of each class there are (for FedDisco).
    mods
        Flower's mods.

    Raises
    ------
    RuleError
        In a round: the server's rule is none that this node knows.
    """
    app = ClientApp(mods=list(mods))

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Any, context: Any) -> Any:
        orders = dict(message.content[ORDERS]) if ORDERS in message.content else {}
        samples, params = _samples(dataset, context), _model_of(message)
        job = Job(
            model=model,
            params=params,
            told=unpacked(message.content[TOLD], "the server") if TOLD in message.content else {},
            dataset=samples,
            how=_how(how, orders, message),
            memory=_remembered(context, memory),
            seed=int(orders.get("seed", derived(0, "flower.training", context.node_id % 2**32))),
            round=int(orders.get("round", 0)),
            client=int(orders.get("client", 0)),
        )
        report = (method or _method(orders)).train(job)
        _keep(context, memory, report.memory)
        metrics = {"num-examples": len(samples), "loss": float(report.loss), "pluribus-steps": int(report.steps)}
        if "losses" in orders.get("needs", ()):
            metrics["pluribus-start-loss"] = _measured(model, params, samples)["loss"]
        if label_counts:
            metrics["label-counts"] = samples.counts.tolist()
        content = {"arrays": record_of(report.params), "metrics": MetricRecord(metrics)}
        if report.message:
            content[MESSAGE] = packed(report.message)
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
    def evaluate(message: Any, context: Any) -> Any:
        samples = _samples(dataset, context)
        metrics = {"num-examples": len(samples), **_measured(model, _model_of(message), samples)}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def _samples(dataset: Dataset | Samples, context: Any) -> Dataset:
    return dataset if isinstance(dataset, Dataset) else dataset(context)


def _model_of(message: Any) -> Tree:
    found = [record for name, record in message.content.array_records.items() if name != TOLD]
    if len(found) != 1:
        raise RuleError(f"the server sent {len(found)} models; expected one ArrayRecord")
    return tree_of(found[0], "the server's model")


def _how(own: LocalTraining | None, orders: Mapping[str, Any], message: Any) -> LocalTraining:
    if "how" in orders:
        return LocalTraining(**json.loads(orders["how"]))
    if own is not None:
        return own
    known = LocalTraining.__dataclass_fields__
    given = {k: v for name, r in message.content.config_records.items() if name != ORDERS for k, v in r.items()}
    return LocalTraining(**{name: value for name, value in given.items() if name in known})


def _method(orders: Mapping[str, Any]) -> ClientMethod:
    if not orders.get("rule"):
        return Plain()
    try:
        return parse(orders["rule"]).client
    except RuleError as error:
        raise RuleError(f"the server's rule is not known here: {error}; give client_app its method=") from None


def _measured(model: Model, params: Tree, samples: Dataset) -> dict[str, float]:
    """Accuracy and mean ``-log p(label)``."""
    _, accuracy, loss = measure(model, params, samples)
    return {"accuracy": accuracy, "loss": loss}


# --- what a method keeps --------------------------------------------------------------------------------------------


def _remembered(context: Any, memory: Memory | None) -> Kept:
    named = memory(context) if memory else None
    if named is None:
        return unpacked(context.state[MEMORY], "the memory") if MEMORY in context.state else {}
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = Path(named)
    if not path.exists():
        return {}
    with told(path, "be read"):
        data = path.read_bytes()
    try:
        return unpacked(record_of(load(data)), str(path))
    except (SafetensorError, ValueError) as error:
        raise FileError(f"{path} holds no memory of a client: {error}; remove it to begin without") from None


def _keep(context: Any, memory: Memory | None, kept: Kept) -> None:
    named = memory(context) if memory else None
    if named is None:
        context.state.pop(MEMORY, None)
        if kept:
            context.state[MEMORY] = packed(kept)
    elif kept:
        from safetensors.numpy import save

        flat = tree_of(packed(kept))
        write_bytes(named, save({name: np.asarray(value, order="C") for name, value in flat.items()}))
