"""FedADP: clients with networks of unequal width, lifted to the largest for the mean and narrowed again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import whole_number
from pluribus.federated.clients.base import Job, Report
from pluribus.federated.models import MLP, Tree
from pluribus.federated.netchange import Layer, narrow, widen
from pluribus.federated.server.base import Offer, State
from pluribus.federated.server.fedavg import FedAvg
from pluribus.federated.server.rule import register

NAMES = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")


@register
@dataclass(frozen=True)
class FedADP(FedAvg):
    """``x = sum_i n_i lift(y_i) / sum_i n_i``, y_i client i's narrower network, which starts at ``narrow(x)``.

    Of a model ``mlp:H`` client i trains a network of ``ceil(H (1 + i mod levels) / levels)`` hidden neurons. Lifting
    copies neurons and divides what leaves them, so a client's function is not changed by it; narrowing sums what leaves
    the neurons that become one, and takes the mean of what enters them. levels = 1 is FedAvg. A client's own model is
    the lifted narrow one, which is the same function. Of the lifted update only the narrow network has to travel; the
    simulation counts the lifted one's bytes.

    On digits (10 clients, mlp:16, iid, 50 rounds, 2 seeds) widths 8 and 16 by turns have .87 where FedAvg of width 16
    has .90 and of width 8 .81. For the operators see `netchange`, and how far they were confirmed; deeper and shallower
    networks are functions there, as the embedded models have one hidden layer.

    Parameters
    ----------
    levels
        How many widths there are.
    server_lr, weighting
        As for `FedAvg`.
    """

    levels: int = 2

    key = "fedadp"
    formula = "x + sum_i n_i (lift(y_i) - x) / sum_i n_i, client i's narrow network from narrow(x)"
    source = "Wang, Lv and Liu, FedADP: Unified Model Aggregation for Heterogeneous Model Architectures, 2025"
    explanation = (
        "Narrow clients' networks are widened without changing what they compute, averaged, and narrowed back."
    )
    numbers = (154,)
    personal_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("FedADP", "levels", self.levels, 1)

    @property
    def client(self) -> FedADPClient:
        """Training of a narrow network."""
        return FedADPClient()

    def remember(self, params: Tree, n_clients: int) -> State:
        """Nothing besides the model."""
        if sorted(params) != sorted(NAMES):
            raise RuleError(
                f"fedadp changes the width of a network with one hidden layer, and the model has {', '.join(params)}; "
                "take mlp:H"
            )
        return {}

    def width(self, params: Tree, client: int) -> int:
        """Hidden neurons of a client's network."""
        return -(-len(params["hidden.bias"]) * (1 + client % self.levels) // self.levels)

    def offer(self, state: State, client: int) -> Offer:
        """The model and the client's width."""
        return Offer(state["params"], {"width": np.array([self.width(state["params"], client)])})

    def model_of(self, state: State, client: int) -> Tree:
        """The client's narrow network, lifted: the same function."""
        params: Tree = state["params"]
        return resized(resized(params, self.width(params, client)), len(params["hidden.bias"]))


def resized(params: Tree, width: int) -> Tree:
    """An `MLP`'s tensors with another number of hidden neurons."""
    layers = [Layer(params[f"{name}.weight"], params[f"{name}.bias"]) for name in ("hidden", "output")]
    change = narrow if width < len(params["hidden.bias"]) else widen
    hidden, output = change(layers, [width])
    return dict(zip(NAMES, (*hidden, *output), strict=True))


@dataclass(frozen=True)
class FedADPClient:
    """The client's half of `FedADP`."""

    def train(self, job: Job) -> Report:
        """Local training of the narrow network; the report's model is the lifted one."""
        if not isinstance(job.model, MLP):
            raise RuleError(f"fedadp trains an MLP of another width, not a {type(job.model).__name__}; take mlp:H")
        width = int(job.told["width"][0])
        small = {name: np.array(value) for name, value in resized(dict(job.params), width).items()}
        report = replace(job, model=replace(job.model, hidden=width), params=small).train()
        lifted = {name: np.array(value) for name, value in resized(report.params, job.model.hidden).items()}
        return report._replace(params=lifted)
