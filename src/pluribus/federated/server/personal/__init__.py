"""Personal models: rules under which every client ends with a model of its own."""

from pluribus.federated.server.personal.coalitions import (
    coalition_errors,
    coalitions,
    label_divergences,
    two_sample_divergences,
)
from pluribus.federated.server.personal.dame import DAMe
from pluribus.federated.server.personal.fedcollab import FedCollab
from pluribus.federated.server.personal.fedpub import FedPUB
from pluribus.federated.server.personal.pgfed import PGFed
from pluribus.federated.server.personal.self_fl import SelfFL
from pluribus.federated.server.personal.structural_entropy import entropy_groups, similar_groups, structural_entropy

__all__ = [
    "DAMe",
    "FedCollab",
    "FedPUB",
    "PGFed",
    "SelfFL",
    "coalition_errors",
    "coalitions",
    "entropy_groups",
    "label_divergences",
    "similar_groups",
    "structural_entropy",
    "two_sample_divergences",
]
