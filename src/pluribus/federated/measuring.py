"""How good a model is: on all test samples, and for each client on samples of its own kind."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pluribus.federated.data import Dataset
from pluribus.federated.history import Floats, History
from pluribus.federated.models import Model, Tree
from pluribus.federated.server.base import ServerRule, State
from pluribus.federated.server.rule import Server
from pluribus.federated.setup import Setup


def measure(model: Model, params: Tree, test: Dataset) -> tuple[Floats, float, float]:
    """Accuracy of each class (C,), NaN for a class without samples; of all samples; and the mean loss."""
    probabilities = np.asarray(model.probabilities(params, test.x), dtype=np.float64)
    right = probabilities.argmax(axis=1) == test.y
    of_label = probabilities[np.arange(len(test)), test.y]
    # The least positive float32 stands for zero, so that one sure mistake is not a loss of infinity.
    loss = float(-np.log(np.maximum(of_label, np.finfo(np.float32).tiny)).mean())
    hits = np.bincount(test.y[right], minlength=test.n_classes).astype(np.float64)
    counts = test.counts
    by_class = np.divide(hits, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return by_class, float(right.mean()), loss


def accuracy_of_clients(by_class: Floats, counts: NDArray[np.int64]) -> Floats:
    """``sum_c p_c a_c`` over the classes whose accuracy is known, (N,); NaN where a client has none of them."""
    known = np.isfinite(by_class)
    own = counts[:, known]
    total = own.sum(axis=1)
    return np.divide(own @ by_class[known], total, out=np.full(len(counts), np.nan), where=total > 0)


def measure_round(setup: Setup, rule: ServerRule, state: State, history: History, number: int) -> None:
    """The accuracy after a round: of the global model, or the clients' mean, each on samples of its own kind.

    The clients' mean is taken where one test set cannot tell: where each has a model of its own, and where their
    samples are of several kinds, be the model global or not, so that such rules can be compared.
    """
    last = number + 1 == history.rounds
    personal = isinstance(rule, Server) and rule.personal_models
    if personal or setup.tests is not None:
        accuracy, losses = _measured_apart(setup, rule, state)
        history.accuracy[number], history.loss[number] = np.nanmean(accuracy), losses.mean()
    else:
        by_class, history.accuracy[number], history.loss[number] = measure(setup.model, state["params"], setup.test)
        accuracy = accuracy_of_clients(by_class, setup.true_counts)
    if last:
        history.client_accuracy[:] = accuracy


def _measured_apart(setup: Setup, rule: ServerRule, state: State) -> tuple[Floats, Floats]:
    """Each client's model on test samples of the client's kind: accuracy in its own mix of classes, and loss, (N,)."""
    n = len(setup.clients)
    accuracy, losses = np.full(n, np.nan), np.full(n, np.nan)
    for i in range(n):
        params = rule.model_of(state, i) if isinstance(rule, Server) else state["params"]
        test = setup.test if setup.tests is None else setup.tests(i)
        by_class, _, losses[i] = measure(setup.model, params, test)
        accuracy[i] = accuracy_of_clients(by_class, setup.true_counts[i : i + 1])[0]
    return accuracy, losses
