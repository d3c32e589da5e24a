"""FedLAW: the weights of the clients, and a shrink factor, learned on the server's own small clean set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive, whole_number
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.proxy import lowest, objective
from pluribus.federated.server.rule import Server, Step, contributions, fraction, mean, register, size_shares
from pluribus.rules import Mean

STACKED = 64 << 20
"""Bytes up to which the participants' updates are kept as one float64 matrix a tensor while weights are learned."""

TILE = 1 << 15
"""Coordinates that are read at a time where they are more."""


@register
@dataclass(frozen=True)
class FedLAW(Server):
    """``w = gamma sum_i lam_i w_i`` with client models ``w_i = x + delta_i``, ``lam = softmax(z)``, ``gamma = exp(g)``.

    z and g minimise the proxy loss L(w) by Adam, from ``z_i = log(n_i / n)`` and ``g = 0``, which is FedAvg. The
    gradient is exact: ``dL/dz_i = lam_i (s_i - sum_j lam_j s_j)`` with ``s_i = gamma <grad L(w), delta_i>`` (x drops
    out because the lam sum to one), and ``dL/dg = <grad L(w), w>``. So a step costs one gradient of the proxy loss, one
    weighted sum and k inner products. The best of all points met is taken, so with gamma learned or 1 the proxy loss
    never ends above FedAvg's. Buffers are averaged with lam and do not shrink; counters keep FedAvg's mean.

    The state holds ``gamma``, ``coherence`` (mean cosine of two participants' updates, NaN for one alone) and
    ``proxy_loss`` (before, after); its ``weights`` are lam.

    Compared with server_funct.py of ZexiLee/ICML-2023-FedLAW: the same start, model and Adam (betas 0.5, 0.999). There
    lr is 0.01 or 0.005 and 20 epochs of minibatches of 128 are taken, some hundred steps; here the whole proxy set is
    one batch, so the defaults are fewer and longer steps. Their step schedule first acts after those 20 epochs.

    Parameters
    ----------
    gamma
        ``"learned"``, or a fixed positive number; 1, or ``"fixed"``, weighs without shrinking.
    steps
        Adam steps a round, at one gradient of the proxy loss each and one more at the end; 0 is FedAvg.
    lr
        Adam's step for z and g.
    beta1, beta2
        Adam's decays, in [0, 1).
    """

    gamma: float | str = "learned"
    steps: int = 50
    lr: float = 0.1
    beta1: float = 0.5
    beta2: float = 0.999

    key = "fedlaw"
    formula = "gamma * sum_i lam_i (x + delta_i), lam = softmax(z), (z, log gamma) = argmin proxy loss"
    source = "Li et al., Revisiting Weighted Aggregation in Federated Learning with Neural Networks, ICML 2023"
    explanation = "The clients' weights, and how much to shrink the model, are learned on clean data of the server."
    numbers = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma == "fixed":
            object.__setattr__(self, "gamma", 1.0)
        if self.gamma != "learned":
            if isinstance(self.gamma, str):
                raise RuleError(
                    f"FedLAW: gamma must be 'learned', 'fixed' (which is 1) or a positive number, not {self.gamma!r}"
                )
            positive("FedLAW", "gamma", self.gamma)
        whole_number("FedLAW", "steps", self.steps, 0)
        positive("FedLAW", "lr", self.lr)
        fraction(self, "beta1")
        fraction(self, "beta2")

    def remember(self, params: Tree, n_clients: int) -> State:
        """What is reported of the last round."""
        self.real_parameters(params)
        return {"gamma": np.array(1.0), "coherence": np.array(np.nan), "proxy_loss": np.full(2, np.nan)}

    def advance(self, state: State, round: Round) -> Step:
        """Learn z and g, and take the model that they give."""
        loss = objective("FedLAW", round)
        start = self.moved(state["params"], mean(round, shares := size_shares(round)))
        trained = self.parameters(start)
        span = Span(state["params"], round, [name for name, value in start.items() if value.dtype.kind == "f"])

        def model(lam: Array, gamma: float) -> Tree:
            point = span.at(lam)
            return {
                name: (gamma * point[name] if name in trained else point[name]).astype(value.dtype)
                if name in point
                else value
                for name, value in start.items()
            }

        def evaluate(point: Array) -> tuple[float, Array]:
            lam, gamma = self._read(point)
            w = model(lam, gamma)
            value, gradient = loss(w)
            slope = {name: np.asarray(gradient[name], dtype=np.float64) for name in trained if name in gradient}
            pulls = gamma * span.inner(slope)
            along_gamma = sum(float(np.vdot(slope[name], w[name])) for name in slope)
            return value, np.append(lam * (pulls - lam @ pulls), along_gamma)[: len(point)]

        # A client without samples has log 0 and keeps weight zero; points that overflow have a loss that loses.
        with np.errstate(all="ignore"):
            logits = np.log(shares)
            first = np.append(logits, 0.0) if self.gamma == "learned" else logits
            adam = Adam(self.lr, self.beta1, self.beta2)
            best, losses = lowest(first, evaluate, adam.advance, self.steps)
            lam, gamma = self._read(best)
            learned = model(lam, gamma)
        memory = {
            "gamma": np.array(gamma),
            "coherence": np.array(coherence(round, trained)),
            "proxy_loss": np.array(losses),
        }
        return Step(learned, lam, memory)

    def _read(self, point: Array) -> tuple[Array, float]:
        """lam and gamma of a point (z, g), or (z,) where gamma is fixed."""
        logits = point[:-1] if self.gamma == "learned" else point
        powers = np.exp(logits - logits.max())
        return powers / powers.sum(), float(np.exp(point[-1])) if self.gamma == "learned" else float(self.gamma)


