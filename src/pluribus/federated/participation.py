"""Who takes part in a round: everyone, each client with its own probability, groups in turn, a few drawn, a chain.

A participation is a pure function of the round and the seed, so a resumed run sees the rounds that an
unbroken one saw. A round may have nobody in it (``bernoulli`` with small probabilities): ``participants``
then returns an empty array, and whoever runs the rounds must leave the model as it is and go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.federated import options
from pluribus.federated.errors import SettingError
from pluribus.federated.seeding import generator
from pluribus.federated.world import availability

KINDS = ("all", "bernoulli", "labels", "cyclic", "sample", "markov", "trace")
FORMS = "all, bernoulli:0.3, labels:0.1, cyclic:4, sample:10, markov:0.5:0.9, markov:0.2..0.9:0..0.9 or trace:FILE"


class Participation(Protocol):
    """Which of ``clients`` clients take part in a round, and how often each does in the long run."""

    @property
    def clients(self) -> int:
        """Number of clients."""
        ...

    @property
    def rates(self) -> NDArray[np.float64]:
        """Each client's long-run share of the rounds, shape ``(clients,)``, each in (0, 1]."""
        ...

    def participants(self, round: int, seed: int) -> NDArray[np.int64]:
        """Positions of the clients in this round (counted from 0), ascending, possibly none."""
        ...


@runtime_checkable
class Timed(Protocol):
    """A participation that, if ``timed``, is asked by the clock and not by the round."""

    @property
    def timed(self) -> bool:
        """Whether it is."""
        ...

    def at(self, when: float) -> NDArray[np.int64]:
        """As `Participation.participants`, at a second of the simulated clock."""
        ...


def there(participation: Participation, round: int, seed: int, time: float) -> NDArray[np.int64]:
    """Who takes part in a round that begins at this time."""
    if isinstance(participation, Timed) and participation.timed:
        return participation.at(time)
    return participation.participants(round, seed)


@dataclass(frozen=True)
class Everyone:
    """All clients, every round."""

    clients: int

    @property
    def rates(self) -> NDArray[np.float64]:
        """Ones."""
        return np.ones(self.clients)

    def participants(self, round: int, seed: int) -> NDArray[np.int64]:
        """All positions."""
        del round, seed
        return np.arange(self.clients)


@dataclass(frozen=True)
class Bernoulli:
    """Each client takes part with its own probability, independently of others and of other rounds."""

    probabilities: tuple[float, ...]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.probabilities)

    @property
    def rates(self) -> NDArray[np.float64]:
        """The probabilities."""
        return np.array(self.probabilities)

    def participants(self, round: int, seed: int) -> NDArray[np.int64]:
        """Clients whose uniform number of this round lies below their probability."""
        draws = generator(seed, "participation.bernoulli", round).random(self.clients)
        return np.flatnonzero(draws < self.rates)


