"""All attackers copy one honest client, which then counts for many: no outlier, and heavy where data differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pluribus.federated.attacks.trees import Trees, Wide, dot, mean, norm, plus, sent_by_all
from pluribus.federated.models import Tree, real
from pluribus.federated.seeding import generator

Memory = dict[str, Any]


def mimic(
    honest: Trees, own: Trees, clients: Sequence[int], memory: Mapping[str, Any], *, warmup: int = 10, seed: int = 0
) -> tuple[list[Tree], Memory]:
    """All attackers send the update of the honest client that lies furthest along the direction of largest variance.

    The direction z is learnt over the first ``warmup`` rounds, a step of Oja's rule a round: with the running mean m
    of the honest updates x, ``z <- t/(t+1) z + 1/(t+1) u / |u|``, ``u = sum_i (x_i - m) <x_i - m, z>``, rescaled to
    length 1. While it is learnt, the client with the largest ``<x_i, z>`` is copied; from then on the last one, or,
    in rounds without it, again the one furthest along z.

    Parameters
    ----------
    honest, own
        The round's honest updates, and what the attackers' training gave them. Honest updates that are not finite are
        passed over; without any others the attackers send their own.
    clients
        Whose the honest updates are.
    memory
        ``{}`` before the first round, then what the last call returned: ``direction`` and ``mean`` are trees of
        float64, ``seen`` the number of rounds, ``target`` the client.
    warmup
        Rounds in which the direction is learnt.
    seed
        Fixes the direction that it begins with.

    Karimireddy et al. 2022. Compared with MimicVariantAttacker of epfml/byzantine-robust-noniid-optimizer: the same
    steps (there warmup is 1 by default).
    """
    good = [k for k, tree in enumerate(honest) if all(np.isfinite(v).all() for v in tree.values() if real(v))]
    if not good:
        return [{name: value.copy() for name, value in tree.items()} for tree in own], dict(memory)
    trees, ids = [honest[k] for k in good], [int(clients[k]) for k in good]
    seen = int(memory["seen"]) if memory else 0
    if seen < warmup:
        middle, direction = _learnt(trees, memory, seen, seed)
        memory = {"direction": direction, "mean": middle, "seen": np.array(seen + 1), "target": np.array(-1)}
    target = int(memory["target"])
    if target not in ids:
        along = [dot(memory["direction"], tree) for tree in trees]
        here = ids[int(np.argmax(along))]
        if seen < warmup:
            memory = {**memory, "target": np.array(here)}
        target = here
    copied = trees[ids.index(target)]
    return sent_by_all({name: copied[name].astype(np.float64) for name in memory["direction"]}, own), dict(memory)


def _learnt(trees: Trees, memory: Mapping[str, Any], seen: int, seed: int) -> tuple[Wide, Wide]:
    """The running mean and the direction after one more round."""
    now = mean(trees)
    if seen:
        middle = {name: (seen * value + now[name]) / (seen + 1) for name, value in memory["mean"].items()}
        direction = memory["direction"]
    else:
        rng = generator(seed, "attack.mimic")
        middle, direction = now, {name: rng.standard_normal(value.shape) for name, value in now.items()}
    pulled: Wide = {name: np.zeros_like(value) for name, value in now.items()}
    for tree in trees:
        apart = {name: tree[name] - value for name, value in middle.items()}
        pulled = plus(pulled, dot(apart, direction), apart)
    pulled = _unit(pulled)
    if not seen:
        return middle, pulled if norm(pulled) > 0 else _unit(direction)
    return middle, _unit(plus({name: seen * value for name, value in direction.items()}, 1.0, pulled))


def _unit(tree: Wide) -> Wide:
    length = norm(tree)
    return {name: value / length for name, value in tree.items()} if length > 0 else tree
