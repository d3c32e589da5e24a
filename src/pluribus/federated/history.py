"""What happened in a run, round by round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class History:
    """What happened, in arrays of a fixed size that are filled round by round.

    Attributes
    ----------
    accuracy, loss
        Of the global model on the test samples after each round, (R,); the loss is the mean ``-log p(label)``.
        NaN where it was not measured. Under a rule with personal models: the mean over the clients of the accuracy as
        in ``client_accuracy`` and of the loss on the test samples, each of the client's own model.
    train_loss
        Mean over the round's participants of their loss while they trained, (R,).
    effective
        Effective number of clients, ``(sum |w|)^2 / sum w^2`` of the weights, (R,); NaN where nobody counted.
    weights
        What each client counted for, (R, N); NaN for those absent or left out.
    present
        Who took part, (R, N).
    time
        Simulated seconds from the start to the server's step, (R,).
    bytes_up, bytes_down
        Bytes that reached the server, and that it sent, up to and with each round, (R,).
    staleness
        Mean number of server steps between the model a participant started from and the step it took part in, (R,);
        NaN where nobody came.
    status
        What the server did in each round, (R,): an index into `pluribus.federated.server.rule.STATUS`, where 0 is
        a step and all else leaves the model as it was; -1 before the round.
    client_accuracy
        After the last round, (N,): the accuracy to expect on fresh samples of a client's own kind, that is
        ``sum_c p_c a_c`` with its true shares ``p`` of the classes and the accuracy ``a`` of each class on the
        test samples (of its own kind, where clients' samples differ in kind). Classes without test samples are left
        out. A client with a model of its own is measured with that.
    gram, squared_distances
        Of the last round's updates as the server got them, (N, N); NaN for clients that were absent or sent NaN.
    """

    accuracy: Floats
    loss: Floats
    train_loss: Floats
    effective: Floats
    time: Floats
    bytes_up: Floats
    bytes_down: Floats
    staleness: Floats
    weights: Floats
    present: NDArray[np.bool_]
    status: NDArray[np.int64]
    client_accuracy: Floats
    gram: Floats
    squared_distances: Floats

    @classmethod
    def empty(cls, rounds: int, clients: int) -> History:
        """Of so many rounds, none of which has happened."""

        def missing(*shape: int) -> Floats:
            return np.full(shape, np.nan)

        return cls(
            accuracy=missing(rounds),
            loss=missing(rounds),
            train_loss=missing(rounds),
            effective=missing(rounds),
            time=missing(rounds),
            bytes_up=missing(rounds),
            bytes_down=missing(rounds),
            staleness=missing(rounds),
            weights=missing(rounds, clients),
            present=np.zeros((rounds, clients), dtype=np.bool_),
            status=np.full(rounds, -1),
            client_accuracy=missing(clients),
            gram=missing(clients, clients),
            squared_distances=missing(clients, clients),
        )

    @property
    def rounds(self) -> int:
        """How many rounds it has room for."""
        return len(self.accuracy)

    @property
    def cosines(self) -> Floats:
        """Cosines of the last round's updates, (N, N); NaN as in ``gram``, 0 for a zero update."""
        norms = np.sqrt(np.diag(self.gram))
        safe = np.where(norms > 0, norms, 1.0)
        return np.asarray(np.clip(self.gram / safe[:, None] / safe[None, :], -1.0, 1.0))
