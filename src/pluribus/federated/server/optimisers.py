"""Server optimisers: the mean update is a step direction, and the server keeps momentum or second moments of it.

With the pseudo-gradient ``g = -mean delta`` each is the optimiser of the same name; written here with
``D = sum_i n_i delta_i / sum_i n_i`` so that signs are plain. Only trained float tensors are optimised: counters and
buffers move by their mean (`Server.buffers`), so a running variance stays non-negative.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, fraction, mean, register, size_shares

REDDI = "Reddi et al., Adaptive Federated Optimization, ICLR 2021 (Algorithm 2)"


@dataclass(frozen=True)
class _Optimiser(Server):
    """A rule whose step of each tensor is a function of the mean update and of moments kept for that tensor.

    The state holds one tree a moment, float64, with the trained tensors alone, and ``steps``, how many were taken. A
    round in which nobody comes leaves the moments alone.
    """

    moments: ClassVar[tuple[str, ...]] = ()

    def remember(self, params: Tree, n_clients: int) -> State:
        """Moments before the first round."""
        trained = self.real_parameters(params)
        kept: State = {
            moment: {name: np.full(params[name].shape, self.initial(moment)) for name in trained}
            for moment in self.moments
        }
        return {**kept, "steps": np.array(0)}

    def advance(self, state: State, round: Round) -> Step:
        """Average, then take the optimiser's step, in float64."""
        shares = size_shares(round)
        change = mean(round, shares)
        steps = int(state["steps"]) + 1
        memory: State = {moment: {} for moment in self.moments}
        for name in self.parameters(state["params"]):
            kept = [state[moment][name] for moment in self.moments]
            with np.errstate(over="ignore", invalid="ignore"):  # a step that is not finite is not taken
                change[name], *kept = self.optimise(np.asarray(change[name], dtype=np.float64), kept, steps)
            for moment, value in zip(self.moments, kept, strict=True):
                memory[moment][name] = value
        return Step(self.moved(state["params"], change), shares, {**memory, "steps": np.array(steps)})

    @abstractmethod
    def optimise(self, change: Array, kept: list[Array], steps: int) -> tuple[Array, ...]:
        """The step of one tensor and its moments after it, from the mean update, its moments, and steps = 1, 2, ..."""

    def initial(self, moment: str) -> float:
        """What a moment starts from."""
        return 0.0


@register
@dataclass(frozen=True)
class FedAvgM(_Optimiser):
    """Momentum on the server: ``m <- momentum m + D``, ``x <- x + lr m``.

    Heavy-ball without damping, as in the paper, which has lr = 1. Compared with torch.optim.SGD.

    Parameters
    ----------
    server_lr
        Step; the long-run step is server_lr / (1 - momentum) times the mean update.
    momentum
        Share of the last step that is kept, in [0, 1); 0 is FedAvg.
    """

    server_lr: float = 1.0
    momentum: float = 0.9

    key = "fedavgm"
    moments = ("momentum",)
    formula = "m = beta m + D, x + lr m, D = sum_i n_i delta_i / sum_i n_i"
    source = "Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019"
    explanation = "FedAvg with momentum: the server keeps on in the direction of the last rounds."

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedAvgM", "server_lr", self.server_lr)
        fraction(self, "momentum")

    def optimise(self, change: Array, kept: list[Array], steps: int) -> tuple[Array, ...]:
        """Heavy ball."""
        momentum = self.momentum * kept[0] + change
        return self.server_lr * momentum, momentum


@dataclass(frozen=True)
class _Adaptive(_Optimiser):
    """``x + lr m / (sqrt(v) + tau)`` with ``m <- beta1 m + (1 - beta1) D``; v is the rule's own.

    v starts at tau^2, the least that the paper allows, and m at zero.
    """

    server_lr: float = 0.1
    beta1: float = 0.9
    tau: float = 1e-3

    moments = ("m", "v")
    source = REDDI

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(type(self).__name__, "server_lr", self.server_lr)
        positive(type(self).__name__, "tau", self.tau)
        fraction(self, "beta1")

    def initial(self, moment: str) -> float:
        """tau^2 for v, zero for m."""
        return self.tau**2 if moment == "v" else 0.0

    def optimise(self, change: Array, kept: list[Array], steps: int) -> tuple[Array, ...]:
        """The shared step."""
        m = self.beta1 * kept[0] + (1 - self.beta1) * change
        v = self.second(kept[1], change**2)
        first, second = self.corrected(m, v, steps)
        return self.server_lr * first / (np.sqrt(second) + self.tau), m, v

    def corrected(self, m: Array, v: Array, steps: int) -> tuple[Array, Array]:
        """The moments as the step uses them."""
        return m, v

    @abstractmethod
    def second(self, v: Array, square: Array) -> Array:
        """The second moment after a mean update of the given square."""