@dataclass(frozen=True)
class Cyclic:
    """Group ``round mod len(groups)`` takes part: a fixed rhythm, as of time zones."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return sum(map(len, self.groups))

    @property
    def rates(self) -> NDArray[np.float64]:
        """One over the number of groups, for each client."""
        return np.full(self.clients, 1 / len(self.groups))

    def participants(self, round: int, seed: int) -> NDArray[np.int64]:
        """The group whose turn it is."""
        del seed
        return np.array(sorted(self.groups[round % len(self.groups)]), dtype=np.int64)


def everyone(clients: int) -> Everyone:
    """All clients, every round."""
    return Everyone(_count(clients, "clients"))


def bernoulli(probabilities: ArrayLike, clients: int | None = None) -> Bernoulli:
    """Independent participation; ``probabilities`` is one number a client, or one for all ``clients``.

    Every probability lies in (0, 1]: a client that can never come belongs in no federation.
    """
    values = np.asarray(probabilities, dtype=np.float64)
    if values.ndim == 0:
        if clients is None:
            raise SettingError("one probability for all: say for how many clients, bernoulli(p, clients=n)")
        values = np.full(_count(clients, "clients"), values)
    if values.ndim != 1 or values.size == 0 or (clients is not None and len(values) != clients):
        raise SettingError(f"probabilities have shape {values.shape}; expected one number a client, (clients,)")
    bad = np.flatnonzero(~((values > 0) & (values <= 1)))
    if bad.size:
        raise SettingError(f"client {bad[0]} takes part with probability {values[bad[0]]}; expected (0, 1]")
    return Bernoulli(tuple(values.tolist()))


def tied_to_labels(
    counts: ArrayLike, seed: int, *, mean: float = 0.1, minimum: float = 0.02, alpha: float = 0.1
) -> Bernoulli:
    """Bernoulli participation whose probabilities follow the clients' labels.

    One ``q ~ Dirichlet(alpha, ..., alpha)`` over the C classes says which classes' owners come often;
    client i with shares ``h_i`` of the classes comes with ``p_i = mean * C * <h_i, q>``, put into
    ``[minimum, 1]``. If classes are even over the clients, the ``p_i`` average ``mean`` before they are put
    into that range. ``counts`` is clients x classes, as in ``Partition.counts``.

    Wang and Ji 2024 (FedAU). Compared with IBM/fedau util/util.py data_participation_each_node: the same,
    which has no upper end (there a probability above 1 means always).
    """
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or table.size == 0 or not (table.sum(axis=1) > 0).all():
        raise SettingError(f"counts have shape {table.shape}; expected clients x classes, no client without samples")
    if not (0 < minimum <= mean <= 1):
        raise SettingError(f"mean={mean} and minimum={minimum}: expected 0 < minimum <= mean <= 1")
    if not (np.isfinite(alpha) and alpha > 0):
        raise SettingError(f"alpha is {alpha}; expected a finite number > 0")
    classes = table.shape[1]
    often = generator(seed, "participation.labels").dirichlet(np.full(classes, alpha))
    shares = table / table.sum(axis=1, keepdims=True)
    return bernoulli(np.clip(mean * classes * (shares @ often), minimum, 1.0))


def cyclic(clients: int, groups: int | Sequence[Sequence[int]], seed: int = 0) -> Cyclic:
    """Groups in turn: ``groups`` random groups of equal size (``seed`` deals them), or the groups themselves.

    Groups that are given must hold each of ``0..clients-1`` exactly once; one may be empty, which makes an
    empty round.
    """
    n = _count(clients, "clients")
    if isinstance(groups, (int, np.integer)):
        if not 1 <= groups <= n:
            raise SettingError(f"{groups} groups of {n} clients; expected between 1 and {n}")
        order = generator(seed, "participation.cyclic").permutation(n)
        return Cyclic(tuple(tuple(sorted(part.tolist())) for part in np.array_split(order, int(groups))))
    members = sorted(int(i) for group in groups for i in group)
    if members != list(range(n)):
        raise SettingError(f"groups must hold each of the {n} clients 0..{n - 1} exactly once; got {members}")
    return Cyclic(tuple(tuple(int(i) for i in group) for group in groups))


def parse(text: str, counts: ArrayLike, seed: int, folder: Path | None = None) -> Participation:
    """The participation that a text names, for clients with these class counts (clients x classes).

    ``all``; ``bernoulli:P``, everyone with probability P; ``labels:MEAN``, tied to labels; ``cyclic:G``;
    ``sample:K``, K clients drawn anew in each round; ``markov:RATE:CORRELATION``, chains (either may be ``LOW..HIGH``,
    from which the seed draws each client's); ``trace:FILE``, a CSV file (a relative FILE starts at ``folder``).
    """
    kind, colon, number = text.strip().partition(":")
    clients = len(np.asarray(counts))
    if kind == "markov" and colon:
        return availability.parse_markov(number, clients, seed)
    if kind == "trace" and number:
        return availability.read_trace(number, clients, folder)
    try:
        value = float(number) if colon else None
    except ValueError:
        raise SettingError(f"{text!r}: {number!r} is no number; expected {FORMS}") from None
    if kind in ("all", "everyone") and value is None:
        return everyone(clients)
    if kind == "bernoulli" and value is not None:
        return bernoulli(value, clients)
    if kind == "labels":
        mean = 0.1 if value is None else value
        return tied_to_labels(counts, seed, mean=mean, minimum=min(0.02, mean))
    if kind == "cyclic" and value is not None and value.is_integer():
        return cyclic(clients, int(value), seed)
    if kind == "sample" and value is not None and value.is_integer():
        return availability.Sample(clients, int(value))
    hint = options.did_you_mean(kind, KINDS) if kind not in KINDS else ""
    raise SettingError(f"no participation is called {text!r}; expected {FORMS}{hint}")


def _count(value: int, name: str) -> int:
    if not isinstance(value, (int, np.integer)) or value < 1:
        raise SettingError(f"{name} is {value!r}; expected a whole number >= 1")
    return int(value)
