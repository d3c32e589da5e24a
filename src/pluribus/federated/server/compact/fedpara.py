"""FedPara: weights as Hadamard products of low-rank matrices, so that few numbers travel and ranks are high."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pluribus.core.errors import RuleError
from pluribus.core.rule import whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array, Batch, BufferedModel, Model, Tree
from pluribus.federated.parts import Pulled
from pluribus.federated.seeding import generator
from pluribus.federated.server.base import Offer, Round, State
from pluribus.federated.server.control.pullback import logits, pull
from pluribus.federated.server.rule import Server, Step, mean, register, size_shares

FACTORS = ("x1", "y1", "x2", "y2")
PRIVATE = (".x2", ".y2")


@dataclass(frozen=True)
class FedPara:
    """A model whose matrices W, (m, n), are ``(X1 Y1') * (X2 Y2')``, or ``(X1 Y1') * (X2 Y2' + 1)`` if personal.

    The tree holds ``NAME.x1``, (m, rank), ``NAME.y1``, (n, rank), ``.x2`` and ``.y2`` in the place of NAME for each
    matrix for which that saves numbers, ``2 rank (m + n) < m n``; W has a rank of up to rank^2 (rank (rank + 1) if
    personal). Other tensors are as in the model. Any server rule averages such a tree. Factors are drawn so that
    entries of W have the variance that the model's own start has; of a matrix that starts at zero X1 does, and of a
    personal form X2. Kernels of convolutions are left as they are.

    Compared with the authors' notebook (South-hw/FedPara_ICLR22; its convolution form and its scale are other).
    """

    model: Model
    rank: int
    personal: bool = False

    def __post_init__(self) -> None:
        whole_number("FedPara", "rank", self.rank, 1)

    def init(self, seed: int) -> Tree:
        """Factors and the model's other tensors."""
        return factorise(self.model.init(seed), self.rank, seed, self.personal)

    def loss_and_grad(self, params: Tree, batch: Batch) -> tuple[float, Tree]:
        """The model's loss, and its gradient by the chain rule."""
        loss, grads = self.model.loss_and_grad(compose(params, self.personal), batch)
        return loss, chain(params, grads, self.personal)

    def loss_grad_and_buffers(self, params: Tree, batch: Batch) -> tuple[float, Tree, Tree]:
        """As ``loss_and_grad``, with the model's buffers if it has any."""
        if not isinstance(self.model, BufferedModel):
            return *self.loss_and_grad(params, batch), {}
        loss, grads, buffers = self.model.loss_grad_and_buffers(compose(params, self.personal), batch)
        return loss, chain(params, grads, self.personal), buffers

    def logits(self, params: Tree, x: Array) -> Array:
        """Scores before the softmax."""
        return logits(self.model, compose(params, self.personal), x)

    def predict(self, params: Tree, x: Array) -> NDArray[np.int64]:
        """The most probable class of each sample."""
        return self.model.predict(compose(params, self.personal), x)

    def probabilities(self, params: Tree, x: Array) -> Array:
        """Class probabilities."""
        return self.model.probabilities(compose(params, self.personal), x)

    def pull(self, params: Tree, x: Array, slope: Array) -> Pulled:
        """See `pullback.pull`."""
        pulled = pull(self.model, compose(params, self.personal), x, slope)
        return Pulled(chain(params, pulled.params, self.personal), pulled.samples)


def factorise(params: Tree, rank: int, seed: int, personal: bool = False) -> Tree:
    """Fresh factors for the matrices of a tree for which they save numbers; the other tensors as they are."""
    made: Tree = {}
    for number, (name, value) in enumerate(params.items()):
        m, n = value.shape if value.ndim == 2 and value.dtype.kind == "f" else (0, 0)
        if not 2 * rank * (m + n) < m * n:
            made[name] = np.array(value)
            continue
        variance = float(np.square(value, dtype=np.float64).mean()) or 1.0 / n
        scale = (variance / rank) ** 0.25 if personal else (variance / rank**2) ** 0.125
        rng = generator(seed, "fedpara.factors", number)
        for factor, rows in zip(FACTORS, (m, n, m, n), strict=True):
            drawn = scale * rng.standard_normal((rows, rank))
            zero = factor == ("x2" if personal else "x1") and (personal or not value.any())
            zero = zero or (factor == "x1" and not value.any())
            made[f"{name}.{factor}"] = (np.zeros_like(drawn) if zero else drawn).astype(value.dtype)
    return made


