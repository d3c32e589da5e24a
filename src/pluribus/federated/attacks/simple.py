"""Attacks that look at nothing but the mean: flipped, opposed, noisy, broken and idle updates."""

from __future__ import annotations

import numpy as np

from pluribus.federated.attacks.trees import Trees, mapped, mean, sent_by_all
from pluribus.federated.models import Array, Tree, real


def sign_flip(own: Trees, scale: float = 1.0) -> list[Tree]:
    """Each attacker sends ``-scale`` times its own update.

    Li et al. 2019 (RSA). With scale 1 as epfml/byzantine-robust-noniid-optimizer bitflipping.py does.
    """
    return [mapped(tree, lambda value: -scale * value) for tree in own]


def ipm(honest: Trees, own: Trees, eps: float = 0.5) -> list[Tree]:
    """Inner product manipulation: all attackers send ``-eps`` times the mean of the honest updates.

    Small ``eps`` hides among the honest, ``eps > (n - f) / f`` turns the plain mean around. Without honest
    clients in the round the attackers' own updates stand for them.

    Xie et al. 2020 (Fall of Empires). As epfml/byzantine-robust-noniid-optimizer xie.py.
    """
    middle = mean(honest if len(honest) else own)
    return sent_by_all({name: -eps * value for name, value in middle.items()}, own)


def gaussian(own: Trees, sigma: float, rng: np.random.Generator) -> list[Tree]:
    """Each attacker sends independent noise N(0, sigma^2) in every coordinate (Blanchard et al. 2017)."""
    return [mapped(tree, lambda value: sigma * rng.standard_normal(value.shape)) for tree in own]


def nan(own: Trees) -> list[Tree]:
    """Each attacker sends NaN everywhere, as a client whose training diverged does."""
    return [mapped(tree, lambda value: np.full(value.shape, np.nan)) for tree in own]


def free_rider(own: Trees, noise: float, rng: np.random.Generator, change: Tree | None = None) -> list[Tree]:
    """Clients that want the model without working for it: nothing, or the last change of the model, and some noise.

    Each sends ``change + noise N(0, 1)`` in every coordinate, where ``change`` is what the server moved by since
    they last got it (none: 0). Noise hides that all free riders send the same.

    Lin et al. 2019 ("delta weights", the last change), Fraboni et al. 2021 (nothing, disguised by noise; there the
    noise falls with the rounds).
    """

    def made(name: str, value: Array) -> Array:
        known = np.zeros(value.shape) if change is None else change[name].astype(np.float64)
        return (known + noise * rng.standard_normal(value.shape) if noise else known).astype(value.dtype)

    return [{name: made(name, value) if real(value) else value.copy() for name, value in tree.items()} for tree in own]
