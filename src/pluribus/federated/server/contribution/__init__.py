"""Rules that ask what a client contributed: how the others do without it, how far it is, whom it helps."""

from pluribus.federated.server.contribution.fair_bfl import FairBFL
from pluribus.federated.server.contribution.fedce import FedCE
from pluribus.federated.server.contribution.fedgp import FedDA, FedGP
from pluribus.federated.server.contribution.fedld import FedLD
from pluribus.federated.server.contribution.ida import IDA

__all__ = ["IDA", "FairBFL", "FedCE", "FedDA", "FedGP", "FedLD"]
