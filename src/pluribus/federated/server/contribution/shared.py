"""What rules that weigh clients by their contribution share: the rest of the model, and how sure an update is."""

from __future__ import annotations

import numpy as np

from pluribus.federated.clients.base import Job
from pluribus.federated.models import Batch
from pluribus.federated.seeding import generator
from pluribus.federated.server.base import Array, Round, Tree
from pluribus.federated.server.rule import Server, mean

PARTS = 16
"""Parts of a client's samples from whose gradients the spread is estimated."""


def rest_of(rule: Server, params: Tree, round: Round, shares: Array) -> Tree:
    """Mean change of buffers and counters: what rules that look at trained tensors alone leave to a plain mean."""
    trained = set(rule.parameters(params))
    names = [name for name, value in params.items() if name not in trained and value.dtype.kind != "b"]
    return mean(round, shares, names) if names else {}


def update_variance(job: Job, steps: int) -> float:
    """Estimate of ``E |delta - E delta|^2`` of a client's update, over all trained coordinates, for so many steps.

    With up to 16 parts B of the client's samples and gradients g_b at the start model,
    ``s2 = sum_b |g_b - mean|^2 / (B - 1)`` is a part's variance. K steps of length l that go over the samples again
    and again make ``l K mean_b g_b`` of them while the model hardly moves, whose variance is ``(l K)^2 s2 / B``. A
    client with a single sample has no spread to measure: its gradient's own square stands for ``s2 / B``, which doubts
    all of it. Momentum m makes steps longer by 1 / (1 - m). It costs one pass over the samples.
    """
    count = len(job.dataset)
    size = -(-count // PARTS)
    order = generator(job.seed, "federated.variance").permutation(count)
    gradients = []
    with np.errstate(all="ignore"):
        for start in range(0, count, size):
            chosen = order[start : start + size]
            _, grads = job.model.loss_and_grad(dict(job.params), Batch(job.dataset.x[chosen], job.dataset.y[chosen]))
            gradients.append(np.concatenate([np.ravel(value).astype(np.float64) for value in grads.values()]))
        stacked = np.stack(gradients)
        middle = stacked.mean(axis=0)
        if len(stacked) == 1:
            spread = float(middle @ middle)
        else:
            spread = float(((stacked - middle) ** 2).sum()) / (len(stacked) - 1) / len(stacked)
        length = steps * job.how.lr / (1 - job.how.momentum)
        return float(length**2 * spread)
