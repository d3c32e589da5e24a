"""Who averages whom: trees of aggregators, gossip on graphs, and rounds without a server.

Pure functions and small seeded simulators over a federation's clients. The server rule on two levels and more is
`pluribus.federated.server.Hierarchy`, ``tree:...`` on the command line.
"""

from pluribus.federated.topology.graphs import (
    complete,
    connected,
    consensus_distance,
    metropolis,
    mix,
    random_regular,
    ring,
    spectral_gap,
    star,
    torus,
)
from pluribus.federated.topology.modest import MoDeST, MoDeSTRun, ordered, run_modest
from pluribus.federated.topology.orbits import Orbit, contact_weights
from pluribus.federated.topology.semi import SemiDecentralised, SemiRun, run_semi
from pluribus.federated.topology.trees import balanced, flat, leaves, scattered, tree_fold, tree_mean

__all__ = [
    "MoDeST",
    "MoDeSTRun",
    "Orbit",
    "SemiDecentralised",
    "SemiRun",
    "balanced",
    "complete",
    "connected",
    "consensus_distance",
    "contact_weights",
    "flat",
    "leaves",
    "metropolis",
    "mix",
    "ordered",
    "random_regular",
    "ring",
    "run_modest",
    "run_semi",
    "scattered",
    "spectral_gap",
    "star",
    "torus",
    "tree_fold",
    "tree_mean",
]
