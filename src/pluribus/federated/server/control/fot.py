"""FOT: tasks come one after another, and later ones move the layers only where earlier ones do not look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import whole_number
from pluribus.federated.data import Dataset
from pluribus.federated.models import Array, Model
from pluribus.federated.seeding import derived, generator
from pluribus.federated.server.base import Round, State, Tree
from pluribus.federated.server.control.pullback import layer_inputs
from pluribus.federated.server.fedavg import FedAvg
from pluribus.federated.server.rule import Step, mean, register

if TYPE_CHECKING:
    from pluribus.federated.setup import Setup


@register
@dataclass(frozen=True)
class FOT(FedAvg):
    """FedAvg whose mean update of each layer is ``D (I - U U')``, U the inputs that earlier tasks gave the layer.

    A layer's D is (out, in + 1): its weights, with its bias as the weight of an input that is always one, so that what
    the layer answers to old inputs in the span of U does not change, bias included. Layers are the matrices
    ``*.weight`` with their ``*.bias``; all other tensors (kernels, normalisation) move as under FedAvg. Before the
    first task ends there is no U, and the bits are FedAvg's.

    A task is ended by `end_task`, with the sum over clients of what `project_inputs` gives for each: a random
    projection of its inputs. By itself it shows the span of a client's inputs (of one sample, the sample); only their
    sum is needed, so let a secure sum add them. `learn_tasks` runs tasks. The state holds a square matrix a layer.

    From the paper's abstract and general knowledge; the range finder is that of Halko et al. 2011. The bias as a
    weight is ours. On digits (classes 0-4, then 5-9, mlp:32, 8 rounds each, 3 seeds) FedAvg forgets the first task
    wholly (.94, then 0) and FOT does not (.93). The second task then gets .29 among all classes where FedAvg gets .90,
    and .82 against .90 among its own classes, where FedAvg forgets little either (.93).

    Parameters
    ----------
    energy
        Share of the inputs' squares that U must hold, in (0, 1].
    width
        Random directions a layer, at most its inputs + 1; 0 takes that many, and then only ``energy`` cuts.
    server_lr, weighting
        As for `FedAvg`.
    """

    energy: float = 0.9
    width: int = 0

    key = "fot"
    formula = "W + lr D (I - U U'), D = sum_i n_i delta_i / sum_i n_i, U a basis of the layer's inputs in earlier tasks"
    source = "Bakman et al., Federated Orthogonal Training: Mitigating Global Catastrophic Forgetting, ICLR 2024"
    explanation = "In a sequence of tasks, each one's updates leave alone what earlier tasks' inputs look at."
    numbers = (357,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.energy, (int, float)) or isinstance(self.energy, bool) or not 0 < self.energy <= 1:
            raise RuleError(f"FOT: energy must be a number in (0, 1], not {self.energy!r}")
        whole_number("FOT", "width", self.width, 0)

    def remember(self, params: Tree, n_clients: int) -> State:
        """``basis``: for each layer U with columns of zeros behind it, (in + 1, in + 1); ``tasks``: how many ended."""
        layers = [name for name in self.parameters(params) if name.endswith(".weight") and params[name].ndim == 2]
        if not layers:
            raise RuleError(f"fot needs layers (matrices *.weight), and the model has {', '.join(params)}")
        sizes = {name: params[name].shape[1] + 1 for name in layers}
        return {"basis": {name: np.zeros((d, d)) for name, d in sizes.items()}, "tasks": np.array(0)}

    def advance(self, state: State, round: Round) -> Step:
        """The projected mean update."""
        if not state["tasks"]:
            return super().advance(state, round)
        counted = self.counted(round)
        change = mean(round, counted)
        for name, basis in state["basis"].items():
            bias = _bias(name)
            whole = change[name].astype(np.float64)
            if bias in change:
                whole = np.concatenate([whole, change[bias].astype(np.float64)[:, None]], axis=1)
            kept = basis[: whole.shape[1]]
            whole -= (whole @ kept) @ kept.T
            change[name] = whole[:, : change[name].shape[1]]
            if bias in change:
                change[bias] = whole[:, -1]
        return Step(self.moved(state["params"], change, self.server_lr * float(counted.sum())), counted, {})

    def directions(self, inputs: int) -> int:
        """How many random directions a layer of so many inputs takes."""
        return min(self.width or inputs + 1, inputs + 1)

    def end_task(self, state: State, projections: Mapping[str, Array]) -> State:
        """The state with a task's inputs in its bases: ``projections`` are the sum over clients, by layer.

        Only the part outside the present basis is new: its singular directions are taken, largest first, until basis
        and they together hold ``energy`` of the projections' squares.
        """
        basis = {}
        for name, before in state["basis"].items():
            seen = np.asarray(projections[name], dtype=np.float64)
            if seen.ndim != 2 or seen.shape[0] != len(before):
                raise RuleError(f"{name}: projections have shape {seen.shape}; expected ({len(before)}, directions)")
            new = seen - before @ (before.T @ seen)
            new -= before @ (before.T @ new)  # once more: what rounding left along the basis would be a direction
            total = float((seen**2).sum())
            left, sizes, _ = np.linalg.svd(new, full_matrices=False)
            held = (total - float((new**2).sum())) + np.concatenate([[0.0], np.cumsum(sizes**2)])
            count = int(np.argmax(held >= self.energy * total * (1 - 1e-12)))
            count = min(count, int((sizes > 1e-10 * max(sizes[0], np.finfo(float).tiny)).sum()))
            old = int(np.count_nonzero(before.any(axis=0)))
            after = before.copy()
            count = min(count, before.shape[1] - old)
            after[:, old : old + count] = left[:, :count]
            basis[name] = after
        return {**state, "basis": basis, "tasks": state["tasks"] + 1}


def project_inputs(rule: FOT, model: Model, params: Tree, dataset: Dataset, seed: int) -> dict[str, Array]:
    """What one client sends at the end of a task: for each layer ``[X 1]' R``, (in + 1, directions), R standard normal.

    ``seed`` must differ between clients, so that their sum is a random projection of everybody's inputs.
    """
    found = {}
    for number, (name, inputs) in enumerate(sorted(layer_inputs(model, params, dataset.x).items())):
        wide = np.concatenate([inputs.astype(np.float64), np.ones((len(inputs), 1))], axis=1)
        if _bias(name) not in params:
            wide[:, -1] = 0.0
        drawn = generator(seed, "fot.directions", number).standard_normal(
            (len(inputs), rule.directions(inputs.shape[1]))
        )
        found[name] = wide.T @ drawn
    return found


def learn_tasks(
    setups: Sequence[Setup], rule: FOT, seed: int, rounds: int, after_task: Callable[[int, State], None] | None = None
) -> State:
    """Learn tasks one after another, each a federation of its own over the same clients and model.

    Parameters
    ----------
    setups
        A federation a task; only their data differ.
    rule, seed, rounds
        The rule, what all randomness starts from, and rounds a task.
    after_task
        Called with the task's number and the state after its rounds, before its inputs are added to the bases.

    Returns
    -------
    State
        After the last task.
    """
    from pluribus.federated.history import History
    from pluribus.federated.simulation import Run, begin, simulate

    state: State | None = None
    for task, setup in enumerate(setups):
        own_seed = derived(seed, "fot.task", task)
        clients = len(setup.clients)
        start = begin(setup, rule, seed, rounds) if state is None else Run(0, state, History.empty(rounds, clients))
        state = simulate(setup, rule, own_seed, rounds=rounds, start=start).state
        if after_task is not None:
            after_task(task, state)
        sums: dict[str, Array] = {}
        for i, dataset in enumerate(setup.clients):
            told = project_inputs(rule, setup.model, state["params"], dataset, derived(own_seed, "fot.client", i))
            sums = {name: sums[name] + value if name in sums else value for name, value in told.items()}
        state = rule.end_task(state, sums)
    if state is None:
        raise RuleError("there are no tasks to learn; give one federation for each")
    return state


def _bias(weight: str) -> str:
    return weight.removesuffix("weight") + "bias"
