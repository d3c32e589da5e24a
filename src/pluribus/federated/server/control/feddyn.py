"""FedDyn: a client's loss is tilted round by round until local and global optimum agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, mean, register
from pluribus.federated.training import UNCHANGED, Hooks


@register
@dataclass(frozen=True)
class FedDyn(Server):
    """``h - alpha sum_i delta_i / N``, ``x + mean_i delta_i - h / alpha``; local: ``g_i(y) - l_i + alpha (y - x)``.

    Client i minimises ``F_i(y) - <l_i, y> + alpha / 2 |y - x|^2`` and then sets ``l_i <- l_i - alpha delta_i``, which
    at its minimum is its gradient there. Participants count alike. On quadratics the fixed point is the optimum of the
    mean objective, whatever the number of local steps. The clients keep one model each, the server one.

    Compared with algorithm 1 of the paper as the authors' code has it (alpemreacar/FedDyn, utils_methods.py, where the
    kept differences are -l_i / alpha), without its division of alpha by the client's share of samples.

    Parameters
    ----------
    alpha
        How strongly a client is held near x; the paper takes 0.1 to 0.001.
    """

    alpha: float = 0.1

    key = "feddyn"
    formula = (
        "h - alpha sum_i delta_i / N, x + mean_i delta_i - h / alpha; local: y - lr_l (g_i(y) - l_i + alpha (y - x))"
    )
    source = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"
    explanation = "Each client's loss is tilted so that its own optimum moves to everybody's."

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedDyn", "alpha", self.alpha)

    @property
    def client(self) -> FedDynClient:
        """Training under the tilted loss."""
        return FedDynClient(self.alpha)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``drift``: -h / alpha, the sum of all mean updates, zero at first; float64."""
        return {"drift": {name: np.zeros(params[name].shape) for name in self.parameters(params)}}

    def advance(self, state: State, round: Round) -> Step:
        """Move by the mean update and by all mean updates so far, those of absent clients as zero."""
        counted = np.full(len(round.clients), 1 / len(round.clients))
        change = mean(round, counted)
        share = len(round.clients) / round.n_clients
        drift = {name: value + share * change[name] for name, value in state["drift"].items()}
        change |= {name: change[name] + value for name, value in drift.items()}
        return Step(self.moved(state["params"], change), counted, {"drift": drift})


@dataclass(frozen=True)
class FedDynClient:
    """The client's half of `FedDyn`; keeps ``slope``, its l_i."""

    alpha: float

    def train(self, job: Job) -> Report:
        """Local steps under the tilted loss."""
        return tilted(job, "slope", lambda gap: self.alpha * gap)


def tilted(job: Job, kept: str, pull: Callable[[Array], Array], hooks: Hooks = UNCHANGED) -> Report:
    """Local steps along ``g(y) - l + pull(y - x)``; the client keeps ``l - pull(y_end - x)`` as its next l.

    Parameters
    ----------
    job
        Its memory holds l, a tree, under the name ``kept``; zero at first.
    kept
        That name.
    pull
        The slope of the proximal term from how far a tensor has moved.
    hooks
        Others, such as what takes the place of g; their ``adjust`` is this one.
    """
    before: Tree = dict(job.memory.get(kept) or {})
    trained: set[str] = set()

    def adjust(own: Tree, grads: Tree, step: int) -> None:
        trained.update(grads)
        for name in grads:
            grads[name] += pull(own[name] - job.params[name])
            if name in before:
                grads[name] -= before[name]

    report = job.train(replace(hooks, adjust=adjust))
    after = {name: before.get(name, 0.0) - pull(report.params[name] - job.params[name]) for name in sorted(trained)}
    return report._replace(memory={kept: after})
