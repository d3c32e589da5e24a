"""Which replies of a round are used, and why others are left out. Part of `pluribus.federated.flower`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pluribus.core.errors import ContributionError, NonFiniteError, PluribusError
from pluribus.federated.flower_offers import unlike_most, unlike_others
from pluribus.federated.flower_records import Reply, too_long

_LOG = logging.getLogger("flwr")

CLIENT = r"\bclient (\d+)\b"
"""How errors of rules name a client."""


def read(
    replies: Iterable[Any], opened: Callable[[Any], Reply], *, asked: set[int], malformed: str
) -> tuple[dict[int, Reply], dict[int, int]]:
    """Usable replies by node, in the order of the nodes' ids, and why others are left out.

    Raises
    ------
    ContributionError, WeightError
        A malformed reply, under ``malformed="raise"``.
    """
    good: dict[int, Reply] = {}
    left_out: dict[int, int] = {}
    for message in sorted(replies, key=lambda m: m.metadata.src_node_id):
        node = message.metadata.src_node_id
        if message.has_error() or not message.has_content():
            reason = message.error.reason if message.has_error() else "the reply is empty"
            _LOG.info("\t> Error of node %d: %s", node, reason)
            if node in asked or not asked:  # Flower tells of a lost reply under the server's own id
                left_out[node] = 2
            continue
        try:
            if node in good:
                raise ContributionError(f"node {node} answered twice in one round")
            good[node] = opened(message)
        except PluribusError as error:
            _reject(error, malformed)
            if node not in good:
                left_out[node] = 3
    return good, left_out


def screen(
    good: dict[int, Reply], left_out: dict[int, int], *, most: float | None, ratio: float | None, malformed: str
) -> None:
    """Move from the good ones whose message is unlike the others', and whose update or message is too long.

    Raises
    ------
    ContributionError
        A message unlike the others', under ``malformed="raise"``.
    """
    messages = {node: reply.message for node, reply in good.items()}
    for node in unlike_others(messages):
        told = f"node {node}: tensors of its message have other shapes or kinds of number than those of most nodes"
        _reject(ContributionError(told), malformed)
        del good[node], messages[node]
        left_out[node] = 3
    updates = {node: reply.update for node, reply in good.items()}
    for node, told in (too_long(messages, None, ratio) | too_long(updates, most, ratio)).items():
        _LOG.warning("\t> node %d %s", node, told)
        del good[node]
        left_out[node] = 5


def blamed(error: Exception, good: Mapping[int, Reply], numbers: Sequence[int]) -> list[int]:
    """Nodes because of whose replies a rule could not step, to go on without; none where it is everybody's fault.

    ``numbers`` are the ids of all nodes in the order of their numbers, by which a rule's errors name clients. Where an
    error names nobody, those are it whose message holds other tensors than those of most.
    """
    if isinstance(error, NonFiniteError):  # the rule was told to raise it
        return []
    odd = set(unlike_most({node: reply.message for node, reply in good.items()}))
    if isinstance(error, PluribusError):
        named = {numbers[int(found)] for found in re.findall(CLIENT, str(error)) if int(found) < len(numbers)}
        odd = odd & named or named  # an error may also name whom somebody differs from
    guilty = sorted(odd & good.keys())
    return guilty if len(guilty) < len(good) else []


def _reject(error: PluribusError, malformed: str) -> None:
    if malformed == "raise":
        raise error
    _LOG.warning("\t> %s", error)
