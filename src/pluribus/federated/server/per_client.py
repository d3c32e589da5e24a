"""Personal models: rules that return one result per client, as weights of shape (k, n) do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pluribus.core.errors import ContributionError
from pluribus.federated.server.admission import label
from pluribus.federated.server.base import Array, Offer, Round, State, Tree
from pluribus.federated.server.rule import Server, local_models
from pluribus.rules import Mean


@dataclass(frozen=True)
class Personal(Server):
    """The frame of rules under which every client has a model of its own.

    The state holds ``personal``, the model's tensors with a leading axis of N clients, beside ``params``, the model of
    a client that has not come yet: so memory is N + 1 models, which is what was asked for. ``mixing``, shape (N, N), is
    the weight of each client (column) in each client's model (row) in the last round, NaN for those absent.
    """

    personal_models: ClassVar[bool] = True

    def remember(self, params: Tree, n_clients: int) -> State:
        """Everybody starts with the global model."""
        personal = {name: np.repeat(np.asarray(value)[None], n_clients, axis=0) for name, value in params.items()}
        return {"personal": personal, "mixing": np.full((n_clients, n_clients), np.nan)}

    def offer(self, state: State, client: int) -> Offer:
        """The client's own model."""
        return Offer(self.model_of(state, client), {})

    def model_of(self, state: State, client: int) -> Tree:
        """The client's row of ``personal``."""
        return row(state["personal"], client)


def mixed(round: Round, params: Tree, weights: Array) -> list[Tree]:
    """For each row of ``weights``, (k receivers, k participants) and normalised here, the mean of the local models.

    Float tensors are summed in float64 and rounded once; counters are rounded to whole numbers; masks stay.
    """
    models = local_models(round, params)
    masks = {name for name, value in params.items() if value.dtype.kind == "b"}
    named = {
        label(client): {name: value for name, value in model.items() if name not in masks}
        for client, model in zip(round.clients, models, strict=True)
    }
    values: Sequence[Tree] = Mean()(named, np.atleast_2d(weights)).value
    return [{name: params[name] if name in masks else value[name] for name in params} for value in values]


def row(rows: Mapping[str, Array], client: int) -> Tree:
    """One client's tensors, out of those of N clients."""
    return {name: value[client] for name, value in rows.items()}


def shared(state: State, round: Round, mixing: Array, shares: Array) -> tuple[Tree, State]:
    """The participants' mean by ``shares``, (k,), and a state's ``personal`` and ``mixing`` after ``mixing``, (k, k).

    Each participant's model becomes its row's mean of the local models.
    """
    *models, everybody = mixed(round, state["params"], np.vstack([mixing, shares]))
    return everybody, {
        "personal": placed(state["personal"], round, models),
        "mixing": spread_mixing(mixing, round),
    }


def placed(rows: Mapping[str, Array], round: Round, models: Sequence[Mapping[str, Array]]) -> Tree:
    """N clients' tensors after the participants' were replaced, each of whose models has them all."""
    stacked: Tree = {}
    for name, value in rows.items():
        stacked[name] = value.copy()
        for i, model in zip(round.clients, models, strict=True):
            if np.shape(model[name]) != value.shape[1:]:  # numpy would spread a single number over the whole tensor
                raise ContributionError(
                    f"{label(i)}: {name} has shape {np.shape(model[name])}, expected {value.shape[1:]} as in the model"
                )
            stacked[name][i] = model[name]
    return stacked


def spread_mixing(weights: Array, round: Round) -> Array:
    """Participants' (k, k) weights as (N, N), NaN where one of the two was absent."""
    full = np.full((round.n_clients, round.n_clients), np.nan)
    full[np.ix_(list(round.clients), list(round.clients))] = weights
    return full
