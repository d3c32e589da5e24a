"""Clients that come and go: as a Markov chain says, as a file says, or a few drawn anew each round.

All are participations (`pluribus.federated.participation.Participation`), so pure functions of the round and the seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.federated import options
from pluribus.federated.errors import SettingError
from pluribus.federated.seeding import generator
from pluribus.federated.world import tables

FORWARD = 64  # rounds that are followed from the last one known before the search goes backward instead


@dataclass(frozen=True)
class Sample:
    """``size`` of the clients in each round, each set of so many equally likely."""

    clients: int
    size: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.clients:
            raise SettingError(f"sample:{self.size} of {self.clients} clients; expected from 1 to {self.clients}")

    def __str__(self) -> str:
        return f"sample:{self.size}"

    @property
    def rates(self) -> NDArray[np.float64]:
        """``size / clients`` for each."""
        return np.full(self.clients, self.size / self.clients)

    def participants(self, round: int, seed: int) -> NDArray[np.int64]:
        """This round's draw, without replacement."""
        rng = generator(seed, "participation.sample", round)
        return np.sort(rng.permutation(self.clients)[: self.size])


@dataclass(frozen=True)
class Markov:
    """Each client is a chain of two states, there and away, independent of the other clients.

    With the long-run rate ``pi`` and the second eigenvalue ``lam`` of its transitions a client that was there in the
    last round is there with probability ``pi + lam (1 - pi)``, and one that was away with ``pi (1 - lam)``. So the
    correlation of being there in two rounds that lie k apart is ``lam ** k``; 0 is Bernoulli. It starts in its
    stationary state.

    Client availability of Rodio et al. 2023 (CA-Fed). Compared with the transition probabilities of the authors'
    ActivitySimulator: the same.
    """

    stationary: tuple[float, ...]
    eigenvalues: tuple[float, ...]
    text: str = field(default="", compare=False)
    # The last state that was asked for: (seed, round, state). It saves time and never changes an answer.
    _known: list[tuple[int, int, NDArray[np.bool_]]] = field(default_factory=list, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text or f"markov of {self.clients} clients"

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.stationary)

    @property
    def rates(self) -> NDArray[np.float64]:
        """The stationary probabilities ``pi``."""
        return np.array(self.stationary)

    @property
    def correlations(self) -> NDArray[np.float64]:
        """The second eigenvalues ``lam``, (clients,)."""
        return np.array(self.eigenvalues)

    @cached_property
    def _odds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Probability of being there after having been there, and after having been away."""
        pi, lam = self.rates, self.correlations
        return pi + lam * (1 - pi), pi * (1 - lam)

    def participants(self, round: int, seed: int) -> NDArray[np.int64]:
        """Clients that are there."""
        return np.flatnonzero(self.present(round, seed))

    def present(self, round: int, seed: int) -> NDArray[np.bool_]:
        """Whether each client is there, (clients,)."""
        known = self._known[0] if self._known else None
        if known and known[0] == seed and 0 <= round - known[1] <= FORWARD:
            state = known[2]
            for number in range(known[1] + 1, round + 1):
                state = self._next(state, number, seed)
        else:
            state = self._found(round, seed)
        self._known[:] = [(seed, round, state)]
        return state.copy()

    def _draws(self, round: int, seed: int) -> NDArray[np.float64]:
        return generator(seed, "participation.markov", round).random(self.clients)

    def _next(self, state: NDArray[np.bool_], round: int, seed: int) -> NDArray[np.bool_]:
        stay, come = self._odds
        after: NDArray[np.bool_] = self._draws(round, seed) < np.where(state, stay, come)
        return after

    def _found(self, round: int, seed: int) -> NDArray[np.bool_]:
        """The state of any round, without walking there from round 0.

        A draw below both probabilities, or above both, decides the state whatever it was before; between them it keeps
        the state if ``lam > 0`` and turns it around if ``lam < 0``. So it is enough to look back to the last round that
        decided, ``1 / (1 - |lam|)`` rounds away on average.
        """
        stay, come = self._odds
        low, high, turns = np.minimum(stay, come), np.maximum(stay, come), stay < come
        state, turned = np.zeros(self.clients, dtype=np.bool_), np.zeros(self.clients, dtype=np.bool_)
        open_ = np.ones(self.clients, dtype=np.bool_)
        for number in range(round, 0, -1):
            draws = self._draws(number, seed)
            decided = open_ & ((draws < low) | (draws >= high))
            state[decided] = (draws < low)[decided] ^ turned[decided]
            open_ &= ~decided
            if not open_.any():
                return state
            turned ^= turns
        state[open_] = ((self._draws(0, seed) < self.rates) ^ turned)[open_]
        return state


@dataclass(frozen=True, eq=False)
class Trace:
    """Who is there as a file says: each line holds from its round (or second) until that of the next.

    After the last line, which holds as long as the one before it, the file starts over. ``digest`` tells whether the
    file holds what it held: it belongs to what a result depends on.
    """

    text: str
    starts: NDArray[np.float64]
    table: NDArray[np.bool_]
    timed: bool = False
    digest: str = ""

    def __str__(self) -> str:
        return f"trace:{self.text}"

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.table.shape[1]

    @property
    def period(self) -> float:
        """Rounds (or seconds) after which the file starts over."""
        last = self.starts[-1] - self.starts[-2] if len(self.starts) > 1 else 1.0
        return float(self.starts[-1] + last)

    @property
    def rates(self) -> NDArray[np.float64]:
        """Share of the period that each client is there."""
        lasting = np.diff(np.append(self.starts, self.period))
        return np.asarray(lasting @ self.table / self.period)

    def at(self, when: float) -> NDArray[np.int64]:
        """Clients that are there at a round, or a second if the file's first column is ``time``."""
        row = int(np.searchsorted(self.starts, when % self.period, side="right")) - 1
        return np.flatnonzero(self.table[row])

    def participants(self, round: int, seed: int) -> NDArray[np.int64]:
        """Clients that are there in a round; where the file has seconds, in second ``round``."""
        del seed
        return self.at(round)


