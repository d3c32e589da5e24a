"""Small federations that the tests share: digits in a few seconds, and quadratics whose optimum is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.federated import config
from pluribus.federated.data import Dataset, digits
from pluribus.federated.participation import parse
from pluribus.federated.setup import Setup, build
from pluribus.federated.training import LocalTraining


def federation(seed=0, **settings):
    """A federation of digits; settings as on the command line, by default small and without an attack."""
    values = {"clients": 5, "model": "mlp:8", "epochs": 1, "attack": "none", "proxy": 50, "rounds": 2} | settings
    resolved = config.resolve(config.Layer(values))[0]
    return build(resolved, digits(), seed)


@dataclass(frozen=True)
class Quadratic:
    """``0.5 sum_j a_j (w_j - t_j)^2``; a sample's features are its a and t, and a batch takes their mean."""

    size: int = 2

    def init(self, seed):
        return {"w": np.zeros(self.size)}

    def loss_and_grad(self, params, batch):
        a, t = batch.x[:, : self.size], batch.x[:, self.size :]
        gap = params["w"] - t
        return 0.5 * float((a * gap**2).sum(axis=1).mean()), {"w": (a * gap).mean(axis=0)}

    def predict(self, params, x):
        return np.zeros(len(x), dtype=np.int64)

    def probabilities(self, params, x):
        return np.full((len(x), 2), 0.5)


def quadratics(*, clients=3, steps=4, lr=0.1, size=2, seed=0, participation="all", **world):
    """A federation whose client i has ``0.5 sum_j a_ij (w_j - t_ij)^2``: setup, targets t and curvatures a, (n, d)."""
    rng = np.random.default_rng(seed)
    targets, curvatures = rng.normal(size=(clients, size)), rng.uniform(0.5, 2.0, size=(clients, size))
    sets = [
        Dataset(np.concatenate([a, t])[None], np.zeros(1, dtype=np.int64), 2, name=f"quadratic {i}")
        for i, (a, t) in enumerate(zip(curvatures, targets, strict=True))
    ]
    counts = np.tile([1, 0], (clients, 1))
    setup = Setup(
        model=Quadratic(size),
        training=LocalTraining(steps=steps, batch_size=1, lr=lr),
        clients=tuple(sets),
        test=sets[0],
        participation=parse(participation, counts, seed),
        true_counts=counts,
        **world,
    )
    return setup, targets, curvatures
