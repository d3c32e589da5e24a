"""MAS: several tasks are trained as one, then split into groups of tasks that help each other.

Training is the user's (`simulate` with a multi-task model); what is here decides: `affinity` of tasks measured by a
client during training, `pooled` over clients and batches, the best `partition`, and `split`, the parameters that each
group goes on with. Zhuang et al., MAS, ICCV 2023, with the affinity of Fifty et al., NeurIPS 2021; from the abstracts
and the catalogue: how the authors score a task that is alone was not at hand, and is an option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pluribus.core import weights
from pluribus.core.errors import RuleError
from pluribus.federated.models import Array, Tree

TaskLoss = Callable[[Tree, int], tuple[float, Tree]]
"""``loss(params, task) -> (loss, gradient)`` on one batch."""


def affinity(loss: TaskLoss, params: Tree, tasks: int, shared: Sequence[str], lr: float) -> Array:
    """``S_ij = 1 - L_j(w after a step on task i) / L_j(w)``, (tasks, tasks): how far i's step helps j.

    The step moves the shared tensors alone: ``w - lr grad L_i``. Costs tasks^2 + tasks evaluations.

    Raises ``RuleError`` for a loss that is zero or not finite, of which there is no share.
    """
    before = [loss(params, task) for task in range(tasks)]
    for task, (value, _) in enumerate(before):
        if not (np.isfinite(value) and value > 0):
            raise RuleError(f"task {task} has loss {value}; affinities are shares of losses, which must be > 0")
    found = np.empty((tasks, tasks))
    for i, (_, grads) in enumerate(before):
        moved = {**params, **{name: params[name] - lr * grads[name] for name in shared if name in grads}}
        found[i] = [1 - loss(moved, j)[0] / before[j][0] for j in range(tasks)]
    return found


def pooled(affinities: Sequence[Array], sizes: Sequence[float] | None = None) -> Array:
    """Mean of clients' affinities by their samples, as FedAvg weighs them; alike without ``sizes``."""
    share = weights.normalise(weights.check(sizes, len(affinities), [f"client {i}" for i in range(len(affinities))]))
    mean: Array = np.tensordot(share, np.stack(affinities), axes=1)
    return mean


def score(groups: Sequence[Sequence[int]], affinities: Array, alone: Array | float = 0.0) -> float:
    """Sum over tasks j of the mean of S_ij over the others i in j's group; ``alone``, (n,) or one number, for one."""
    single = np.broadcast_to(np.asarray(alone, dtype=np.float64), len(affinities))
    total = 0.0
    for group in groups:
        for j in group:
            others = [i for i in group if i != j]
            total += float(np.mean([affinities[i, j] for i in others])) if others else float(single[j])
    return total


def partition(affinities: Array, groups: int, alone: Array | float = 0.0) -> list[list[int]]:
    """The division of n tasks into exactly so many groups with the highest `score`; of equals, the first found.

    Exact, by dynamic programming over sets of tasks: about ``groups 3^n`` steps, so n is at most 14.

    Raises
    ------
    RuleError
        More tasks than that, a matrix that is not square and finite, or a number of groups that is not in 1 .. n.
    """
    s = np.asarray(affinities, dtype=np.float64)
    n = len(s)
    if s.shape != (n, n) or not np.isfinite(s).all() or not 1 <= n <= 14:
        raise RuleError(f"affinities are a finite (n, n) matrix with n from 1 to 14; got shape {s.shape}")
    if not 1 <= groups <= n:
        raise RuleError(f"{n} tasks cannot be divided into {groups} groups; take 1 to {n}")
    worth = [0.0] + [score([_members(mask)], s, alone) for mask in range(1, 1 << n)]
    best = [-np.inf] * (1 << n)
    best[0] = 0.0
    choices: list[list[int]] = []
    for _ in range(groups):
        after, chosen = [-np.inf] * (1 << n), [0] * (1 << n)
        for mask in range(1, 1 << n):
            low = mask & -mask
            rest = mask ^ low
            sub = rest
            while True:  # every group that has the lowest task of the set
                group = sub | low
                value = worth[group] + best[mask ^ group]
                if value > after[mask]:
                    after[mask], chosen[mask] = value, group
                if not sub:
                    break
                sub = (sub - 1) & rest
        best = after
        choices.append(chosen)
    found, mask = [], (1 << n) - 1
    for chosen in reversed(choices):
        found.append(_members(chosen[mask]))
        mask ^= chosen[mask]
    return sorted(found)


def split(params: Tree, groups: Sequence[Sequence[int]], heads: Mapping[int, Sequence[str]]) -> list[Tree]:
    """What each group goes on with: copies of the shared tensors, and of its own tasks' heads.

    ``heads`` names each task's own tensors; all others are shared. Raises ``RuleError`` unless the groups divide the
    tasks.
    """
    if sorted(task for group in groups for task in group) != sorted(heads):
        raise RuleError(f"groups {[list(g) for g in groups]} must hold each of the tasks {sorted(heads)} once")
    own = {name for names in heads.values() for name in names}
    trees = []
    for group in groups:
        kept = {name for task in group for name in heads[task]}
        trees.append({name: np.array(value) for name, value in params.items() if name not in own or name in kept})
    return trees


def _members(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
