"""FRL: clients rank the edges of a fixed random network, the server counts votes, and the best edges are the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array
from pluribus.federated.seeding import generator
from pluribus.federated.server.base import Offer, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, register
from pluribus.federated.training import batches


@register
@dataclass(frozen=True)
class FRL(Server):
    """``model = w * (rank >= (1 - keep) d)``: of each matrix's d edges those that rank highest by the sum of the votes.

    Matrices have fixed random weights ``w = +-sqrt(2 / (keep fan_in))``, drawn from ``seed``; all other tensors stay as
    they were at first. Clients turn global ranks into evenly spaced scores, train the scores by edge-popup (the mask's
    slope is taken as one, `job.how` gives batches, steps and momentum), and send each edge's new rank, 0 the lowest.
    The server adds them, exactly, in integers, and ranks the sums; ties go to the earlier edge. So one client
    moves an edge's tally by at most d - 1, whatever it sends, and one that sends no ranking is left out; the updates
    are not looked at. A message is ``d log2 d`` bits (`FRLClient.upload_bytes`).

    Compared with the authors' code (SPIN-UMass/FRL, utils.py and models/): vote, order and scores from sorted starting
    scores. There the mask is of the scores' sizes while their signed order is sent; here both are of the signed order.

    Parameters
    ----------
    keep
        Share of each matrix's edges that the model has, in (0, 1).
    score_lr
        The scores' learning rate, in the place of the federation's.
    seed
        Of weights and first ranks: another seed is another network.
    """

    keep: float = 0.5
    score_lr: float = 1.0
    seed: int = 0

    key = "frl"
    formula = "model = w * (rank >= (1 - keep) d), rank = order of sum_i rank_i, w fixed and random"
    source = "Mozaffari, Shejwalkar and Houmansadr, Every Vote Counts: Ranking-Based Training, USENIX Security 2023"
    explanation = "Clients vote on which edges of a fixed random network to keep, so no client's size can count."
    numbers = (321,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FRL", "keep", self.keep)
        if self.keep >= 1:
            raise RuleError(f"FRL: keep must be below 1, a share of the edges, not {self.keep!r}")
        positive("FRL", "score_lr", self.score_lr)
        whole_number("FRL", "seed", self.seed, 0)

    @property
    def client(self) -> FRLClient:
        """Training of scores."""
        return FRLClient(self.keep, self.score_lr)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``rank``: each edge's, int64; ``edges``: the fixed weights. ``params`` is the first masked network."""
        names = [name for name in self.parameters(params) if params[name].ndim >= 2 and params[name].dtype.kind == "f"]
        if not names:
            raise RuleError(f"frl needs matrices of real numbers, and the model has {', '.join(params)}")
        edges, rank = {}, {}
        for number, name in enumerate(names):
            shape = params[name].shape
            rng = generator(self.seed, "frl.network", number)
            size = np.sqrt(2.0 / (self.keep * np.prod(shape[1:])))
            edges[name] = (size * rng.choice([-1.0, 1.0], size=shape)).astype(params[name].dtype)
            rank[name] = rng.permutation(edges[name].size).reshape(shape)
        return {"params": {**params, **masked(edges, rank, self.keep)}, "edges": edges, "rank": rank}

    def offer(self, state: State, client: int) -> Offer:
        """The model, its edges and their ranks."""
        return Offer(state["params"], {"edges": state["edges"], "rank": state["rank"]})

    def advance(self, state: State, round: Round) -> Step:
        """Count the votes."""
        told = self.sent(round, "rank").updates
        fair = np.array([is_ranking(tree, state["rank"]) for tree in told])
        if not fair.any():
            raise RuleError(
                f"round {round.number}: no participant sent a ranking (whole numbers 0 .. d - 1, each once, for each "
                "matrix); let the clients train with the rule's own method, `FRL().client`"
            )
        votes = [tree for tree, good in zip(told, fair, strict=True) if good]
        rank = {name: vote([tree[name] for tree in votes]) for name in state["rank"]}
        params = {**state["params"], **masked(state["edges"], rank, self.keep)}
        return Step(params, fair / fair.sum(), {"rank": rank})


@dataclass(frozen=True)
class FRLClient:
    """The client's half of `FRL`."""

    keep: float
    score_lr: float

    def train(self, job: Job) -> Report:
        """Train scores; the model comes back as it was, and ``rank`` beside it."""
        edges = job.told["edges"]
        scores = {name: score_of(rank, edges[name]) for name, rank in job.told["rank"].items()}
        velocity = {name: np.zeros_like(value) for name, value in scores.items()}
        params, summed, seen, steps = dict(job.params), 0.0, 0, 0
        for batch in batches(job.dataset, job.how, job.seed):
            ranks = {name: ranks_of(value) for name, value in scores.items()}
            loss, grads = job.model.loss_and_grad({**params, **masked(edges, ranks, self.keep)}, batch)
            for name, weight in edges.items():
                slope = grads[name] * weight if name in grads else 0.0  # frozen tensors have no gradient
                velocity[name] = job.how.momentum * velocity[name] + slope
                scores[name] = scores[name] - self.score_lr * velocity[name]
            summed += loss * len(batch.y)
            seen += len(batch.y)
            steps += 1
        sent = {name: ranks_of(value).astype(np.int32) for name, value in scores.items()}
        copied = {name: np.array(value) for name, value in params.items()}
        return Report(copied, summed / seen, steps, {"rank": sent}, job.memory)

    @staticmethod
    def upload_bytes(update: Tree, message: Mapping[str, Tree]) -> int:
        """Bytes of what has to travel: of each matrix d numbers of ``ceil(log2 d)`` bits."""
        sizes = [value.size for value in message["rank"].values()]
        return sum(-(-size * max((size - 1).bit_length(), 1) // 8) for size in sizes)


def ranks_of(scores: Array) -> Array:
    """How many scores are below each, (scores' shape), int64; of equals the earlier ranks lower."""
    flat = scores.ravel()
    rank = np.empty(flat.size, dtype=np.int64)
    rank[np.argsort(flat, kind="stable")] = np.arange(flat.size)
    return rank.reshape(scores.shape)


def vote(rankings: list[Array]) -> Array:
    """The ranking of the summed ranks; the sums are exact. One ranking, or equal ones, are kept."""
    return ranks_of(np.sum([np.asarray(rank, dtype=np.int64) for rank in rankings], axis=0))


def is_ranking(told: Mapping[str, Array], ranks: Mapping[str, Array]) -> bool:
    """Whether a message holds, for each matrix, each of 0 .. d - 1 once."""
    for name, rank in ranks.items():
        value = np.asarray(told.get(name, ()))
        if value.shape != rank.shape or value.dtype.kind not in "iu":
            return False
        if not np.array_equal(np.sort(value, axis=None), np.arange(rank.size)):
            return False
    return True


def masked(edges: Mapping[str, Array], rank: Mapping[str, Array], keep: float) -> Tree:
    """The weights of the ``keep`` best edges of each matrix, zero elsewhere; at least one edge is kept."""
    found: Tree = {}
    for name, weight in edges.items():
        count = max(1, round(keep * weight.size))
        found[name] = np.where(rank[name] >= weight.size - count, weight, weight.dtype.type(0))
    return found


def score_of(rank: Array, like: Array) -> Array:
    """Scores with these ranks, evenly spaced in ``+-1 / sqrt(fan_in)``, in the precision of ``like``."""
    bound = 1.0 / np.sqrt(np.prod(rank.shape[1:]))
    scores: Array = (bound * (2 * (rank + 0.5) / rank.size - 1)).astype(like.dtype)
    return scores
