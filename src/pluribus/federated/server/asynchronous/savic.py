"""Local SGD with scaling: all clients divide their gradients by one scale a coordinate, learned between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Batch
from pluribus.federated.seeding import generator
from pluribus.federated.server.asynchronous.arrivals import arrived
from pluribus.federated.server.base import Array, Offer, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, fraction, mean, one_of, register
from pluribus.federated.training import Evaluate, Hooks

SCALINGS = ("rmsprop", "adam", "oasis", "identity")


@register
@dataclass(frozen=True)
class ScaledLocalSGD(Server):
    """The mean of clients that step ``y - eta g / S``, ``S = max(alpha, sqrt(D))`` coordinate by coordinate.

    S is the same for all clients during a round. D moves when they are averaged, by what each measured at its first
    step, which all take at the server's model, averaged over them: ``D <- b D + (1 - b) g^2`` with g the mean
    gradient. ``rmsprop`` has b = beta; ``adam`` corrects it, ``b_t = (beta - beta^t) / (1 - beta^t)`` at round t = 1,
    2, ...; ``oasis`` has ``D <- beta D + (1 - beta) z H z`` with random signs z (Hutchinson's estimate of the Hessian's
    diagonal, from a difference of two gradients, so one gradient a round more) and ``S = max(alpha, |D|)``. D starts at
    1, and ``identity`` leaves it there: local SGD. One local step is data-parallel preconditioned SGD, and identical
    clients are one machine. D is one model, float64, and S travels to the clients with the model.

    From the abstract, the catalogue's formula and general knowledge of the paper; not compared with its text or code.

    Parameters
    ----------
    scaling
        ``"rmsprop"``, ``"adam"``, ``"oasis"`` or ``"identity"``.
    alpha
        Least scale: no step is longer than 1 / alpha times plain SGD's.
    beta
        What is kept of D, in [0, 1).
    probe
        Length of the step of each coordinate in the difference of gradients of ``oasis``.
    """

    scaling: str = "rmsprop"
    alpha: float = 0.2
    beta: float = 0.9
    probe: float = 1e-3

    key = "savic"
    formula = "mean of clients that step y - eta g / max(alpha, sqrt(D)), D = beta D + (1 - beta) (mean g)^2"
    source = "Chezhegov et al., Local Methods with Adaptivity via Scaling, 2024 (arXiv 2406.00846)"
    explanation = "Local steps are scaled coordinate by coordinate, alike at all clients, by what past rounds measured."
    numbers = (315,)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "scaling", SCALINGS)
        positive("ScaledLocalSGD", "alpha", self.alpha)
        fraction(self, "beta")
        positive("ScaledLocalSGD", "probe", self.probe)

    @property
    def client(self) -> ScaledClient:
        """Scaled local steps."""
        return ScaledClient(self.scaling, self.probe)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``scale``: D; ``steps``: how often it moved."""
        trained = self.real_parameters(params)
        return {"scale": {name: np.ones(params[name].shape) for name in trained}, "steps": np.array(0)}

    def divisors(self, scale: Mapping[str, Array]) -> Tree:
        """S from D."""
        if self.scaling == "identity":
            return {name: np.ones_like(value) for name, value in scale.items()}
        root = np.abs if self.scaling == "oasis" else np.sqrt
        return {name: np.maximum(self.alpha, root(value)) for name, value in scale.items()}

    def offer(self, state: State, client: int) -> Offer:
        """The model and S, in the model's own width."""
        made = self.divisors(state["scale"])
        told = {name: value.astype(state["params"][name].dtype) for name, value in made.items()}
        return Offer(state["params"], {"divisors": told})

    def advance(self, state: State, round: Round) -> Step:
        """Average the models, and move D."""
        counted = np.full(len(round.clients), 1 / len(round.clients))
        moved = arrived(self, state["params"], round, counted)
        if self.scaling == "identity":
            return Step(moved, counted, {})
        measured = mean(self.sent(round, "measured"), counted)
        number = int(state["steps"]) + 1
        keep = self.beta
        if self.scaling == "adam":
            keep = (self.beta - self.beta**number) / (1 - self.beta**number)
        scale = dict(state["scale"])
        for name, value in measured.items():
            wide = np.asarray(value, dtype=np.float64)
            scale[name] = keep * scale[name] + (1 - keep) * (wide if self.scaling == "oasis" else wide**2)
        return Step(moved, counted, {"scale": scale, "steps": np.array(number)})


@dataclass(frozen=True)
class ScaledClient:
    """The client's half of `ScaledLocalSGD`: scaled steps; it sends what it ``measured`` at the first one."""

    scaling: str
    probe: float

    def train(self, job: Job) -> Report:
        """Steps divided by S."""
        divisors = job.told["divisors"]
        measured: Tree = {}

        def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
            loss, grads = evaluate(own, batch)
            if step == 0 and self.scaling == "oasis":
                rng = generator(job.seed, "savic.signs")
                signs = {name: rng.choice([-1.0, 1.0], size=grads[name].shape) for name in sorted(grads)}
                near = {**own, **{name: _typed(own[name] + self.probe * signs[name], own[name]) for name in signs}}
                _, other = evaluate(near, batch)
                for name, sign in signs.items():
                    measured[name] = _typed(sign * (other[name] - grads[name]) / self.probe, grads[name])
            elif step == 0 and self.scaling != "identity":
                measured.update({name: grad.copy() for name, grad in grads.items()})
            return loss, grads

        def adjust(own: Tree, grads: Tree, step: int) -> None:
            for name in grads:
                if name in divisors:
                    grads[name] = grads[name] / divisors[name]

        report = job.train(Hooks(gradient=gradient, adjust=adjust))
        return report._replace(message={"measured": measured} if measured else {})


def _typed(value: Array, like: Array) -> Array:
    return np.asarray(value, dtype=like.dtype)