class Adam:
    """Adam with bias correction and eps = 1e-8, for one small vector."""

    def __init__(self, lr: float, beta1: float, beta2: float) -> None:
        self.lr, self.beta1, self.beta2 = lr, beta1, beta2
        self.m: Array = np.zeros(1)
        self.v: Array = np.zeros(1)

    def advance(self, point: Array, slope: Array, number: int) -> Array:
        """The next point; ``number`` counts from 1."""
        self.m = self.beta1 * self.m + (1 - self.beta1) * slope
        self.v = self.beta2 * self.v + (1 - self.beta2) * slope**2
        first, second = self.m / (1 - self.beta1**number), self.v / (1 - self.beta2**number)
        return np.asarray(point - self.lr * first / (np.sqrt(second) + 1e-8))


class Span:
    """The models ``x + sum_i lam_i delta_i``, lam of sum one: made, and the deltas multiplied, many times a round.

    Small updates are stacked once, one float64 matrix of shape (k, size) a tensor; big ones are read where they lie.
    """

    def __init__(self, params: Tree, round: Round, names: Sequence[str]) -> None:
        self.params = {name: np.asarray(params[name], dtype=np.float64) for name in names}
        self.round, self.names = round, list(names)
        size = 8 * len(round.clients) * sum(value.size for value in self.params.values())
        self.stacks: dict[str, Array] | None = None
        if size <= STACKED:
            self.stacks = {
                name: np.stack([np.asarray(u[name], dtype=np.float64).ravel() for u in round.updates]) for name in names
            }

    def at(self, lam: Array) -> Tree:
        """The model of the given weights, float64."""
        if self.stacks is None:
            moved: Tree = Mean()(contributions(self.round, self.names), lam).value
            return {name: value + moved[name] for name, value in self.params.items()}
        return {name: value + (lam @ self.stacks[name]).reshape(value.shape) for name, value in self.params.items()}

    def inner(self, slope: Mapping[str, Array]) -> Array:
        """Inner product of each participant's update with a slope, over the slope's tensors, shape (k,)."""
        total = np.zeros(len(self.round.clients))
        for name, value in slope.items():
            flat = value.reshape(-1)
            if self.stacks is not None:
                total += self.stacks[name] @ flat
                continue
            rows = [update[name].reshape(-1) for update in self.round.updates]
            for start in range(0, flat.size, TILE):
                tile = np.stack([row[start : start + TILE] for row in rows])
                total += tile.astype(np.float64) @ flat[start : start + TILE]
        return total


def coherence(round: Round, names: Sequence[str]) -> float:
    """Mean cosine of two different participants' updates, over the given tensors; NaN for one participant."""
    k = len(round.clients)
    if k < 2:
        return float("nan")
    cosines = Mean()(contributions(round, names)).gram.cosines
    return float((cosines.sum() - np.trace(cosines)) / (k * (k - 1)))
