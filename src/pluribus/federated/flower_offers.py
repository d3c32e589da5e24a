"""What a rule tells its clients beside the model, and what they send back beside theirs, in Flower's records.

A message to train holds, beside the model and Flower's config, a ConfigRecord ``pluribus`` (the rule, the client's
number and seed, the round, how to train, what to measure) and an ArrayRecord ``pluribus-told`` where the rule tells
something; a reply may hold an ArrayRecord ``pluribus-message``. Trees of arrays become records under their paths. Part
of `pluribus.federated.flower`, which is where to begin.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pluribus.core.errors import ContributionError, RuleError, listing, require
from pluribus.core.rule import Rule
from pluribus.federated.flower_records import record_of, tree_of
from pluribus.federated.rounds import local_of, offer_of
from pluribus.federated.seeding import derived
from pluribus.federated.server import Stateless, parse
from pluribus.federated.server.admission import leaves
from pluribus.federated.server.base import Offer, ServerRule, State
from pluribus.federated.server.rule import Server
from pluribus.federated.training import LocalTraining

flwr = require("flwr.app", "flower")

ORDERS, TOLD, MESSAGE, MEMORY = "pluribus", "pluribus-told", "pluribus-message", "pluribus-memory"
"""Names of the records: the server's orders and what it tells; what a client sends, and what it keeps."""

MEASURED = frozenset({"losses"})
"""Which of a rule's `Server.needs` a client of Flower can meet."""

_DEEPEST = 8


def server_rule(rule: Any) -> ServerRule:
    """A rule, a server rule or the text of one as a server rule."""
    if isinstance(rule, str):
        return parse(rule)
    if isinstance(rule, Rule):
        return Stateless(rule)
    if isinstance(rule, ServerRule) and not isinstance(rule, type):
        return rule
    raise RuleError(
        "PluribusStrategy takes a rule such as rules.Median(), a server rule such as server.FedAdam(), or a text such "
        f"as 'multi_krum:f=2', not {rule!r}"
    )


def check_rule(rule: ServerRule, how: LocalTraining | None) -> None:
    """Refuse what a round of messages cannot give.

    Raises
    ------
    RuleError
        The rule asks clients back within a step, or changes how they train while nobody said how they do.
    """
    if not isinstance(rule, Server):
        return
    unmet = sorted(rule.needs - MEASURED)
    if "staleness" in unmet:
        raise RuleError(
            f"{rule.name} steps as updates arrive, and Flower's rounds are synchronous: every update is fresh; use it "
            "in `pluribus federate`, or take a synchronous rule with grace=, which ends a round soon after its quorum"
        )
    if unmet:
        raise RuleError(
            f"{rule.name} needs {listing(unmet)} of its clients within a step, and a round of Flower asks each client "
            "once; use it in `pluribus federate`, or take another rule"
        )
    if type(rule).local is not Server.local and how is None:
        raise RuleError(
            f"{rule.name} changes how its clients train, so the server must say how they do: give "
            "how=LocalTraining(...), and let the clients be those of pluribus.federated.flower.client_app"
        )


def offered(rule: ServerRule, state: State, client: int) -> Offer:
    """What a rule sends a client."""
    return offer_of(rule, state, client)


def orders(
    rule: ServerRule, state: State, client: int, *, number: int, seed: int, how: LocalTraining | None
) -> dict[str, Any]:
    """What the ConfigRecord for a client says. The seed is the one of `pluribus.federated.simulation`."""
    told: dict[str, Any] = {
        "rule": rule.name if isinstance(rule, Server) else "",
        "client": client,
        "round": number,
        "seed": derived(seed, "simulation.training", number, client),
    }
    if how is not None:
        told["how"] = json.dumps(asdict(local_of(rule, state, client, how)))
    if isinstance(rule, Server) and rule.needs:
        told["needs"] = sorted(rule.needs)
    return told


def with_records(message: Any, more: Mapping[str, Any]) -> Any:
    """A message that has not been sent yet, with other records."""
    content = flwr.RecordDict({**message.content, **more})
    return flwr.Message(content, message_type=message.metadata.message_type, dst_node_id=message.metadata.dst_node_id)


# --- trees of arrays in records -------------------------------------------------------------------------------------


def packed(tree: Mapping[str, Any]) -> Any:
    """An ArrayRecord of a tree; names are the leaves' paths as JSON."""
    return record_of({json.dumps(path): value for path, value in leaves(tree)})


def unpacked(record: Any, label: str) -> dict[str, Any]:
    """The tree of a record that `packed` made.

    Raises
    ------
    ContributionError
        Names that are no paths, or arrays that cannot be read; ``label`` is whose they are.
    """
    tree: dict[str, Any] = {}
    for name, value in tree_of(record, label).items():
        *branch, leaf = _path(name, label)
        at = tree
        for key in branch:
            at = at.setdefault(key, {})
            if not isinstance(at, dict):
                raise ContributionError(f"{label}: {name[:200]!r} goes on where another tensor ends")
        if leaf in at:
            raise ContributionError(f"{label}: {name[:200]!r} is there twice")
        at[leaf] = value
    return tree


def _path(name: str, label: str) -> list[str]:
    try:
        path = json.loads(name)
    except (ValueError, RecursionError):
        path = None
    if not (isinstance(path, list) and 0 < len(path) <= _DEEPEST and all(isinstance(key, str) for key in path)):
        raise ContributionError(f"{label}: {name[:200]!r} is no path of a tensor; expected a JSON list of names")
    return path


def unlike_others(messages: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Nodes of whose messages some tensor has another shape or kind of number than most nodes sent under that name.

    What a method's message must look like only the method knows, and clients of one method may have different parts to
    play; so the clients are compared tensor by tensor. Of as many, the one of the lowest id is right.
    """
    looks: dict[tuple[str, ...], dict[int, tuple[Any, ...]]] = {}
    for node in sorted(messages):
        for path, value in leaves(messages[node]):
            looks.setdefault(path, {})[node] = (value.shape, value.dtype.kind)
    return sorted({node for found in looks.values() for node in _odd(found)})


def unlike_most(messages: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Nodes whose messages hold tensors of other names than those of most."""
    return _odd({node: tuple(sorted(path for path, _ in leaves(messages[node]))) for node in sorted(messages)})


def _odd(looks: Mapping[int, Any]) -> list[int]:
    """Nodes that do not look like most."""
    most = Counter(looks.values()).most_common(1)[0][0] if looks else None  # the first of equals
    return [node for node, look in looks.items() if look != most]
