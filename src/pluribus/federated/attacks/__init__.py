"""What dishonest clients send: attacks on the updates, and some on the data.

An update is the tree of changes ``w_client - w_server``. Integer tensors (counters) are left as the
attacker's own training made them. Attackers know the honest updates of their round and collude.
"""

from pluribus.federated.attacks.against import defence_of
from pluribus.federated.attacks.attack import EXAMPLES, KINDS, Attack, Kind, Scene, parse
from pluribus.federated.attacks.backdoor import Trigger, backdoor_test
from pluribus.federated.attacks.copying import mimic
from pluribus.federated.attacks.distances import min_max, min_sum
from pluribus.federated.attacks.little import Defence, alie, alie_adaptive, alie_z_max
from pluribus.federated.attacks.simple import free_rider, gaussian, ipm, nan, sign_flip
from pluribus.federated.attacks.trees import Trees

__all__ = [
    "EXAMPLES",
    "KINDS",
    "Attack",
    "Defence",
    "Kind",
    "Scene",
    "Trees",
    "Trigger",
    "alie",
    "alie_adaptive",
    "alie_z_max",
    "backdoor_test",
    "defence_of",
    "free_rider",
    "gaussian",
    "ipm",
    "mimic",
    "min_max",
    "min_sum",
    "nan",
    "parse",
    "sign_flip",
]
