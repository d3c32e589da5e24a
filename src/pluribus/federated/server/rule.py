"""The frame of every server rule: admit the participants, step, and keep the state a tree of arrays.

A rule writes `Server.advance` alone. Dropping participants with NaN, an empty round, a round that is too small and a
step that would make the model NaN or Inf are handled here, once, for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from pluribus.core import weights
from pluribus.core.errors import ContributionError, PluribusError, RuleError, listing
from pluribus.core.rule import positive
from pluribus.core.ruletext import default_of
from pluribus.federated.clients.base import ClientMethod, Plain
from pluribus.federated.server.admission import POLICIES, admit, label, not_finite, unlike
from pluribus.federated.server.base import Array, Offer, Round, State, Tree, spread
from pluribus.federated.server.buffers import Policies, checked, measurable, rebased, settled
from pluribus.federated.training import LocalTraining
from pluribus.rules import Mean

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Patterns of the names under which torch's normalisation layers keep what is measured and not trained."""

UNSPOKEN = ("buffers", "policies")
"""Fields of every server rule that the text of one cannot say."""

STATUS = ("stepped", "nobody came", "too few for the rule", "the step would not have been finite")
"""What ``state["status"]`` counts; in all but the first the model stayed as it was."""


def is_buffer(name: str, patterns: Sequence[str]) -> bool:
    """Whether a float tensor of this name is measured and not trained; see `Server.buffers`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Step(NamedTuple):
    """What a rule makes of a round: the new model, what each participant counted for, and the rest of its state."""

    params: Tree
    weights: Array
    memory: State


@dataclass(frozen=True)
class Server(ABC):
    """A server rule: ``init(params, n_clients) -> state``, ``step(state, round) -> state``; see `base`.

    Every state also holds ``dropped``, shape (N,), True for participants that the last round left out because of NaN
    or Inf, and ``status``, an index into `STATUS`.

    Parameters
    ----------
    buffers
        Names (patterns, as in the shell) of float tensors that are measured and not trained, such as the running
        variance of a normalisation layer. Like integer counters they are averaged with weights of sum one and a step
        of one, whatever the rule does to the parameters: so a variance cannot become negative.
    nonfinite
        What becomes of a participant with NaN or Inf: ``"drop"`` it, ``"raise"``, or read its bad numbers as
        ``"zero"``.
    policies
        What becomes of tensors by name, pairs of a pattern and one of ``mean``, ``keep``, ``max``, ``pooled``; see
        `pluribus.federated.server.buffers`. Whatever is not named goes as above.

    Class attributes of a named rule
    --------------------------------
    key
        What the command calls it.
    formula, source, explanation
        The rule in one line, where it was published, and one sentence for a reader of the report.
    numbers
        Its numbers in the catalogue.
    needs
        What a round must tell that costs the clients work of its own: ``"losses"``, ``"validate"``.
    personal_models
        Whether each client ends with a model of its own, `Server.model_of`.
    """

    buffers: tuple[str, ...] = field(default=BUFFERS, kw_only=True)
    nonfinite: str = field(default="drop", kw_only=True)
    policies: Policies = field(default=(), kw_only=True)

    key: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""
    explanation: ClassVar[str] = ""
    numbers: ClassVar[tuple[int, ...]] = ()
    needs: ClassVar[frozenset[str]] = frozenset()
    personal_models: ClassVar[bool] = False

    def __post_init__(self) -> None:
        one_of(self, "nonfinite", POLICIES)
        checked(type(self).__name__, self.policies)
        given: Any = self.buffers
        if not isinstance(given, tuple) or not all(isinstance(pattern, str) for pattern in given):
            raise RuleError(f"{type(self).__name__}: buffers must be a tuple of names or patterns, not {given!r}")

    @property
    def name(self) -> str:
        """Key and the parameters that differ from their defaults: what `parse` reads back."""
        return told(self.key, self, leave_out=UNSPOKEN)

    @property
    def least(self) -> int:
        """Fewest participants with which a step is taken."""
        return 1

    def init(self, params: Tree, n_clients: int) -> State:
        """The state before the first round.

        Raises
        ------
        RuleError
            The rule can never work with so few clients, or with such parameters.
        """
        if n_clients < self.least:
            raise RuleError(
                f"{self.name} needs at least {self.least} participants a round, and there are {n_clients} clients; "
                "take more clients, or a rule that tolerates fewer attackers"
            )
        own = {name: np.array(value) for name, value in params.items()}
        return {
            "params": own,
            "weights": np.full(n_clients, np.nan),
            "dropped": np.zeros(n_clients, dtype=bool),
            "status": np.array(0),
            **self.remember(own, n_clients),
        }

    def step(self, state: State, round: Round) -> State:
        """The state after a round. The given state and round are not changed."""
        if len(state["weights"]) != round.n_clients:
            raise RuleError(f"a state of {len(state['weights'])} clients cannot take a round of {round.n_clients}")
        admitted, dropped = admit(round, state["params"], self.nonfinite)
        status = 1 if not admitted.clients else 2 if len(admitted.clients) < self.least else 0
        if not status:
            floats = [
                name for name, value in state["params"].items() if value.dtype.kind in "fc" and self._is_buffer(name)
            ]
            admitted = rebased(admitted, state["params"], floats)
            step = self._advanced(state, admitted)
            trees = [step.params, *(value for value in step.memory.values() if isinstance(value, dict))]
            status = 3 if any(map(not_finite, trees)) else 0
        after = {**state, "dropped": dropped, "status": np.array(status)}
        if status:
            return {**after, "weights": np.full(round.n_clients, np.nan), **self.idle(state, admitted)}
        params = measurable(settled(step.params, state["params"], admitted, step.weights, self.policies), floats)
        return {**after, **step.memory, "params": params, "weights": spread(step.weights, admitted)}

    # --- the clients' side ------------------------------------------------------------------------------------------

    @property
    def client(self) -> ClientMethod:
        """What the clients of this rule do with a job."""
        return Plain()

    def offer(self, state: State, client: int) -> Offer:
        """What this client is sent: by default the global model and nothing else."""
        return Offer(state["params"], {})

    def local(self, state: State, client: int, how: LocalTraining) -> LocalTraining:
        """How this client is to train now: by default as the federation's settings say."""
        return how

    def model_of(self, state: State, client: int) -> Tree:
        """The model that this client uses: by default the global one."""
        params: Tree = state["params"]
        return params

    def sent(self, round: Round, name: str) -> Round:
        """The round with one part of the clients' messages, a tree, in the place of their updates.

        Raises
        ------
        RuleError
            Some participant sent no such thing: its clients do not use the rule's `client`.
        """
        trees = [message.get(name) for _, message in round.heard()]
        missing = [label(client) for client, tree in zip(round.clients, trees, strict=True) if tree is None]
        if missing:
            raise RuleError(
                f"{self.name} needs {name!r} beside each update, and {listing(missing)} did not send it; let the "
                f"clients train with the rule's own method, `{type(self).__name__}().client`"
            )
        return replace(round, updates=[tree for tree in trees if tree is not None])

    # --- what a rule writes -----------------------------------------------------------------------------------------

    @abstractmethod
    def advance(self, state: State, round: Round) -> Step:
        """A step with the admitted participants, at least ``least`` of them, in the order of their ids."""

    def remember(self, params: Tree, n_clients: int) -> State:
        """What the rule keeps besides the model, before the first round."""
        return {}

    def idle(self, state: State, round: Round) -> State:
        """What changes in a round in which the model stays as it is."""
        return {}

    def parameters(self, params: Mapping[str, Array]) -> list[str]:
        """Names of the trained tensors: floats that are no buffers."""
        return [name for name, value in params.items() if value.dtype.kind in "fc" and not self._is_buffer(name)]

    def real_parameters(self, params: Mapping[str, Array]) -> list[str]:
        """The trained tensors of a rule that has no meaning for complex ones; raises `RuleError` where one is."""
        trained = self.parameters(params)
        bad = [name for name in trained if params[name].dtype.kind == "c"]
        if bad:
            raise RuleError(f"{type(self).__name__} takes real tensors, and {bad[0]!r} is complex; use FedAvg")
        return trained

    def _advanced(self, state: State, round: Round) -> Step:
        """The rule's step. What a message must look like only the rule knows, so it is asked of one that broke it."""
        try:
            return self.advance(state, round)
        except (PluribusError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            told = isinstance(error, PluribusError)
            if (told and "client" in str(error)) or not (odd := unlike(round)):
                raise
            raise ContributionError(
                f"round {round.number}: {self.name} stopped ({error if told else repr(error)}), and the message of "
                f"{listing([label(client) for client in odd])} is unlike the others' in its parts, shapes or kinds of "
                "number; leave it out, or let all clients train with the rule's own method"
            ) from error

    def _is_buffer(self, name: str) -> bool:
        return is_buffer(name, self.buffers)

    def moved(self, params: Tree, change: Mapping[str, Array], scale: float = 1.0) -> Tree:
        """``params + scale * change``, in float64 and rounded once; buffers and counters move by ``change``.

        Tensors that ``change`` lacks stay as they are.
        """
        trained = set(self.parameters(params))
        return {
            name: _sum(value, change[name], scale if name in trained else 1.0) if name in change else value
            for name, value in params.items()
        }


def mean(round: Round, coefficients: Array, names: Sequence[str] | None = None) -> Tree:
    """Mean update of the participants with weights ``coefficients``, shape (k,), normalised to sum one."""
    value: Tree = Mean()(contributions(round, names), coefficients).value
    return value


def contributions(round: Round, names: Sequence[str] | None = None) -> dict[str, Mapping[str, Array]]:
    """The updates by the names that errors use; of the given tensors only, if any are given."""
    return {
        label(client): update if names is None else {name: update[name] for name in names}
        for client, update in zip(round.clients, round.updates, strict=True)
    }


def local_models(round: Round, params: Tree) -> list[Tree]:
    """Each participant's model after its training: what it started from (``params`` if unknown) and its update.

    Tensors that travel as no difference (masks) are taken from the start.
    """
    starts = round.starts if round.starts is not None else [params] * len(round.clients)
    return [
        {name: _sum(value, update[name], 1.0) if name in update else value for name, value in start.items()}
        for start, update in zip(starts, round.updates, strict=True)
    ]


def shares_by(round: Round, weighting: str) -> Array:
    """Shares of the participants, shape (k,), of sum one: by ``"size"``, and else alike."""
    k = len(round.clients)
    return size_shares(round) if weighting == "size" else np.full(k, 1 / k)


def size_shares(round: Round) -> Array:
    """Samples of each participant as shares, shape (k,), of sum one."""
    sizes = weights.check(round.sizes, len(round.clients), [label(i) for i in round.clients])
    return weights.normalise(sizes)


def _sum(value: Array, change: Array, scale: float) -> Array:
    if value.dtype.kind not in "fc":
        return np.asarray(value + change, dtype=value.dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # a step that is not finite is not taken
        wide = np.asarray(value, dtype=np.result_type(value.dtype, np.float64))
        return np.asarray(wide + scale * change, dtype=value.dtype)


# --- parameters and names -------------------------------------------------------------------------------------------


def one_of(rule: Any, name: str, allowed: Sequence[str]) -> None:
    """Raise `RuleError` unless an option of a rule is one of the allowed words."""
    value = getattr(rule, name)
    if value not in allowed:
        raise RuleError(f"{type(rule).__name__}: {name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def fraction(rule: Any, name: str) -> None:
    """Raise `RuleError` unless an option of a rule is a number in [0, 1)."""
    value = getattr(rule, name)
    positive(type(rule).__name__, name, value, zero=True)
    if value >= 1:
        raise RuleError(f"{type(rule).__name__}: {name} must be below 1, not {value!r}")


def portion(rule: Any, name: str) -> None:
    """Raise `RuleError` unless an option of a rule is a number in (0, 1]."""
    value = getattr(rule, name)
    positive(type(rule).__name__, name, value)
    if value > 1:
        raise RuleError(f"{type(rule).__name__}: {name} must be at most 1, not {value!r}")


def told(key: str, rule: Any, leave_out: Sequence[str] = ()) -> str:
    """``key:name=value:...`` with the fields of a rule that differ from their defaults."""
    shown = (f for f in fields(rule) if f.name not in leave_out and getattr(rule, f.name) != default_of(f))
    return ":".join([key, *(f"{f.name}={getattr(rule, f.name)}" for f in shown)])


# --- the registry ---------------------------------------------------------------------------------------------------

_REGISTRY: dict[str, type[Server]] = {}
Named = TypeVar("Named", bound=type[Server])


def register(cls: Named) -> Named:
    """Class decorator: make a server rule known under its ``key``."""
    if not cls.key or cls.key in _REGISTRY:
        raise RuleError(f"{cls.__name__} needs a key of its own, and {cls.key!r} is none")
    _REGISTRY[cls.key] = cls
    return cls


def registered() -> dict[str, type[Server]]:
    """All named server rules, by key."""
    return dict(sorted(_REGISTRY.items()))
