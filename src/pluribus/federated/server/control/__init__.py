"""Rules that correct the clients' drift: control variates, corrections of the objective, schedules within a round."""

from pluribus.federated.server.control.scaffold import Scaffold

__all__ = ["Scaffold"]
