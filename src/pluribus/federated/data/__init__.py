"""Samples with labels: built-in sets, the user's own files, and their division into parts."""

from pluribus.federated.data.builtin import digits, mnist_5k
from pluribus.federated.data.dataset import Dataset, Split, split
from pluribus.federated.data.files import load
from pluribus.federated.data.labels import flip_labels, noisy_labels

__all__ = ["Dataset", "Split", "digits", "flip_labels", "load", "mnist_5k", "noisy_labels", "split"]
