"""Rules whose clients keep models of their own and send class means of their features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.federated.clients.base import Job
from pluribus.federated.models import Array, Tree
from pluribus.federated.parts import class_means, head_names, parts_of
from pluribus.federated.server.base import Offer, Round, State
from pluribus.federated.server.heads.fixed import body_names
from pluribus.federated.server.per_client import placed, row
from pluribus.federated.server.rule import Server, local_models


@dataclass(frozen=True)
class OwnBodies(Server):
    """The frame of `FedGH` and `FedTGP`: bodies are not averaged, so extractors need only agree on d.

    The state holds ``personal``, the clients' own tensors with a leading axis of N, for the clients' disks (N models).
    """

    personal_models: ClassVar[bool] = True
    shares_head: ClassVar[bool] = False

    def remember(self, params: Tree, n_clients: int) -> State:
        """Everybody starts with the same model."""
        body_names(self, params)
        shared = head_names(params, self.name) if self.shares_head else ()
        own = [name for name in params if name not in shared]  # buffers too: they belong to a body
        return {"personal": {name: np.repeat(params[name][None], n_clients, axis=0) for name in own}}

    def offer(self, state: State, client: int) -> Offer:
        """The client's own model."""
        return Offer(self.model_of(state, client), {})

    def model_of(self, state: State, client: int) -> Tree:
        """The client's own tensors, and the shared ones."""
        return {**state["params"], **row(state["personal"], client)}

    def kept(self, state: State, round: Round) -> Tree:
        """``personal`` after the participants' training."""
        return placed(state["personal"], round, local_models(round, state["params"]))

    def prototypes(self, state: State, round: Round) -> tuple[Array, Array, Array]:
        """Class means that were sent, (m, d), their classes, (m,), and the samples in each, (m,), by client and class.

        Raises ``RuleError`` where one is missing or of another size.
        """
        weight, _ = head_names(state["params"], self.name)
        shape = state["params"][weight].shape
        means, classes, sizes = [], [], []
        for client, message in round.heard():
            sent, counts = message.get("means"), message.get("counts")
            if sent is None or counts is None or np.shape(sent) != shape or np.shape(counts) != shape[:1]:
                got = "nothing" if sent is None else f"means of shape {np.shape(sent)}"
                raise RuleError(
                    f"{self.key} needs means {shape} and counts {shape[:1]} of client {client}, and got {got}; let the "
                    f"clients use the rule's own method, `{type(self).__name__}().client`, on features of one size"
                )
            if (np.asarray(counts) < 0).any():
                raise RuleError(f"{self.key}: client {client} told a negative count of samples; counts are >= 0")
            here = np.flatnonzero(np.asarray(counts) > 0)
            means.append(np.asarray(sent, dtype=np.float64)[here])
            classes.append(here)
            sizes.append(np.asarray(counts, dtype=np.float64)[here])
        return np.concatenate(means), np.concatenate(classes), np.concatenate(sizes)


def means_message(job: Job, params: Tree) -> Mapping[str, Any]:
    """``means``, (C, d), of a client's features under a model, and ``counts``, (C,)."""
    parts = parts_of(job.model)
    h = parts.features(params, job.dataset.x)
    means, counts = class_means(h, job.dataset.y, len(params[parts.weight]))
    return {"means": means.astype(h.dtype), "counts": counts}
