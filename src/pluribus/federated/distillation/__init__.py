"""Learning from clients' models and outputs instead of their weights' mean.

Here are functions of models and representations: CreamFL's ensemble and Co-Boosting's one-shot loop. The server rules
that distil in each round are `pluribus.federated.server.FedGen` and `pluribus.federated.server.FedFTG`. All of it is
numpy; a `TorchModel` works wherever a model does, and brings torch with it.
"""

from pluribus.federated.distillation.coboosting import Boosted, CoBoosting, ensemble_scores, signed_step
from pluribus.federated.distillation.contrast import (
    CreamFL,
    Ensemble,
    contrast_scores,
    contrast_weights,
    recall_at_one,
)
from pluribus.federated.distillation.generator import Generator, class_prior, class_shares, diversity

__all__ = [
    "Boosted",
    "CoBoosting",
    "CreamFL",
    "Ensemble",
    "Generator",
    "class_prior",
    "class_shares",
    "contrast_scores",
    "contrast_weights",
    "diversity",
    "ensemble_scores",
    "recall_at_one",
    "signed_step",
]
