"""What is learned: the 1,797 digits that come with scikit-learn, by a network of one hidden layer."""

from __future__ import annotations

from pluribus.federated.data import Dataset, Split, digits, split
from pluribus.federated.models import MLP
from pluribus.federated.partition import dirichlet

MODEL = MLP(n_features=64, hidden=32, n_classes=10, dtype="float32")


def data(seed: int) -> Split:
    """Samples to train on, to test on, and none for the server itself."""
    return split(digits(), seed, proxy=0)


def part(which: int, parts: int, seed: int) -> Dataset:
    """The samples of one client: each has its own mixture of digits."""
    train = data(seed).train
    return train.take(dirichlet(train.y, parts, alpha=1.0, seed=seed, min_size=20).indices[which])