def factored(params: Mapping[str, Array]) -> list[str]:
    """Names of the matrices that a tree holds as factors."""
    return [name.removesuffix(".x1") for name in params if name.endswith(".x1")]


def compose(params: Mapping[str, Array], personal: bool = False) -> Tree:
    """The tree with its matrices in the place of their factors. Without ``.x2``, a personal W is its global half."""
    names = factored(params)
    parts = {f"{name}.{factor}" for name in names for factor in FACTORS}
    tree = {name: value for name, value in params.items() if name not in parts}
    for name in names:
        first, second = _halves(params, name, personal)
        tree[name] = first * second
    return tree


def chain(params: Mapping[str, Array], grads: Mapping[str, Array], personal: bool = False) -> Tree:
    """Gradients in the factors, from those in the matrices."""
    names = factored(params)
    found = {name: value for name, value in grads.items() if name not in names}
    for name in names:
        if name not in grads:
            continue
        first, second = _halves(params, name, personal)
        for slope, x, y in ((grads[name] * second, "x1", "y1"), (grads[name] * first, "x2", "y2")):
            found[f"{name}.{x}"] = slope @ params[f"{name}.{y}"]
            found[f"{name}.{y}"] = slope.T @ params[f"{name}.{x}"]
    return found


def _halves(params: Mapping[str, Array], name: str, personal: bool) -> tuple[Array, Array]:
    first = params[f"{name}.x1"] @ params[f"{name}.y1"].T
    if personal and f"{name}.x2" not in params:
        return first, np.ones_like(first)
    second = params[f"{name}.x2"] @ params[f"{name}.y2"].T
    return first, second + second.dtype.type(1) if personal else second


@dataclass(frozen=True)
class _Factored(Server):
    """What both rules share: the state holds the factors, and ``params`` is what they compose to."""

    rank: int = 3

    source = "Hyeon-Woo, Ye-Bin and Oh, FedPara: Low-Rank Hadamard Product for Federated Learning, ICLR 2022"
    numbers = (355,)
    personal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(type(self).__name__, "rank", self.rank, 1)

    @property
    def client(self) -> FedParaClient:
        """Training of the factors."""
        return FedParaClient(self.rank, self.personal)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``factors``: those that are shared; if personal ``private``: the others with a leading axis of clients."""
        seed = 0
        for name in sorted(params):
            seed = zlib.crc32(np.ascontiguousarray(params[name]).tobytes(), seed)
        whole = factorise(params, self.rank, seed, self.personal)
        factors = {name: value for name, value in whole.items() if name not in params}
        if not factors:
            raise RuleError(
                f"{self.name}: no matrix of the model has fewer numbers as factors of rank {self.rank}; take a smaller "
                "rank or a larger model"
            )
        private = {n: v for n, v in factors.items() if self.personal and n.endswith(PRIVATE)}
        shared = {name: value for name, value in factors.items() if name not in private}
        kept: State = {"params": compose(whole, self.personal), "factors": shared}
        if private:
            kept["private"] = {name: np.repeat(value[None], n_clients, axis=0) for name, value in private.items()}
        return kept

    def offer(self, state: State, client: int) -> Offer:
        """The client's model, and the factors that it is made of."""
        return Offer(self.model_of(state, client), {"factors": self._factors(state, client)})

    def model_of(self, state: State, client: int) -> Tree:
        """The composed model, with the client's own halves if personal."""
        if not self.personal:
            params: Tree = state["params"]
            return params
        return {**state["params"], **compose(self._factors(state, client), True)}

    def _factors(self, state: State, client: int) -> Tree:
        return {**state["factors"], **{name: value[client] for name, value in state.get("private", {}).items()}}

    def advance(self, state: State, round: Round) -> Step:
        """Average the factors' changes, and all other tensors'."""
        shares = size_shares(round)
        factors = self.moved(state["factors"], mean(self.sent(round, "factors"), shares))
        params = {**self.moved(state["params"], mean(round, shares)), **compose(factors, self.personal)}
        memory: State = {"factors": factors}
        if "private" in state:
            private = {name: value.copy() for name, value in state["private"].items()}
            for client, kept in zip(round.clients, self.sent(round, "private").updates, strict=True):
                for name, stacked in private.items():
                    stacked[client] = kept[name]
            memory["private"] = private
        return Step(params, shares, memory)


