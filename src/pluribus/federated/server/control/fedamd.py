"""FedAMD: some participants measure where to go, the others go there in steps whose noise cancels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import Array, Batch
from pluribus.federated.seeding import generator
from pluribus.federated.server.base import Offer, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, mean, register
from pluribus.federated.training import Evaluate, Hooks


@register
@dataclass(frozen=True)
class FedAMD(Server):
    """Anchors refresh ``v_i = grad F_i(x)``; miners step along d, at first mean v, then ``d + g(y) - g(y_before)``.

    Each participant is an anchor with the given probability, and always when it comes for the first time: the paper
    has all v_i measured beforehand. The mean is over the clients that have a v_i. The model moves by the miners' mean
    displacement. A round without miners moves it by ``-server_lr lr_l mean_anchors v_i``, so probability 1 is
    large-batch gradient descent; the authors' code stays where it is in such a round. Participants count alike.
    Each client keeps one model, its v_i, and the server one, their mean. Miners look at each batch twice.

    A miner goes on until its own gradient has changed by -d, and a network on few labels has no such point near: there
    |d| grows along the way. So long rounds diverge. On digits (10 clients, Dirichlet(0.3), mlp:16, 20 rounds, 3 seeds)
    2 local epochs give .815 and 5 give .236 (FedAvg .905), 25 steps of full batches .204, so noise is not what does it.
    5 epochs on even clients, or of logistic regression, do as they should: .897, .932.

    Compared with the authors' code (HarliWu/FedAMD, algo/fedamd.py and main_fmnist.py).

    Parameters
    ----------
    probability
        Of being an anchor, in (0, 1].
    server_lr
        Step along the mean displacement.
    """

    probability: float = 0.5
    server_lr: float = 1.0

    key = "fedamd"
    formula = (
        "x + lr mean_miners (y_i - x), v = mean_i v_i, v_i = grad F_i(x) at anchors; local: d + g(y) - g(y_before)"
    )
    source = "Wu et al., Anchor Sampling for Federated Learning with Partial Client Participation, ICML 2023"
    explanation = "Some clients measure exact gradients, and the others step along their mean with little noise."
    numbers = (204,)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("FedAMD", "probability", self.probability)
        if self.probability > 1:
            raise RuleError(f"FedAMD: probability must be at most 1, not {self.probability!r}")
        positive("FedAMD", "server_lr", self.server_lr)

    @property
    def client(self) -> FedAMDClient:
        """An anchor or a miner."""
        return FedAMDClient(self.probability)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``direction``: the mean of all v_i that are known, float64; ``known``: of whom, (N,)."""
        zero = {name: np.zeros(params[name].shape) for name in self.parameters(params)}
        return {"direction": zero, "known": np.zeros(n_clients, dtype=bool)}

    def offer(self, state: State, client: int) -> Offer:
        """The model and the direction."""
        params = state["params"]
        return Offer(params, {"direction": {n: v.astype(params[n].dtype) for n, v in state["direction"].items()}})

    def advance(self, state: State, round: Round) -> Step:
        """Move by the miners, and let the anchors turn the direction."""
        told: list[Any] = list(
            self.sent(round, "anchor").updates
        )  # of anchors the change of v_i, of miners nothing but the flag
        is_anchor = np.array([bool(tree["is"]) for tree in told])
        miners = np.flatnonzero(~is_anchor)
        movers = miners if len(miners) else np.arange(len(told))
        counted = np.zeros(len(told))
        counted[movers] = 1 / len(movers)
        params = self.moved(state["params"], mean(round, counted), self.server_lr)
        known = state["known"].copy()
        total = {name: value * int(known.sum()) for name, value in state["direction"].items()}
        for k in np.flatnonzero(is_anchor).tolist():
            for name, change in told[k]["change"].items():
                total[name] = total[name] + change
            known[round.clients[k]] = True
        direction = {name: value / max(int(known.sum()), 1) for name, value in total.items()}
        return Step(params, counted, {"direction": direction, "known": known})


@dataclass(frozen=True)
class FedAMDClient:
    """The client's half of `FedAMD`; keeps ``gradient``, its v_i."""

    probability: float

    def train(self, job: Job) -> Report:
        """Measure, or go."""
        anchor = generator(job.seed, "fedamd.anchor").random() < self.probability
        return self._anchor(job) if anchor or not job.memory else self._miner(job)

    def _anchor(self, job: Job) -> Report:
        """The gradient over all samples; what is sent as the update is one step down it."""
        batch = Batch(job.dataset.x, job.dataset.y)
        loss, grads = job.model.loss_and_grad(dict(job.params), batch)
        before = job.memory.get("gradient", {})
        gradient: Tree = {name: np.array(grads[name]) for name in job.told["direction"] if name in grads}
        change = {name: value - before[name] if name in before else value for name, value in gradient.items()}
        params = {
            name: value - job.how.lr * gradient[name] if name in gradient else np.array(value)
            for name, value in job.params.items()
        }
        message = {"anchor": {"is": np.array(True), "change": change}}
        return Report(params, loss, 1, message, {"gradient": gradient})

    def _miner(self, job: Job) -> Report:
        direction: dict[str, Array] = {name: np.array(value) for name, value in job.told["direction"].items()}
        last: Tree = {}

        def gradient(evaluate: Evaluate, own: Tree, batch: Batch, step: int) -> tuple[float, Tree]:
            loss, here = evaluate(own, batch)
            if last:
                _, there = evaluate(own | last, batch)
                for name in here.keys() & direction.keys():
                    direction[name] += here[name] - there[name]
            last.update({name: own[name].copy() for name in direction})
            return loss, {name: direction[name].copy() if name in direction else value for name, value in here.items()}

        report = job.train(Hooks(gradient=gradient))
        return report._replace(message={"anchor": {"is": np.array(False)}})
