"""Server rules: how a server turns a round of client updates into the next model.

>>> from pluribus.federated import server
>>> server.parse("fedlaw:gamma=1").name
'fedlaw:gamma=1'
>>> server.parse("nnm+median", attackers=4).name
'nnm:f=4+median'
"""

from pluribus.federated.server.asynchronous import (
    MIFA,
    QSR,
    AsyncFedED,
    CAFed,
    DelayedNesterov,
    DiLoCo,
    FedAsync,
    FedBuff,
    FedFix,
    FedStale,
    ScaledLocalSGD,
)
from pluribus.federated.server.base import Objective, Offer, Round, ServerRule, State, Tree
from pluribus.federated.server.compact import FRL, GMF, FedPara, FedParaAvg, FedSelect, Ferret, PFedPara
from pluribus.federated.server.contribution import IDA, FairBFL, FedCE, FedDA, FedGP, FedLD
from pluribus.federated.server.control import (
    FOT,
    QFFL,
    AdversarialTraining,
    Curriculum,
    FedAMD,
    FedBR,
    FedDyn,
    FedLabel,
    FedMoSWA,
    FedNova,
    FedProx,
    FedSpeed,
    FedSWA,
    Scaffold,
    adversarial_samples,
    learn_tasks,
    project_inputs,
)
from pluribus.federated.server.distillation import FedFTG, FedGen
from pluribus.federated.server.fedau import FedAU
from pluribus.federated.server.fedavg import FedAvg
from pluribus.federated.server.feddisco import FedDisco, disco_weights, label_distances
from pluribus.federated.server.fedlaw import FedLAW
from pluribus.federated.server.finetune import ServerFineTune
from pluribus.federated.server.heads import AFL, FedADP, FedGELA, FedGH, FedImpro, FedLoGe, FedTGP, InCo
from pluribus.federated.server.hierarchy import Hierarchy
from pluribus.federated.server.optimisers import FedAdagrad, FedAdam, FedAvgM, FedYogi
from pluribus.federated.server.parsing import parse
from pluribus.federated.server.per_client import Personal
from pluribus.federated.server.personal import (
    DAMe,
    FedCollab,
    FedPUB,
    PGFed,
    SelfFL,
    coalition_errors,
    coalitions,
    label_divergences,
    two_sample_divergences,
)
from pluribus.federated.server.rule import STATUS, Server, register, registered
from pluribus.federated.server.stateless import Stateless

__all__ = [
    "AFL",
    "FOT",
    "FRL",
    "GMF",
    "IDA",
    "MIFA",
    "QFFL",
    "QSR",
    "STATUS",
    "AdversarialTraining",
    "AsyncFedED",
    "CAFed",
    "Curriculum",
    "DAMe",
    "DelayedNesterov",
    "DiLoCo",
    "FairBFL",
    "FedADP",
    "FedAMD",
    "FedAU",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBR",
    "FedBuff",
    "FedCE",
    "FedCollab",
    "FedDA",
    "FedDisco",
    "FedDyn",
    "FedFTG",
    "FedFix",
    "FedGELA",
    "FedGH",
    "FedGP",
    "FedGen",
    "FedImpro",
    "FedLAW",
    "FedLD",
    "FedLabel",
    "FedLoGe",
    "FedMoSWA",
    "FedNova",
    "FedPUB",
    "FedPara",
    "FedParaAvg",
    "FedProx",
    "FedSWA",
    "FedSelect",
    "FedSpeed",
    "FedStale",
    "FedTGP",
    "FedYogi",
    "Ferret",
    "Hierarchy",
    "InCo",
    "Objective",
    "Offer",
    "PFedPara",
    "PGFed",
    "Personal",
    "Round",
    "Scaffold",
    "ScaledLocalSGD",
    "SelfFL",
    "Server",
    "ServerFineTune",
    "ServerRule",
    "State",
    "Stateless",
    "Tree",
    "adversarial_samples",
    "coalition_errors",
    "coalitions",
    "disco_weights",
    "label_distances",
    "label_divergences",
    "learn_tasks",
    "parse",
    "project_inputs",
    "register",
    "registered",
    "two_sample_divergences",
]
