"""The command: one verb a room, and no logic of its own."""

from pluribus.cli.app import main

__all__ = ["main"]
