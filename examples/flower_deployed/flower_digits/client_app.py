"""The client: trains on its own samples, which never leave it, as the server's rule wants it."""

from __future__ import annotations

from flwr.app import Context

from flower_digits import faults
from flower_digits.task import MODEL, part
from pluribus.federated import flower
from pluribus.federated.data import Dataset


def samples(context: Context) -> Dataset:
    """The samples of this node: its own file in earnest, a part of the digits here."""
    here = context.node_config
    return part(int(here["partition-id"]), int(here["num-partitions"]), int(context.run_config.get("seed", 0)))


app = flower.client_app(
    MODEL,
    samples,
    memory=lambda context: context.node_config.get("memory"),  # a file, for rules whose clients keep something
    mods=[faults.spoil],
)
