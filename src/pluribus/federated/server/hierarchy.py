"""A tree of aggregators as one server rule: a rule at each gateway, and one above them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive, whole_number
from pluribus.federated.clients.base import Plain
from pluribus.federated.server.base import Array, Round, State, Tree
from pluribus.federated.server.rule import Server, Step, register
from pluribus.federated.topology.orbits import Orbit

UNSEEN = -1


@register
@dataclass(frozen=True)
class Hierarchy(Server):
    """``outer(inner(group 1), ..., inner(group G))``: clients to gateways to a cloud, each with a rule of its own.

    A gateway runs its inner rule on its clients, from the cloud's model; what it moved by, with the samples of those
    that it heard, goes to the outer rule as one participant's update. So with FedAvg on both levels, which is the
    default, the result is the flat FedAvg for any grouping; ``inner=median`` is robust inside and a mean outside, and
    ``outer=fedadam`` has a momentum at the cloud alone. A gateway that hears nobody, or too few for its rule, takes no
    part. Integer counters are rounded on each level. Rules keep their states, one for each gateway: memory is that of
    G inner rules and an outer one, and the gateways' results, G models.

    *More levels.* Rules are written with parentheses, since a colon ends an option: ``trimmed_mean(f=1)``,
    ``nnm(f=1)|median`` for a chain, and ``tree(groups=2,inner=median)`` for a tree within the tree.

    *Groups.* Client i of N belongs to group ``floor(i G / N)``. With a ``period`` groups turn: clients are satellites,
    groups the gateways that see them longest in the round (`pluribus.federated.topology.Orbit`, with ``arc``), and
    under ``contact`` a client's samples count times the share of the round that it is in contact. In a group that turns
    an inner rule's memory of clients (N of them) is of those that were there.

    Sources: LIFL (#65) merges partial sums in a tree of functions; `pluribus.federated.topology.tree_mean` does so for
    any shape. SemSpaceFL (#372) weighs satellites by trajectory and association; both from the abstracts and general
    knowledge. Its learned encoder is not built: compression is the world's ``channel``. On digits contact weights need
    fewer rounds where short contacts are noisy, and are within the spread where they only bring fewer coordinates.

    Parameters
    ----------
    groups
        G, or fewer if there are fewer clients.
    inner, outer
        Server rules as texts. They must leave the clients' work as it is: a rule whose clients send more than their
        update (SCAFFOLD), or get models of their own, is refused.
    period
        Rounds of one turn of the constellation; 0: groups stay.
    arc
        What a gateway sees, in turns; 0: 1 / G.
    contact
        Whether contact counts in the weights; needs a period.
    """

    groups: int = 2
    inner: str = "fedavg"
    outer: str = "fedavg"
    period: float = 0.0
    arc: float = 0.0
    contact: bool = False

    key = "tree"
    formula = "outer(inner(deltas of group 1), ..., inner(deltas of group G)); fedavg over fedavg: flat FedAvg"
    source = "Qi et al., LIFL, MLSys 2024 (tree of aggregators); SemSpaceFL, 2025 (contact-time weights)"
    explanation = "Gateways combine their own clients by one rule, and the server combines the gateways by another."
    numbers = (65, 372)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("Hierarchy", "groups", self.groups, 1)
        positive("Hierarchy", "period", self.period, zero=True)
        positive("Hierarchy", "arc", self.arc, zero=True)
        if 0 < self.period < 1 or self.arc > 1:
            raise RuleError("Hierarchy: a period is at least 1 round (or 0: groups stay), and an arc at most 1 turn")
        if not isinstance(self.contact, bool) or (self.contact and not self.period):
            raise RuleError("Hierarchy: contact is true or false, and contact=true needs a period, in rounds")
        for name in ("inner", "outer"):
            if not isinstance(getattr(self, name), str):
                raise RuleError(f"Hierarchy: {name} is a rule's text such as 'trimmed_mean(f=1)'")
        for name in ("inner", "outer"):
            rule = self._rules[name]
            cls = type(rule)
            busy = not isinstance(rule.client, Plain) or cls.offer is not Server.offer or cls.local is not Server.local
            if rule.personal_models or busy or cls.model_of is not Server.model_of:
                raise RuleError(
                    f"Hierarchy: {name}={getattr(self, name)} changes what clients do or get, which a tree cannot pass "
                    "on; take a rule that works on updates alone, such as fedavg, fedadam, median or multi_krum"
                )

    @cached_property
    def _rules(self) -> dict[str, Server]:
        from pluribus.federated.server.parsing import parse

        return {name: parse(unwrapped(getattr(self, name))) for name in ("inner", "outer")}

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the two rules need."""
        return self._rules["inner"].needs | self._rules["outer"].needs

    def remember(self, params: Tree, n_clients: int) -> State:
        """``inner.G.*``: each gateway's state; ``outer.*``: the cloud's; ``group``: each client's gateway, (N,)."""
        count = min(self.groups, n_clients)
        wide, group = _wide(params), self.groups_of(n_clients, 0)[0]
        memory = _packed("outer", self._rules["outer"].init(params, count)) | {"group": group}
        for g in range(count):
            size = n_clients if self.period else int((group == g).sum())
            memory |= _packed(f"inner.{g}", self._rules["inner"].init(wide, size))
        return memory

    def groups_of(self, n_clients: int, number: int) -> tuple[Array, Array]:
        """Each client's group in a round, (N,), -1 for none, and the share of the round that it counts for, (N,)."""
        count = min(self.groups, n_clients)
        if not self.period:
            return np.arange(n_clients) * count // n_clients, np.ones(n_clients)
        orbit = Orbit(n_clients, count, self.period, self.arc or None)
        group, contact = orbit.association(number), orbit.contact(number).max(axis=1)
        return group, contact if self.contact else (group != UNSEEN).astype(np.float64)

    def advance(self, state: State, round: Round) -> Step:
        """The gateways' steps, then the cloud's."""
        group, counts = self.groups_of(round.n_clients, round.number)
        params, wide = state["params"], _wide(state["params"])
        memory: State = {"group": group}
        count = min(self.groups, round.n_clients)
        heard: list[tuple[int, Round, State]] = []
        within = np.full(len(round.clients), np.nan)
        for g in range(count):
            members = np.arange(round.n_clients) if self.period else np.flatnonzero(group == g)
            here = [k for k, client in enumerate(round.clients) if group[client] == g]
            part = _part(round, here, members, counts)
            after = self._rules["inner"].step(_unpacked(state, f"inner.{g}", wide), part)
            memory |= _packed(f"inner.{g}", after)
            if int(after["status"]) == 0:
                heard.append((g, part, after))
                within[here] = after["weights"][list(part.clients)]
        outer = self._rules["outer"].step(_unpacked(state, "outer", params), _above(round, wide, heard, count))
        above = np.array([outer["weights"][group[client]] for client in round.clients]).reshape(-1)
        return Step(outer["params"], within * above, memory | _packed("outer", outer))

    def idle(self, state: State, round: Round) -> State:
        """Every rule hears that nobody came."""
        return self.advance(state, round.take([])).memory


def unwrapped(text: str) -> str:
    """``a(x=1,y=2)|b`` as `parse` reads it, ``a:x=1:y=2+b``; what is within further parentheses stays as it is."""
    depth, made = 0, []
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            break
        opens, closes = sign == "(" and depth == 1, sign == ")" and depth == 0
        if opens or (sign == "," and depth == 1):
            made.append(":")
        elif not closes:
            made.append("+" if sign == "|" and depth == 0 else sign)
    if depth:
        raise RuleError(f"{text!r}: parentheses do not match; write for example trimmed_mean(f=1)|median")
    return "".join(made).rstrip(":")


def _wide(params: Tree) -> Tree:
    """The model in float64, so that what a gateway moved by is not rounded before the cloud sees it."""
    return {name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in params.items()}


def _packed(name: str, state: State) -> State:
    """A rule's state without its model, under names of their own: a state's trees have no trees within."""
    return {f"{name}.{key}": value for key, value in state.items() if key != "params"}


def _unpacked(state: State, name: str, params: Tree) -> State:
    inside = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
    return {**inside, "params": params}


def _part(round: Round, here: list[int], members: Array, counts: Array) -> Round:
    """The round as a gateway sees it: its clients by their places among its members, sizes times contact."""
    place = {int(client): k for k, client in enumerate(members)}
    part = round.take(here)
    validate = round.validate
    return replace(
        part,
        clients=tuple(place[client] for client in part.clients),
        sizes=part.sizes * counts[list(part.clients)],
        n_clients=len(members),
        total_size=round.total_size * len(members) / round.n_clients,
        rates=None if round.rates is None else round.rates[members],
        validate=None if validate is None else lambda k, params: validate(int(members[k]), params),
    )


def _above(round: Round, wide: Tree, heard: list[tuple[int, Round, State]], count: int) -> Round:
    """The round as the cloud sees it: gateways as participants."""
    masks = {name for name, value in wide.items() if value.dtype.kind == "b"}

    def gathered(name: str, combine: Callable[[Any], Any]) -> Array | None:
        return None if getattr(round, name) is None else np.array([combine(part) for _, part, _ in heard])

    return replace(
        round,
        clients=tuple(g for g, _, _ in heard),
        updates=[
            {name: after["params"][name] - value for name, value in wide.items() if name not in masks}
            for _, _, after in heard
        ],
        sizes=np.array([part.sizes.sum() for _, part, _ in heard]),
        n_clients=count,
        label_counts=gathered("label_counts", lambda part: part.label_counts.sum(axis=0)),
        starts=None,
        steps=gathered("steps", lambda part: np.mean(part.steps)),
        losses=gathered("losses", lambda part: np.average(part.losses, weights=part.sizes)),
        staleness=None,
        messages=None,
        rates=None,
        validate=None,
    )
