"""FedSelect: each client keeps the parameters that its data move most, and shares the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.server.base import Array, Offer, Round, State, Tree
from pluribus.federated.server.rule import (
    Server,
    Step,
    local_models,
    mean,
    one_of,
    register,
    shares_by,
)


@register
@dataclass(frozen=True)
class FedSelect(Server):
    """``x_j = sum_i p_i (1 - m_ij) y_ij / sum_i p_i (1 - m_ij)``; client i's model has its own y_ij where m_ij is 1.

    After its training a client's ``growth`` largest changes, of each tensor's shared coordinates, become personal,
    until ``cap`` of the tensor is. What is personal counts for nobody else and is never overwritten; a coordinate that
    nobody present shares keeps its value. This round's averages use the masks from before. growth = 0 is FedAvg (for
    its clients' models too), and growth = cap = 1 local training from the second round on. The server of the
    simulation holds N models and N masks, for the clients' disks.

    Compared with the authors' code (lapisrocks/fedselect, lottery_ticket.py and masked_fedavg.py), whose masks grow on
    weight matrices only, whose new personal coordinates start from the average of that round, and which trains
    personal and shared coordinates in turn.

    Parameters
    ----------
    growth
        Share of a tensor's shared coordinates that become personal in a round, in [0, 1].
    cap
        Largest share of a tensor that is personal, in [0, 1].
    weighting
        p_i: ``"size"`` by sample counts, ``"uniform"`` alike.
    """

    growth: float = 0.05
    cap: float = 0.5
    weighting: str = "size"

    key = "fedselect"
    formula = "x_j = sum_i p_i (1 - m_ij) y_ij / sum_i p_i (1 - m_ij); m_i grows by the largest |y_i - x_i|"
    source = "Tamirisa et al., FedSelect: Personalized Federated Learning with Customized Selection of Parameters, 2024"
    explanation = "Parameters that a client's data change most become its own, and the others are averaged."
    numbers = (336,)
    personal_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("growth", "cap"):
            positive("FedSelect", name, getattr(self, name), zero=True)
            if getattr(self, name) > 1:
                raise RuleError(f"FedSelect: {name} must be at most 1, a share, not {getattr(self, name)!r}")
        one_of(self, "weighting", ("size", "uniform"))

    def remember(self, params: Tree, n_clients: int) -> State:
        """``personal``: what clients ended with, ``mask``: True where it is their own; both with an axis of clients."""
        trained = {name: params[name] for name in self.parameters(params)}
        return {
            "personal": {name: np.repeat(value[None], n_clients, axis=0) for name, value in trained.items()},
            "mask": {name: np.zeros((n_clients, *value.shape), dtype=bool) for name, value in trained.items()},
        }

    def offer(self, state: State, client: int) -> Offer:
        """The client's own model."""
        return Offer(self.model_of(state, client), {})

    def model_of(self, state: State, client: int) -> Tree:
        """The global model, with the client's own numbers where they are personal."""
        own = dict(state["params"])
        for name, mask in state["mask"].items():
            own[name] = np.where(mask[client], state["personal"][name][client], own[name])
        return own

    def advance(self, state: State, round: Round) -> Step:
        """Average what is shared, and let the masks grow."""
        here, shares = list(round.clients), shares_by(round, self.weighting)
        params = self.moved(state["params"], mean(round, shares))  # buffers and counters; the others follow
        models = local_models(round, state["params"])
        personal, masks = {}, {}
        for name, mask in state["mask"].items():
            before = state["params"][name]
            ends = np.stack([model[name] for model in models])
            params[name] = shared_mean(before, ends, mask[here], shares)
            personal[name], masks[name] = state["personal"][name].copy(), mask.copy()
            for client, end, update in zip(here, ends, round.updates, strict=True):
                personal[name][client] = np.where(mask[client], end, before)
                grown = self.grown(mask[client], np.abs(update[name]))
                personal[name][client] = np.where(grown, end, personal[name][client])
                masks[name][client] = grown
        return Step(params, shares, {"personal": personal, "mask": masks})

    def grown(self, mask: Array, change: Array) -> Array:
        """One tensor's mask after a round in which its coordinates changed by so much; of equals the earlier join."""
        flat, free = mask.ravel().copy(), np.flatnonzero(~mask.ravel())
        count = min(
            math.ceil(self.growth * free.size - 1e-9), math.floor(self.cap * mask.size + 1e-9) - int(mask.sum())
        )
        if count > 0:
            order = np.argsort(-change.ravel()[free], kind="stable")
            flat[free[order[:count]]] = True
        return flat.reshape(mask.shape)


def shared_mean(before: Array, ends: Array, masks: Array, shares: Array) -> Array:
    """Mean of ``ends``, (k, ...), over those who share a coordinate, by shares, (k,); ``before`` where nobody does."""
    weights = shares.reshape(-1, *[1] * before.ndim) * ~masks
    total = weights.sum(axis=0)
    wide = np.asarray(before, dtype=np.result_type(before.dtype, np.float64))
    summed = (weights * (ends - wide)).sum(axis=0)
    return np.asarray(wide + np.divide(summed, total, out=np.zeros_like(wide), where=total > 0), dtype=before.dtype)