def markov(rates: ArrayLike, correlations: ArrayLike, clients: int | None = None, text: str = "") -> Markov:
    """Chains with these long-run rates in (0, 1] and second eigenvalues; one number stands for all ``clients``.

    An eigenvalue is below 1, where nothing would ever change, and not below ``-min(pi / (1 - pi), (1 - pi) / pi)``,
    where a probability would leave [0, 1].
    """
    pair = [np.asarray(value, dtype=np.float64) for value in (rates, correlations)]
    sizes = {value.size for value in pair if value.ndim} | ({clients} if clients is not None else set())
    if len(sizes) != 1 or max(value.ndim for value in pair) > 1:
        shapes = " and ".join(str(value.shape) for value in pair)
        raise SettingError(f"markov has rates and correlations of shapes {shapes}; expected one number a client each")
    pi, lam = (np.broadcast_to(value, tuple(sizes)) for value in pair)
    if not len(pi):
        raise SettingError("markov has no clients; expected at least one")
    for client, (rate, correlation) in enumerate(zip(pi.tolist(), lam.tolist(), strict=True)):
        if not 0 < rate <= 1:
            raise SettingError(f"client {client} is there at rate {rate}; expected (0, 1]")
        least = -min(rate / (1 - rate), (1 - rate) / rate) if rate < 1 else 0.0
        if not least <= correlation < 1:
            raise SettingError(
                f"client {client} has correlation {correlation}; at rate {rate:g} expected a number in [{least:g}, 1)"
            )
    return Markov(tuple(pi.tolist()), tuple(lam.tolist()), text)


def parse_markov(rest: str, clients: int, seed: int) -> Markov:
    """``RATE:CORRELATION``; each is a number for all clients, or ``LOW..HIGH`` from which the seed draws each's."""
    parts = rest.split(":")
    if len(parts) != 2:
        raise SettingError(f"markov:{rest!s} has {len(parts)} numbers; expected markov:RATE:CORRELATION")
    drawn, told = [], []
    for part, name, counter in zip(parts, ("rate", "correlation"), (0, 1), strict=True):
        ends = [options.number(lambda x: -1 <= x <= 1, "a number")(end, f"markov {name}") for end in part.split("..")]
        if len(ends) > 2 or ends[0] > ends[-1]:
            raise SettingError(f"markov {name} is {part!r}; expected a number, or LOW..HIGH")
        share = generator(seed, "participation.markov.kind", counter).random(clients)
        drawn.append(ends[0] + share * (ends[-1] - ends[0]))
        told.append("..".join(options.brief(end) for end in ends))
    return markov(drawn[0], drawn[1], clients, text=f"markov:{told[0]}:{told[1]}")


def read_trace(text: str, clients: int, folder: Path | None = None) -> Trace:
    """The trace in a CSV file: a column ``round`` or ``time`` that rises from 0, and one of 0 and 1 for each client.

    A relative path starts at ``folder``. The file may know more clients than there are.
    """
    table = tables.read(text, folder)
    first = table.names[0].lower()
    if first not in ("round", "time"):
        raise SettingError(f"{table.path}: the first column is {table.names[0]!r}; expected 'round' or 'time'")
    starts, body = table.values[:, 0], table.values[:, 1:]
    for row, start in enumerate(starts):
        before = starts[row - 1] if row else None
        if (before is None and start != 0) or (before is not None and not before < start < np.inf):
            raise table.refuse(row, table.names[0], "0 in the first line, and more in each that follows")
    owners = tables.clients_of(table.names[1:], table.path)
    places = {int(owner): place for place, owner in enumerate(owners)}
    absent = [client for client in range(clients) if client not in places]
    if absent:
        raise SettingError(f"{table.path}: client {absent[0]} of {clients} has no column")
    chosen = [places[client] for client in range(clients)]
    for row, place in np.argwhere((body != 0) & (body != 1)):
        raise table.refuse(int(row), table.names[place + 1], "0 or 1")
    there = body[:, chosen] == 1
    never = np.flatnonzero(~there.any(axis=0))
    if never.size:
        raise SettingError(f"{table.path}: client {never[0]} is never there; leave it out of the federation")
    return Trace(text, starts, there, first == "time", table.digest)