@register
@dataclass(frozen=True)
class FedAdagrad(_Adaptive):
    """``v <- v + D^2``, ``x <- x + lr m / (sqrt(v) + tau)``; without momentum unless asked.

    Compared with torch.optim.Adagrad (accumulator starting at tau^2, eps = tau).

    Parameters
    ----------
    server_lr
        Step.
    beta1
        Momentum, in [0, 1).
    tau
        Adaptivity: the smaller, the more the steps of different coordinates are evened out.
    """

    beta1: float = 0.0

    key = "fedadagrad"
    formula = "v = v + D^2, x + lr m / (sqrt(v) + tau), m = beta1 m + (1 - beta1) D"
    explanation = "Each coordinate's step shrinks with the sum of its past updates."

    def second(self, v: Array, square: Array) -> Array:
        """The sum of squares."""
        return v + square


@dataclass(frozen=True)
class _Decaying(_Adaptive):
    """With a second moment that forgets, and the choice of Adam's bias correction."""

    beta2: float = 0.99
    bias_correction: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self, "beta2")
        if not isinstance(self.bias_correction, bool):
            raise RuleError(
                f"{type(self).__name__}: bias_correction must be true or false, not {self.bias_correction!r}"
            )

    def initial(self, moment: str) -> float:
        """Zero for both under bias correction, which assumes it."""
        return 0.0 if self.bias_correction else super().initial(moment)

    def corrected(self, m: Array, v: Array, steps: int) -> tuple[Array, Array]:
        """``m / (1 - beta1^t)`` and ``v / (1 - beta2^t)`` if asked."""
        if not self.bias_correction:
            return m, v
        return m / (1 - self.beta1**steps), v / (1 - self.beta2**steps)


@register
@dataclass(frozen=True)
class FedAdam(_Decaying):
    """``v <- beta2 v + (1 - beta2) D^2``, ``x <- x + lr m / (sqrt(v) + tau)``.

    Parameters
    ----------
    server_lr
        Step; about how far a coordinate moves in a round.
    beta1, beta2
        What is kept of the moments, in [0, 1).
    tau
        Adaptivity: the smaller, the more the steps of different coordinates are evened out.
    bias_correction
        False, as in the paper: v starts at tau^2 and nothing is corrected. True, as in Adam itself: both moments
        start at zero and are divided by ``1 - beta^t`` (compared with torch.optim.Adam, eps = tau).
    """

    key = "fedadam"
    formula = "v = beta2 v + (1 - beta2) D^2, x + lr m / (sqrt(v) + tau), m = beta1 m + (1 - beta1) D"
    explanation = "Adam on the server: steps of all coordinates are brought to a like size, with momentum."

    def second(self, v: Array, square: Array) -> Array:
        """The running mean of squares."""
        return self.beta2 * v + (1 - self.beta2) * square


@register
@dataclass(frozen=True)
class FedYogi(_Decaying):
    """``v <- v - (1 - beta2) D^2 sign(v - D^2)``, ``x <- x + lr m / (sqrt(v) + tau)``.

    v moves towards D^2 by a share of D^2, not of v, so a quiet round does not let the next step jump. v stays >= 0:
    it falls by less than D^2, and only where it lies above D^2. Parameters as for `FedAdam`.
    """

    key = "fedyogi"
    formula = "v = v - (1 - beta2) D^2 sign(v - D^2), x + lr m / (sqrt(v) + tau), m = beta1 m + (1 - beta1) D"
    explanation = "Adam on the server, with second moments that change slowly and additively."

    def second(self, v: Array, square: Array) -> Array:
        """An additive step towards the square."""
        return v - (1 - self.beta2) * square * np.sign(v - square)
