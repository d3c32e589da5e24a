"""FED-PUB: each client gets the mean of those whose models do the same, and learns a sparse mask over it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array, Batch
from pluribus.federated.server.base import Offer, Round, State, Tree
from pluribus.federated.server.per_client import Personal, placed, row, shared
from pluribus.federated.server.personal.embedding import KINDS, cosines, functional_embedding, probes
from pluribus.federated.server.rule import Step, one_of, register, size_shares
from pluribus.federated.training import Evaluate, Hooks


@register
@dataclass(frozen=True)
class FedPUB(Personal):
    """Client i gets ``sum_j alpha_ij y_j``, alpha_ij = softmax over j of ``tau cos(h_i, h_j)``, and masks it.

    h_j are client j's scores on random inputs that all share (its *functional embedding*), so hidden units numbered
    otherwise change nothing. tau = 0 is the plain mean, a large tau local training. With ``l1 > 0`` every client learns
    a mask over each matrix, from ones, by SGD on ``loss(mask * w) + l1 |mask|_1``; entries below l1 are zero when the
    model is used. The mask stays with the client (the state holds it for measuring): memory is 2 N + 1 models, N + 1
    without masks.

    Compared with the authors' code (JinheonBaek/FED-PUB, models/fedpub): the same weights and masks. There inputs are
    random graphs for a graph network and h is their mean output (``embedding="mean"``, which on digits tells the groups
    apart less); masks and weights have Adam; a distance to the last model is added to the loss (here: ``proximal``).

    On two groups of three clients with 60 digits each, who call them differently (12 rounds, 5 seeds; softmax, mlp:16):
    accuracy .89 and .87, local training .85 and .83, FedAvg .45 both; where all are alike as FedAvg.

    Parameters
    ----------
    tau
        How much more the like-minded count, at least 0.
    l1
        Weight of the mask's absolute values, and what counts as zero in it; 0 for no masks.
    probes
        Random inputs.
    embedding
        ``"all"`` scores, or their ``"mean"`` over the inputs.
    seed
        Of the inputs.
    """

    tau: float = 10.0
    l1: float = 1e-3
    probes: int = 32
    embedding: str = "all"
    seed: int = 0

    key = "fedpub"
    formula = "y_i <- sum_j alpha_ij y_j, alpha_i = softmax_j(tau cos(h_i, h_j)), h = scores on shared random inputs"
    source = "Baek et al., Personalized Subgraph Federated Learning, ICML 2023"
    explanation = "Each client gets the mean of the models that do what its own does, and masks what it does not need."
    numbers = (388,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedPUB", "tau", self.tau, zero=True)
        positive("FedPUB", "l1", self.l1, zero=True)
        whole_number("FedPUB", "probes", self.probes, 1)
        whole_number("FedPUB", "seed", self.seed, 0)
        one_of(self, "embedding", KINDS)

    @property
    def client(self) -> MaskedClient:
        """Masked training, and the scores on random inputs."""
        return MaskedClient(self.l1, self.probes, self.embedding, self.seed)

    def remember(self, params: Tree, n_clients: int) -> State:
        """As `Personal`, and ``mask`` with an axis of clients, ones."""
        state = super().remember(params, n_clients)
        names = masked(params) if self.l1 else []
        return state | ({"mask": {n: np.ones_like(state["personal"][n]) for n in names}} if names else {})

    def offer(self, state: State, client: int) -> Offer:
        """The client's mean, without its mask."""
        return Offer(super().model_of(state, client), {})

    def model_of(self, state: State, client: int) -> Tree:
        """The client's mean under its mask."""
        own = super().model_of(state, client)
        return own | pruned(own, row(state.get("mask", {}), client), self.l1)

    def advance(self, state: State, round: Round) -> Step:
        """Mix the participants' models by what they do."""
        embeddings = [tree["outputs"] for tree in self.sent(round, "embedding").updates]
        alpha = like_minded(cosines(embeddings), self.tau)
        shares = size_shares(round)
        everybody, memory = shared(state, round, alpha, shares)
        if "mask" in state:
            memory["mask"] = placed(state["mask"], round, self.sent(round, "mask").updates)
        return Step(everybody, shares, memory)


@dataclass(frozen=True)
class MaskedClient:
    """The client's half of `FedPUB`; keeps its ``mask``."""

    l1: float
    probes: int
    embedding: str
    seed: int

    def train(self, job: Job) -> Report:
        """Weights and mask by SGD, and the embedding of what came of it."""
        x = probes(job.dataset, self.probes, self.seed)
        if not self.l1 or not masked(job.params):
            report = job.train()
            found = functional_embedding(job.model, report.params, x, self.embedding)
            return report._replace(message={"embedding": {"outputs": found}})
        kept = job.memory.get("mask") or {name: np.ones_like(job.params[name]) for name in masked(job.params)}
        mask: Tree = {name: np.array(value) for name, value in kept.items()}

        def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
            loss, grads = evaluate(own | {name: own[name] * value for name, value in mask.items()}, batch)
            for name in mask.keys() & grads.keys():
                slope = grads[name] * own[name] + self.l1 * np.sign(mask[name])
                grads[name] *= mask[name]
                mask[name] -= job.how.lr * slope
            return loss, grads

        report = job.train(Hooks(gradient=gradient))
        used = report.params | pruned(report.params, mask, self.l1)
        found = functional_embedding(job.model, used, x, self.embedding)
        return report._replace(message={"embedding": {"outputs": found}, "mask": mask}, memory={"mask": mask})


def masked(params: Tree) -> list[str]:
    """Names of the tensors that have a mask: floats with two axes or more."""
    return [name for name, value in params.items() if value.ndim >= 2 and value.dtype.kind == "f"]


def pruned(params: Tree, mask: Tree, least: float) -> Tree:
    """The masked tensors as they are used: entries of the mask below ``least`` are zero."""
    return {name: params[name] * np.where(np.abs(value) < least, 0, value) for name, value in mask.items()}


def like_minded(cosine: Array, tau: float) -> Array:
    """Row-wise ``softmax(tau cosine)``, (k, k)."""
    powers = np.exp(tau * (cosine - cosine.max(axis=1, keepdims=True)))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
