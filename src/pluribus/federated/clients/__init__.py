"""What clients do between two rounds: plain local training, and the client's half of the methods that have one.

A client method is the other end of a server rule: the rule's `Server.offer` says what a client gets, the method trains
and says what it sends back. Both are pure; what a client keeps for itself is a tree of arrays like the server's state.
"""

from pluribus.federated.clients.base import ClientMethod, Job, Plain, Report

__all__ = ["ClientMethod", "Job", "Plain", "Report"]
