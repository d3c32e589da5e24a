"""Two groups of clients who call the digits differently, with few samples each: what personal models are for."""

from dataclasses import replace

import numpy as np
from federations import federation

from pluribus.federated import server, simulate

CLIENTS = 6
SAME = (np.arange(CLIENTS)[:, None] % 2) == (np.arange(CLIENTS)[None, :] % 2)
OTHERS = ~np.eye(CLIENTS, dtype=bool)


def two_groups(seed, model="softmax", shift="labels:2", samples=60):
    """Even clients are one group, odd ones the other."""
    setup = federation(
        seed=seed, clients=CLIENTS, model=model, shift=shift, partition="iid", lr=0.1, epochs=5, batch_size=16
    )
    clients = tuple(client.take(np.arange(samples)) for client in setup.clients)
    return replace(setup, clients=clients, true_counts=np.stack([client.counts for client in clients]))


def finish(setup, rule, seed, rounds=8):
    """The run, and the mean over the clients of each one's accuracy on its own kind of samples."""
    run = simulate(setup, server.parse(rule) if isinstance(rule, str) else rule, seed=seed, rounds=rounds)
    return run, float(np.nanmean(run.history.client_accuracy))


ALONE = "fedcollab:groups=0-1-2-3-4-5"
