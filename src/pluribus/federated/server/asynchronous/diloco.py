"""DiLoCo: AdamW inside, kept by each client for itself; Nesterov's momentum outside, on the mean update."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.clients.base import ClientMethod, Job, Plain, Report
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, fraction, mean, one_of, register
from pluribus.federated.training import Hooks, LocalTraining


@register
@dataclass(frozen=True)
class DiLoCo(Server):
    """``x + lr (D + beta u)`` with ``u <- beta u + D`` and D the mean update; the clients' steps are AdamW's.

    The inner moments stay with the client from round to round (two models there) and are never sent. With ``inner =
    "sgd"`` the clients train as the settings say: then lr = 1, momentum = 0 is FedAvg with uniform weights, and one
    local step is synchronous Nesterov SGD. The outer momentum is one model, float64. Buffers take the clients' mean.

    Compared with torch.optim.SGD(nesterov=True) as OpenDiLoCo's outer optimiser, and torch.optim.AdamW inside.

    Parameters
    ----------
    server_lr, momentum
        Outer step and momentum, 0.7 and 0.9 as published.
    inner
        ``"adamw"`` or ``"sgd"``.
    inner_lr
        AdamW's step; the federation's own lr is for SGD.
    beta1, beta2, weight_decay, eps
        AdamW's.
    """

    server_lr: float = 0.7
    momentum: float = 0.9
    inner: str = "adamw"
    inner_lr: float = 0.003
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.01
    eps: float = 1e-8

    key = "diloco"
    formula = "x + lr (D + beta u), u = beta u + D, D = mean delta; local: AdamW with moments that the client keeps"
    source = "Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023"
    explanation = "Clients take many AdamW steps on their own, and the server adds momentum to their mean update."
    numbers = (214,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("DiLoCo", "server_lr", self.server_lr)
        one_of(self, "inner", ("adamw", "sgd"))
        for name in ("momentum", "beta1", "beta2"):
            fraction(self, name)
        positive("DiLoCo", "inner_lr", self.inner_lr)
        positive("DiLoCo", "weight_decay", self.weight_decay, zero=True)
        positive("DiLoCo", "eps", self.eps)

    @property
    def client(self) -> ClientMethod:
        """AdamW, or plain training."""
        if self.inner == "sgd":
            return Plain()
        return DiLoCoClient(self.beta1, self.beta2, self.weight_decay, self.eps, self.buffers)

    def local(self, state: State, client: int, how: LocalTraining) -> LocalTraining:
        """With the inner step, and without the settings' own momentum, which would be a second one.

        Raises
        ------
        RuleError
            The settings ask for momentum or for clipping, which would act on AdamW's direction.
        """
        if self.inner == "sgd":
            return how
        if how.momentum or how.max_grad_norm is not None:
            raise RuleError(f"{self.name}: AdamW takes the place of the clients' momentum and clipping; set neither")
        return replace(how, lr=self.inner_lr)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``velocity``: u, zero at first."""
        trained = self.parameters(params)
        return {
            "velocity": {n: np.zeros(params[n].shape, np.result_type(params[n].dtype, np.float64)) for n in trained}
        }

    def advance(self, state: State, round: Round) -> Step:
        """The outer step."""
        counted = np.full(len(round.clients), 1 / len(round.clients))
        change = mean(round, counted)
        velocity = {}
        for name, before in state["velocity"].items():
            velocity[name] = self.momentum * before + change[name]
            change[name] = change[name] + self.momentum * velocity[name]
        return Step(self.moved(state["params"], change, self.server_lr), counted, {"velocity": velocity})


@dataclass(frozen=True)
class DiLoCoClient:
    """The client's half of `DiLoCo`; keeps AdamW's ``m``, ``v`` and the number of ``steps``."""

    beta1: float
    beta2: float
    weight_decay: float
    eps: float
    buffers: tuple[str, ...] = ()

    def train(self, job: Job) -> Report:
        """AdamW from the server's model: ``w <- w - lr (m' / (sqrt(v') + eps) + decay w)``, m' and v' corrected."""
        first = {name: np.array(value) for name, value in job.memory.get("m", {}).items()}
        second = {name: np.array(value) for name, value in job.memory.get("v", {}).items()}
        done = int(job.memory.get("steps", 0))

        def adjust(own: Tree, grads: Tree, step: int) -> None:
            for name, grad in grads.items():
                m, v = _moments(first, name, grad), _moments(second, name, grad)
                m *= self.beta1
                m += (1 - self.beta1) * grad
                v *= self.beta2
                v += (1 - self.beta2) * grad.astype(v.dtype) ** 2
                number = done + step + 1
                scale = np.sqrt(v / (1 - self.beta2**number)) + self.eps
                grads[name] = np.asarray(
                    m / (1 - self.beta1**number) / scale + self.weight_decay * own[name], dtype=grad.dtype
                )

        report = job.train(Hooks(adjust=adjust))
        kept = {"m": first, "v": second, "steps": np.array(done + report.steps)}
        return report._replace(memory=kept)


def _moments(kept: Tree, name: str, grad: Array) -> Array:
    if name not in kept:  # a square of float16 would vanish, and with it the divisor
        kept[name] = np.zeros(grad.shape, dtype=np.result_type(grad.dtype, np.float32))
    return kept[name]