@register
@dataclass(frozen=True)
class FedParaAvg(_Factored):
    """FedAvg on the factors of ``W = (X1 Y1') * (X2 Y2')``; of each matrix 2 rank (m + n) numbers travel, not m n.

    The rule factorises the federation's own model as `FedPara` does, starting anew; its clients train factors, the
    server averages them by samples, and ``params`` is what they compose to. Equal clients are a fixed point. The
    simulation counts the composed update's bytes too: `FedParaClient.upload_bytes` says what has to travel. On digits
    (mlp:64, rank 4, 3 seeds) a plain low-rank layer of equal size is ahead of it at small rates (.890, here .872), and
    at large ones this form is the less stable: the published order does not show at this size.

    Compared as for `FedPara`.

    Parameters
    ----------
    rank
        Of each factor; W's may be rank^2. ``ceil(sqrt(min(m, n)))`` makes full rank possible.
    """

    key = "fedpara"
    formula = "W = (X1 Y1') * (X2 Y2'), each factor X + sum_i n_i dX_i / sum_i n_i"
    explanation = "Each weight matrix is made of four thin ones, and only these are trained, sent and averaged."


@register
@dataclass(frozen=True)
class PFedPara(_Factored):
    """``W_i = (X1 Y1') * (X2_i Y2_i' + 1)``: X1 and Y1 are averaged, X2 and Y2 are each client's own.

    The global model is ``X1 Y1'``, which a client with X2 Y2' = 0 has, as all do at first. The simulation's server
    holds the N clients' halves for their disks; in a deployment they never travel, as
    `FedParaClient.upload_bytes` counts.

    Compared as for `FedPara`.

    Parameters
    ----------
    rank
        Of each factor.
    """

    key = "pfedpara"
    formula = "W_i = (X1 Y1') * (X2_i Y2_i' + 1), X1 and Y1 + sum_i n_i dX_i / sum_i n_i"
    explanation = "Each weight matrix is a shared low-rank one, scaled entry by entry by one of the client's own."
    personal: ClassVar[bool] = True
    personal_models: ClassVar[bool] = True


@dataclass(frozen=True)
class FedParaClient:
    """The client's half of `FedParaAvg` and `PFedPara`."""

    rank: int
    personal: bool

    def train(self, job: Job) -> Report:
        """Train the factors; the report's model is what they compose to."""
        told = {name: np.array(value) for name, value in job.told["factors"].items()}
        names = set(factored(told))
        params = {name: value for name, value in job.params.items() if name not in names} | told
        report = replace(job, model=FedPara(job.model, self.rank, self.personal), params=params).train()
        mine = [name for name in told if self.personal and name.endswith(PRIVATE)]
        change = {name: report.params[name] - told[name] for name in told if name not in mine}
        message: dict[str, Tree] = {"factors": change}
        if mine:
            message["private"] = {name: report.params[name] for name in mine}
        composed = compose(report.params, self.personal)
        return report._replace(params={name: composed[name] for name in job.params}, message=message)

    @staticmethod
    def upload_bytes(update: Tree, message: Mapping[str, Tree]) -> int:
        """Bytes of what has to travel: shared factors, and the tensors that are not factored."""
        names = set(factored(message["factors"]))
        rest = sum(value.nbytes for name, value in update.items() if name not in names)
        return rest + sum(value.nbytes for value in message["factors"].values())
