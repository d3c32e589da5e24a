"""FedGELA: everybody trains features for one fixed simplex classifier, each client for its own classes' share of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array, Batch, Tree
from pluribus.federated.parts import head_names, parts_of
from pluribus.federated.server.base import State
from pluribus.federated.server.fedavg import FedAvg
from pluribus.federated.server.heads.etf import simplex_etf
from pluribus.federated.server.heads.fixed import body_names, head_of, through_head
from pluribus.federated.server.rule import register
from pluribus.federated.training import Evaluate, Hooks


@register
@dataclass(frozen=True)
class FedGELA(FedAvg):
    """FedAvg of the body; the head is fixed, ``s sqrt(C/(C-1)) P (I - 11'/C)``, class c times C n_kc / n_k at client k.

    The head is a simplex: all classes have equal norms and angles, whatever is rare. Client k trains with the score of
    class c multiplied by ``C n_kc / n_k``, so that classes that it lacks take no room, and a balanced client has the
    global head. The head's bias is zero. Features are made in evaluation mode, so running means do not move. In fewer
    dimensions than C - 1 there is no simplex; see `simplex_etf`.

    Compared with the authors' code (MediaBrain-SJTU/FedGELA, FedGELA.py: get_etf, produce_Ew, train_net), whose 1 /
    temperature is ``scale``. Their features pass a BatchNorm layer before the head; here they are put on the sphere in
    training, which changes no decision of the head. On class-partitioned digits FedAvg's learned head is ahead (10
    clients, shards:2, mlp:32, 15 rounds, 3 seeds: .743, and .655, .603 and .577 at scales 2, 5 and 10; .562 at best
    without the sphere). Divided alike, the larger scales are ahead (5 clients, 10 rounds: .848, and .597, .832, .897).

    Parameters
    ----------
    scale
        Norm of the head's rows.
    server_lr, weighting
        As for `FedAvg`.
    """

    scale: float = 5.0

    key = "fedgela"
    formula = "FedAvg of the body; head fixed: s sqrt(C/(C-1)) P (I - 11'/C), client k's column c times C n_kc / n_k"
    source = "Fan et al., Federated Learning with Bilateral Curation for Partially Class-Disjoint Data, NeurIPS 2023"
    explanation = "All clients train features for one fixed classifier whose classes are equally far apart."
    numbers = (12,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedGELA", "scale", self.scale)

    @property
    def client(self) -> FedGELAClient:
        """Training of the body below the scaled head."""
        return FedGELAClient()

    def remember(self, params: Tree, n_clients: int) -> State:
        """``params`` with the fixed head."""
        body_names(self, params)
        weight, bias = head_names(params, self.name)
        fixed = self.scale * simplex_etf(*params[weight].shape)
        made = {**params, weight: fixed.astype(params[weight].dtype)}
        return {"params": made if bias is None else made | {bias: np.zeros_like(params[bias])}}


def class_scales(counts: Array) -> Array:
    """``C n_c / n`` from samples of each class, (C,); all 1 for a balanced client."""
    counts = np.asarray(counts, dtype=np.float64)
    scales: Array = len(counts) * counts / counts.sum()
    return scales


@dataclass(frozen=True)
class FedGELAClient:
    """The client's half of `FedGELA`."""

    def train(self, job: Job) -> Report:
        """Local steps of the body."""
        parts = parts_of(job.model)
        head = job.params[parts.weight]
        weight = (class_scales(job.dataset.counts)[:, None] * head).astype(head.dtype)

        def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
            return through_head(parts, own, batch, weight, on_sphere=True)[:2]

        report = job.train(Hooks(gradient=gradient))
        report.params.update({n: np.array(v) for n, v in head_of(job.params, parts.weight, parts.bias).items()})
        return report
