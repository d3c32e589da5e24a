"""AFL: the head is a least-squares fit on frozen features, found in one round and equal to the centralised one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.analytic import Sums, merge, solve, sums
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Batch
from pluribus.federated.parts import head_names, parts_of
from pluribus.federated.server.base import Array, Offer, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, register, size_shares


@register
@dataclass(frozen=True)
class AFL(Server):
    """``W = (sum_i X_i'X_i + ridge I)^-1 sum_i X_i'Y_i``, X_i a client's features of the frozen body, Y_i one-hot.

    One round with everybody is the centralised solution for any split of the samples; a client that comes in a later
    round is added then, and each client counts once, however often it comes. The body is never trained: with ``mlp:H``
    it makes H random features, and a `TorchModel` may bring a trained one. A head with a bias gets an intercept, which
    the ridge holds down too. The scores are fits to 0 and 1, so accuracy says more than the loss. Nobody trains, so
    rates and epochs do not matter. Memory: d (d + C) numbers for d features, and as many from each client.

    Compared with the equations of the paper's absolute aggregation (`analytic.merge_solved`), to which the sums are
    equal in the tests; the authors send ``X'X + r I`` and the local head, and take the r out at the end.

    Parameters
    ----------
    ridge
        Of the final fit; 0 is plain least squares (the one of least norm).
    """

    ridge: float = 0.0

    key = "afl"
    formula = "W = (sum_i X_i'X_i + ridge I)^-1 sum_i X_i'Y_i"
    source = (
        "He et al., AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models, CVPR 2025"
    )
    explanation = "Clients send sums of products of frozen features, and the server solves for the head at once."
    numbers = (23,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("AFL", "ridge", self.ridge, zero=True)

    @property
    def client(self) -> AFLClient:
        """Sums in the place of training."""
        return AFLClient()

    def remember(self, params: Tree, n_clients: int) -> State:
        """``gram``, (d, d), and ``cross``, (d, C): the sums so far; ``counted``, (N,), whose are in them."""
        weight, bias = head_names(params, self.name)
        classes, d = params[weight].shape
        d += bias is not None
        counted = np.zeros(n_clients, dtype=bool)
        return {"gram": np.zeros((d, d)), "cross": np.zeros((d, classes)), "counted": counted}

    def offer(self, state: State, client: int) -> Offer:
        """The model, and whether the client's sums are there already."""
        return Offer(state["params"], {"counted": state["counted"][client].reshape(1)})

    def advance(self, state: State, round: Round) -> Step:
        """Add the sums of those who are new, and solve."""
        counted = state["counted"].copy()
        found = [Sums(state["gram"], state["cross"])]
        for client, message in round.heard():
            if counted[client]:
                continue
            if "gram" not in message or "cross" not in message:
                raise RuleError(
                    f"afl needs 'gram' and 'cross' of client {client}, which did not send them; let the clients use "
                    "the rule's own method, `AFL().client`"
                )
            part = Sums(np.asarray(message["gram"]), np.asarray(message["cross"]))
            if part.gram.shape != found[0].gram.shape or part.cross.shape != found[0].cross.shape:
                raise RuleError(
                    f"afl: client {client} sent sums of shapes {part.gram.shape} and {part.cross.shape}, and the "
                    f"model's are {found[0].gram.shape} and {found[0].cross.shape}; all need the same body and classes"
                )
            found.append(part)
            counted[client] = True
        whole = merge(*found)
        params = {**state["params"], **self._head(state["params"], solve(whole, self.ridge))}
        memory = {"gram": whole.gram, "cross": whole.cross, "counted": counted}
        return Step(params, size_shares(round), memory)

    def _head(self, params: Tree, fitted: Array) -> Tree:
        weight, bias = head_names(params, self.name)
        d = params[weight].shape[1]
        made = {weight: fitted[:d].T.astype(params[weight].dtype)}
        return made if bias is None else made | {bias: fitted[d].astype(params[bias].dtype)}


@dataclass(frozen=True)
class AFLClient:
    """The client's half of `AFL`: it trains nothing, and sends ``gram`` and ``cross`` once."""

    def train(self, job: Job) -> Report:
        """The sums of the client's features and labels. The loss told is the received model's."""
        parts = parts_of(job.model)
        params = {name: np.array(value) for name, value in job.params.items()}
        loss, _ = job.model.loss_and_grad(params, Batch(job.dataset.x, job.dataset.y))
        if job.told["counted"][0]:
            return Report(params, loss, 0, {}, job.memory)
        h = parts.features(params, job.dataset.x)
        found = sums(h, job.dataset.y, len(params[parts.weight]), intercept=parts.bias is not None)
        return Report(params, loss, 0, {"gram": found.gram, "cross": found.cross}, job.memory)
