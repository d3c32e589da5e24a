"""Rules that correct the clients' drift: control variates, corrections of the objective, schedules within a round."""

from pluribus.federated.server.control.adversarial import AdversarialTraining, adversarial_samples
from pluribus.federated.server.control.curriculum import Curriculum
from pluribus.federated.server.control.fedamd import FedAMD
from pluribus.federated.server.control.fedbr import FedBR
from pluribus.federated.server.control.feddyn import FedDyn
from pluribus.federated.server.control.fedlabel import FedLabel
from pluribus.federated.server.control.fednova import FedNova
from pluribus.federated.server.control.fedprox import FedProx
from pluribus.federated.server.control.fedspeed import FedSpeed
from pluribus.federated.server.control.fedswa import FedMoSWA, FedSWA
from pluribus.federated.server.control.fot import FOT, learn_tasks, project_inputs
from pluribus.federated.server.control.qffl import QFFL
from pluribus.federated.server.control.scaffold import Scaffold

__all__ = [
    "FOT",
    "QFFL",
    "AdversarialTraining",
    "Curriculum",
    "FedAMD",
    "FedBR",
    "FedDyn",
    "FedLabel",
    "FedMoSWA",
    "FedNova",
    "FedProx",
    "FedSWA",
    "FedSpeed",
    "Scaffold",
    "adversarial_samples",
    "learn_tasks",
    "project_inputs",
]
