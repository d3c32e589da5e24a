"""FedCollab: FedAvg within coalitions of clients who differ little for the samples that they lack."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.per_client import Personal, shared
from pluribus.federated.server.personal.coalitions import coalitions, label_divergences, numbered
from pluribus.federated.server.rule import Step, register, size_shares


@register
@dataclass(frozen=True)
class FedCollab(Personal):
    """FedAvg in each coalition; coalitions lower ``mean_i C / sqrt(n of i's coalition) + sum_j a_ij D_ij``.

    See `coalitions`. Without ``groups`` the D are `label_divergences`, of the clients whose labels are known so far:
    those who came once. Where clients differ in what they call things, or in how things look, find groups before with
    `coalitions` on `two_sample_divergences`, and give them. All members get their coalition's model, present or not.

    Compared with the authors' code (baowenxuan/FedCollab): the same bound and search; divergences there come from a
    classifier.

    On two groups of three clients with 60 digits each, who call them differently (12 rounds, 5 seeds; softmax, mlp:16):
    with groups by two-sample divergences .88 and .87, local training .85 and .83, FedAvg and groups by labels .45.

    Parameters
    ----------
    complexity
        C: how many samples the model needs. Large ones make one coalition, 0 makes everybody train alone.
    groups
        Each client's coalition in the order of their ids, as in ``0-0-1-1``; empty: found by the rule.
    """

    complexity: float = 10.0
    groups: str = ""

    key = "fedcollab"
    formula = "FedAvg in coalitions: argmin mean_i C sqrt(sum_j a_ij^2 / n_j) + sum_j a_ij D_ij, a_ij ~ n_j"
    source = "Bao et al., Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023"
    explanation = "Clients train with those whose data differ little, and with more of them the less data they have."
    numbers = (184,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedCollab", "complexity", self.complexity, zero=True)
        if not isinstance(self.groups, str) or not re.fullmatch(r"(\d+(-\d+)*)?", self.groups):
            raise RuleError(f"FedCollab: groups must be numbers with - between them, as 0-0-1-1, not {self.groups!r}")

    def remember(self, params: Tree, n_clients: int) -> State:
        """As `Personal`; ``coalition``, (N,), -1 where not known; ``label_counts``, (N, 0) until a round tells C."""
        given = [int(part) for part in self.groups.split("-") if part]
        if given and len(given) != n_clients:
            raise RuleError(f"FedCollab: groups names {len(given)} clients, and there are {n_clients}")
        chosen = numbered(given) if given else np.full(n_clients, -1)
        told = {} if given else {"label_counts": np.zeros((n_clients, 0))}
        return super().remember(params, n_clients) | {"coalition": chosen, **told}

    def advance(self, state: State, round: Round) -> Step:
        """Find the coalitions, and average in each."""
        here = list(round.clients)
        memory: State = {"coalition": state["coalition"]} if self.groups else self.found(state, round)
        choice = memory["coalition"]
        shares = size_shares(round)
        together = choice[here][:, None] == choice[here][None, :]
        # Where nobody of a coalition has samples, its members count alike.
        mixing = np.where((together * shares).sum(axis=1, keepdims=True) > 0, together * shares, together)
        mixing = mixing / mixing.sum(axis=1, keepdims=True)
        everybody, after = shared(state, round, mixing, shares)
        personal = spread_to_members(after["personal"], choice, here)
        return Step(everybody, shares, {**memory, **after, "personal": personal})

    def found(self, state: State, round: Round) -> State:
        """The coalitions of all clients known by now, and the label counts, (N, C), that they come from."""
        if round.label_counts is None:
            raise RuleError(
                "FedCollab compares the clients' labels, and the round has no label_counts; give them, or give "
                "groups=0-0-1-1 from `coalitions` on distances of your own"
            )
        counts = np.zeros((round.n_clients, round.label_counts.shape[1]))
        counts[:, : state["label_counts"].shape[1]] = state["label_counts"]
        counts[list(round.clients)] = round.label_counts
        if np.array_equal(counts, state["label_counts"]):
            return {"coalition": state["coalition"], "label_counts": counts}
        known = np.flatnonzero(counts.sum(axis=1) > 0)
        choice = np.full(round.n_clients, -1)
        if len(known):
            choice[known] = coalitions(counts[known].sum(axis=1), label_divergences(counts[known]), self.complexity)
        lost = [i for i in round.clients if choice[i] < 0]
        choice[lost] = choice.max() + 1 + np.arange(len(lost))  # without a sample nobody knows where they belong
        return {"coalition": choice, "label_counts": counts}


def spread_to_members(personal: Tree, choice: Array, here: list[int]) -> Tree:
    """The clients' models with those of absent members replaced by their coalition's."""
    absent = [i for i in range(len(choice)) if i not in here and choice[i] >= 0 and choice[i] in choice[here]]
    if not absent:
        return personal
    sources = [here[int(np.flatnonzero(choice[here] == choice[i])[0])] for i in absent]
    after = {}
    for name, rows in personal.items():
        after[name] = rows.copy()
        after[name][absent] = rows[sources]
    return after
