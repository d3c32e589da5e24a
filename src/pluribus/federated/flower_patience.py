"""How long a round waits: for a quorum, and then a while for the rest. Part of `pluribus.federated.flower`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

_LOG = logging.getLogger("flwr")
_PAUSE = 1.0  # seconds between two questions to the SuperLink


class Patient:
    """A grid of Flower whose ``send_and_receive`` ends some seconds after the quorum has answered.

    Flower's own waits for everybody until the timeout, and a node that was killed counts as being there for a minute.
    Replies that come later are not looked at.

    Parameters
    ----------
    grid
        The grid that carries the messages.
    quorum
        How many replies without error, by type of message (``"train"``, ``"evaluate"``).
    grace
        Seconds to wait for the rest once the quorum is there.
    """

    def __init__(self, grid: Any, quorum: dict[str, int], grace: float) -> None:
        self._grid, self._quorum, self._grace = grid, quorum, grace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Send, and return what has come when the quorum and the grace, or the timeout, are over."""
        sent = list(messages)
        if not sent:
            return []
        quorum = self._quorum.get(sent[0].metadata.message_type, len(sent))
        waiting = {name for name in self._grid.push_messages(sent) if name is not None}
        end = float("inf") if timeout is None else time.monotonic() + timeout
        replies: list[Any] = []
        while True:
            new = list(self._grid.pull_messages(waiting)) if waiting else []
            replies += new
            waiting -= {message.metadata.reply_to_message_id for message in new}
            now = time.monotonic()
            if quorum > 0 and sum(not message.has_error() for message in replies) >= quorum:
                end, quorum = min(end, now + self._grace), 0
            if not waiting or now >= end:
                break
            time.sleep(min(_PAUSE, end - now))
        if waiting:
            _LOG.info("Going on without the %d of %d that have not answered", len(waiting), len(sent))
        return replies
