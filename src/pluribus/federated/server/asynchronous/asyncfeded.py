"""AsyncFedED: the step of an update is set by how far the model has moved, relative to the update's own length."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pluribus.core.errors import RuleError, listing
from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.server.admission import label
from pluribus.federated.server.asynchronous.arrivals import arrived, staleness_of
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, register
from pluribus.federated.training import LocalTraining


@register
@dataclass(frozen=True)
class AsyncFedED(Server):
    """``x + eta delta`` with ``eta = lam / (gamma + eps)`` and ``gamma = |x - x_start| / |delta|``.

    gamma measures staleness in the space of models: 0 for a fresh update, whose step is the longest, ``lam / eps``.
    Norms are over the trained tensors. Local epochs follow: after an update a client trains for ``E + floor(kappa
    (target - gamma))`` of them, between 1 and ``most`` (the bound above is ours: without staleness E would grow
    without end). Where the settings count steps, E is steps. Several updates that arrive at one step are averaged, each
    with its own eta, so a fresh cohort with lam = eps is FedAvg with uniform weights. The state holds ``epochs``, (N,),
    0 for a client that trains as the settings say, and ``gamma``, (N,), of each client's last update.

    Compared with the AsyncFedED of a public reimplementation (FedOpt), not with the paper's text.

    Parameters
    ----------
    lam, eps
        Numerator and the term that keeps the step finite.
    kappa
        How fast epochs are adapted; 0 leaves them alone.
    target
        The gamma that epochs aim at.
    most
        Upper bound of a client's epochs.
    """

    lam: float = 1.0
    eps: float = 1.0
    kappa: float = 0.5
    target: float = 3.0
    most: int = 10

    key = "asyncfeded"
    formula = "x + lam / (gamma + eps) delta, gamma = |x - x_start| / |delta|, E + floor(kappa (target - gamma))"
    source = "Wang et al., AsyncFedED: Asynchronous Federated Learning with Euclidean Distance, 2022 (arXiv 2205.13797)"
    explanation = "An update counts for less the farther the model has moved away from where the update began."
    numbers = (58,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("AsyncFedED", "lam", self.lam)
        positive("AsyncFedED", "eps", self.eps)
        positive("AsyncFedED", "kappa", self.kappa, zero=True)
        positive("AsyncFedED", "target", self.target, zero=True)
        whole_number("AsyncFedED", "most", self.most, 1)

    @property
    def client(self) -> AsyncFedEDClient:
        """Local training that tells its epochs."""
        return AsyncFedEDClient()

    def remember(self, params: Tree, n_clients: int) -> State:
        """Epochs and gamma of each client."""
        return {"epochs": np.zeros(n_clients, dtype=np.int64), "gamma": np.full(n_clients, np.nan)}

    def local(self, state: State, client: int, how: LocalTraining) -> LocalTraining:
        """With the client's epochs."""
        epochs = int(state["epochs"][client])
        if not epochs:
            return how
        return replace(how, epochs=epochs) if how.steps is None else replace(how, steps=epochs)

    def advance(self, state: State, round: Round) -> Step:
        """Measure gamma, step, and set the epochs of those who came."""
        if round.starts is None and staleness_of(round).any():
            raise RuleError(
                f"{self.name} compares the model with the ones that stale updates began at, and this round does not "
                "know them; give it as Round.starts, or use fedbuff, which counts versions"
            )
        gamma = self._gamma(state["params"], round)
        counted = self.lam / (gamma + self.eps) / len(round.clients)
        here = list(round.clients)
        gammas, epochs = state["gamma"].copy(), state["epochs"].copy()
        gammas[here] = gamma
        if self.kappa:
            change = np.floor(self.kappa * (self.target - gamma))
            epochs[here] = np.clip(self._told(round) + change, 1, self.most)
        moved = arrived(self, state["params"], round, counted)
        return Step(moved, counted, {"epochs": epochs, "gamma": gammas})

    def _gamma(self, params: Tree, round: Round) -> Array:
        names = self.parameters(params)
        found = np.zeros(len(round.clients))
        for k, update in enumerate(round.updates):
            if round.starts is None:
                continue
            start = round.starts[k]
            far = sum(_square(np.asarray(params[name], dtype=np.float64) - start[name]) for name in names)
            length = sum(_square(update[name]) for name in names)
            found[k] = np.sqrt(far / length) if length else np.inf if far else 0.0
        return found

    def _told(self, round: Round) -> Array:
        messages = round.messages or [{}] * len(round.clients)
        missing = [label(i) for i, message in zip(round.clients, messages, strict=True) if "epochs" not in message]
        if missing:
            raise RuleError(
                f"{self.name} adapts local epochs, and {listing(missing)} did not tell how many there were; let the "
                "clients train with `AsyncFedED().client`, or say kappa=0"
            )
        return np.array([int(message["epochs"]) for message in messages])


@dataclass(frozen=True)
class AsyncFedEDClient:
    """The client's half of `AsyncFedED`: trains, and tells for how many epochs (or steps) it did."""

    def train(self, job: Job) -> Report:
        """Local training."""
        told = job.how.epochs if job.how.steps is None else job.how.steps
        return job.train()._replace(message={"epochs": np.array(told)})


def _square(value: Array) -> float:
    flat = np.asarray(value, dtype=np.float64).ravel()
    return float(np.dot(flat, flat))
