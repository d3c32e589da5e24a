"""IDA: the nearer a client's model is to the mean, the more it counts; and the less its own samples are learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core import weights
from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.contribution.shared import rest_of
from pluribus.federated.server.rule import Server, Step, local_models, mean, one_of, portion, register, size_shares


@register
@dataclass(frozen=True)
class IDA(Server):
    """``x + lr sum_i a_i delta_i``, a_i in proportion to ``t_i / |delta_i - mean|``, t_i given by ``times``.

    The mean is that of the participants, all alike. Distances are sums of absolute differences over the trained
    tensors, as published; ``inverse_distance`` is the same with Euclidean ones, through the Gram matrix and without
    the factors t (``norm="l2"`` here gives its numbers). Distances below ``least_share`` of their mean count as that
    much. With all but one of n models equal the one counts for ``1 / ((n - 1)^2 + 1)``.

    From the paper's formulas as commonly cited (its code was not found): ``|w_avg - w_k|^-1``, the number of samples,
    and INTRAC, ``1 / max(1/K, accuracy)`` with 1/K taken here as ``least_accuracy``. On digits with two noisy clients
    of eight (5 seeds) their weight is .14 of .25, and accuracy .841 against .819 of FedAvg with mlp:16 (spread .03) and
    equal with softmax; ``"accuracy"`` raises their weight to .4 and more, because wrong labels are not learned.

    Parameters
    ----------
    times
        t_i: ``"none"`` 1, ``"size"`` the samples, ``"accuracy"`` one over the accuracy of client i's local model on
        its own samples (a model that has learned them by heart counts less), ``"both"``.
    norm
        ``"l1"`` or ``"l2"``.
    least_accuracy
        Accuracies below count as this much, in (0, 1]; a tenth is chance for ten classes.
    least_share
        Of the mean distance.
    server_lr
        Step along the result.
    """

    times: str = "none"
    norm: str = "l1"
    least_accuracy: float = 0.1
    least_share: float = 1e-6
    server_lr: float = 1.0

    key = "ida"
    formula = "x + lr sum_i a_i delta_i, a_i ~ t_i / |delta_i - mean|_1, t_i = 1, n_i, 1 / accuracy_i, n_i / accuracy_i"
    source = "Yeganeh et al., Inverse Distance Aggregation for Federated Learning with Non-IID Data, DCL 2020"
    explanation = "A client counts the more, the nearer its model is to the mean of all."
    numbers = (64,)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "times", ("none", "size", "accuracy", "both"))
        one_of(self, "norm", ("l1", "l2"))
        for name in ("least_share", "server_lr"):
            positive("IDA", name, getattr(self, name))
        portion(self, "least_accuracy")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The clients are asked only where accuracies count."""
        return frozenset({"validate"} if self.times in ("accuracy", "both") else ())

    def advance(self, state: State, round: Round) -> Step:
        """Move by the mean with weights in inverse proportion to the distances."""
        names = self.parameters(state["params"])
        distances = self.distances(round, names)
        typical = float(distances.mean())
        near = np.ones_like(distances) if typical == 0 else 1 / np.maximum(distances, self.least_share * typical)
        shares = weights.normalise(near * self.factors(state["params"], round))
        change = mean(round, shares, names) | rest_of(self, state["params"], round, shares)
        return Step(self.moved(state["params"], change, self.server_lr), shares, {})

    def distances(self, round: Round, names: list[str]) -> Array:
        """Of each update to their mean, (k,)."""
        k = len(round.clients)
        total = np.zeros(k)
        for name in names:
            rows = np.stack([np.ravel(update[name]) for update in round.updates]).astype(np.float64)
            gaps = np.abs(rows - rows.mean(axis=0))
            total += gaps.sum(axis=1) if self.norm == "l1" else (gaps**2).sum(axis=1)
        return total if self.norm == "l1" else np.sqrt(total)

    def factors(self, params: Tree, round: Round) -> Array:
        """t, (k,)."""
        factors = size_shares(round) if self.times in ("size", "both") else np.ones(len(round.clients))
        if self.times in ("accuracy", "both"):
            if round.validate is None:
                raise RuleError(
                    f"IDA: times={self.times!r} needs each local model's accuracy on its client's own samples, and "
                    "this round has no validate; run it where clients can be asked back, or take times=size"
                )
            models = local_models(round, params)
            errors = np.array([round.validate(i, model)[1] for i, model in zip(round.clients, models, strict=True)])
            # An accuracy that nobody could measure counts as the best, so it makes nobody count for more.
            factors = factors / np.clip(1 - np.nan_to_num(errors, nan=0.0), self.least_accuracy, 1.0)
        return factors
