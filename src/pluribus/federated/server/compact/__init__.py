"""Rules with small messages: few coordinates, random products, factors, shared parts of the model, rankings."""

from pluribus.federated.server.compact.fedpara import FedPara, FedParaAvg, PFedPara
from pluribus.federated.server.compact.fedselect import FedSelect
from pluribus.federated.server.compact.ferret import Ferret
from pluribus.federated.server.compact.frl import FRL
from pluribus.federated.server.compact.gmf import GMF

__all__ = ["FRL", "GMF", "FedPara", "FedParaAvg", "FedSelect", "Ferret", "PFedPara"]
