"""FedLD: layers rebuilt along the directions that the updates share, and clients that shun large margins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive
from pluribus.federated.clients.base import ClientMethod, Job, Plain, Report
from pluribus.federated.models import Array, Batch, softmax
from pluribus.federated.server.base import Round, State, Tree
from pluribus.federated.server.contribution.shared import rest_of
from pluribus.federated.server.control.pullback import logits, pull
from pluribus.federated.server.rule import Server, Step, contributions, one_of, portion, register, shares_by
from pluribus.federated.training import Evaluate, Hooks
from pluribus.rules import PrincipalDirections


@register
@dataclass(frozen=True)
class FedLD(Server):
    """``x + lr principal_directions(delta_1 ... delta_k)`` tensor by tensor; local loss: CE + margin log(1 + |P|^2).

    See `pluribus.rules.PrincipalDirections` for the server's half, which here goes over one tensor after another. P are
    a batch's class probabilities and |P|^2 the sum of their squares over classes and batch, so the penalty is largest
    where all samples are sure. A client's weight is the mean of its coefficients, each tensor counting by its size.
    Takes softmax, mlp:H and torch modules; with margin = 0 any model.

    Compared with svd_tools.py and fedld.py of the authors (Zeng-Shuang/FedLD): the same penalty, and the same rule
    where its signs are ``"own"`` (their flips change nothing, see the rule; their own division by a zero projection is
    the NaN of their issue 1). They take the plain mean in the first round and for tensors of one number, count clients
    alike, and treat running variances of BatchNorm as layers; here buffers get the plain mean. On digits (5 seeds) the
    weight of noisy clients falls from .25 to .05 or less, but accuracy is FedAvg's within the spread there, and lower
    under label skew (.85 of .88) and where clients' images are turned (.79 of .82): the paper's gain does not show.

    Parameters
    ----------
    keep
        The share of the directions that is kept, in (0, 1]; at least one is.
    margin
        Weight of the clients' penalty.
    signs
        ``"majority"`` or ``"own"``.
    weighting
        ``"uniform"`` as in the authors' code, or ``"size"``.
    server_lr
        Step along the result.
    """

    keep: float = 0.8
    margin: float = 0.1
    signs: str = "majority"
    weighting: str = "uniform"
    server_lr: float = 1.0

    key = "fedld"
    formula = "x + lr mean_i |delta_i| sum_j (s_j / sum s) sign_j v_j, each tensor; local: CE + margin log(1 + |P|^2)"
    source = "Zeng et al., Tackling Data Heterogeneity in Federated Learning via Loss Decomposition, MICCAI 2024"
    explanation = "Each layer moves along the directions that the clients share, and clients shun being too sure."
    numbers = (2,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedLD", "margin", self.margin, zero=True)
        positive("FedLD", "server_lr", self.server_lr)
        one_of(self, "weighting", ("uniform", "size"))
        one_of(self, "signs", ("majority", "own"))
        portion(self, "keep")

    @property
    def client(self) -> ClientMethod:
        """Training with the penalty."""
        return MarginClient(self.margin) if self.margin else Plain()

    def advance(self, state: State, round: Round) -> Step:
        """Rebuild the updates tensor by tensor, and move by their mean."""
        rule = PrincipalDirections(keep=self.keep, signs="own" if self.signs == "own" else "majority")
        k, shares = len(round.clients), shares_by(round, self.weighting)
        change: Tree = {}
        counted, total = np.zeros(k), 0
        for name in self.parameters(state["params"]):
            result = rule(contributions(round, [name]), shares)
            change[name] = result.value[name]
            size = state["params"][name].size
            counted += size * result.weights
            total += size
        change |= rest_of(self, state["params"], round, shares)
        return Step(self.moved(state["params"], change, self.server_lr), counted / max(total, 1), {})


@dataclass(frozen=True)
class MarginClient:
    """The client's half of `FedLD`."""

    margin: float

    def train(self, job: Job) -> Report:
        """Local steps with the penalty."""

        def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
            loss, grads = evaluate(own, batch)
            slope = self.margin * margin_slope(logits(job.model, own, batch.x))
            for name, extra in pull(job.model, own, batch.x, slope).params.items():
                grads[name] += extra
            return loss, grads

        return job.train(Hooks(gradient=gradient))


def margin_slope(scores: Array) -> Array:
    """Slope of ``log(1 + sum_ij p_ij^2)`` in a batch's scores, (n, classes), p their softmax."""
    p = softmax(scores)
    squares = (p * p).sum(axis=1, keepdims=True)
    slope: Array = 2 * p * (p - squares) / (1 + squares.sum())
    return slope
