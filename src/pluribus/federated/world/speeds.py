"""How long a client is busy with a job: it gets the model, takes its steps, and sends its update.

Every duration is a pure function of the seed, the client and the number of the job, so clients may be asked in any
order and a resumed run sees the seconds that an unbroken one saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pluribus.federated import options
from pluribus.federated.errors import SettingError
from pluribus.federated.seeding import generator
from pluribus.federated.world import tables
from pluribus.federated.world.base import Speeds

FORMS = "even, even:0.5, lognormal:1, lognormal:1:0.2, tiers:1:2:4:8 or trace:speeds.csv"
KINDS = ("even", "lognormal", "tiers", "trace")
LINK_FORMS = "none, 1e6 (bytes a second both ways) or 1e6:8e6 (up:down)"

_positive = options.number(lambda x: x > 0, "a number > 0")
_spread = options.number(lambda x: 0 <= x <= 10, "a number from 0 to 10")


@dataclass(frozen=True)
class Link:
    """Bytes a second from a client to the server (``up``) and back (``down``); infinity takes no time."""

    up: float = math.inf
    down: float = math.inf

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            if not getattr(self, name) > 0:
                raise SettingError(f"link {name} is {getattr(self, name)!r} bytes a second; expected a number > 0")

    def __str__(self) -> str:
        if self.up == self.down:
            return "none" if math.isinf(self.up) else options.brief(self.up)
        return f"{options.brief(self.up)}:{options.brief(self.down)}"

    def seconds(self, up_bytes: float, down_bytes: float) -> float:
        """``up_bytes / up + down_bytes / down``."""
        return up_bytes / self.up + down_bytes / self.down


@dataclass(frozen=True)
class Even:
    """Every client takes ``step`` seconds for a step."""

    step: float = 1.0
    link: Link = field(default=Link())

    def __str__(self) -> str:
        return "even" if self.step == 1 else f"even:{options.brief(self.step)}"

    def seconds(self, client: int, steps: int, up_bytes: float, down_bytes: float, *, job: int, seed: int) -> float:
        """``step steps`` and the link's."""
        del client, job, seed
        return self.step * steps + self.link.seconds(up_bytes, down_bytes)


@dataclass(frozen=True)
class LogNormal:
    """Each client has a factor ``exp(sigma Z)`` for good, and another ``exp(jitter Z')`` for each job.

    ``Z`` and ``Z'`` are N(0, 1), so the median client takes one second for a step. The factors are about computing;
    the link is the same for all.
    """

    sigma: float
    jitter: float = 0.0
    link: Link = field(default=Link())

    def __str__(self) -> str:
        return f"lognormal:{options.brief(self.sigma)}" + (f":{options.brief(self.jitter)}" if self.jitter else "")

    def factor(self, client: int, seed: int) -> float:
        """The client's own seconds for a step, but for jitter."""
        return math.exp(self.sigma * generator(seed, "world.speed.client", client).standard_normal())

    def seconds(self, client: int, steps: int, up_bytes: float, down_bytes: float, *, job: int, seed: int) -> float:
        """``factor jitter steps`` and the link's."""
        chance = generator(seed, "world.speed.job", client, job).standard_normal() if self.jitter else 0.0
        computing = self.factor(client, seed) * math.exp(self.jitter * chance) * steps
        return computing + self.link.seconds(up_bytes, down_bytes)


@dataclass(frozen=True)
class Tiers:
    """Classes of machines: client i takes ``factors[i mod len(factors)]`` seconds for a step."""

    factors: tuple[float, ...]
    link: Link = field(default=Link())

    def __str__(self) -> str:
        return ":".join(["tiers", *map(options.brief, self.factors)])

    def seconds(self, client: int, steps: int, up_bytes: float, down_bytes: float, *, job: int, seed: int) -> float:
        """``factor steps`` and the link's."""
        del job, seed
        return self.factors[client % len(self.factors)] * steps + self.link.seconds(up_bytes, down_bytes)


@dataclass(frozen=True)
class Trace:
    """Seconds for a step of each client as measured, and its own link where the file has one.

    ``digest`` tells whether the file holds what it held: it belongs to what a result depends on.
    """

    text: str
    steps: tuple[float, ...]
    links: tuple[Link, ...]
    digest: str = ""

    def __str__(self) -> str:
        return f"trace:{self.text}"

    def seconds(self, client: int, steps: int, up_bytes: float, down_bytes: float, *, job: int, seed: int) -> float:
        """The file's seconds a step times ``steps``, and the link's."""
        del job, seed
        return self.steps[client] * steps + self.links[client].seconds(up_bytes, down_bytes)


def parse_link(text: str) -> Link:
    """The link that a text names: ``none``, ``BYTES_A_SECOND`` both ways, or ``UP:DOWN``; either may be ``none``."""
    parts = text.strip().lower().split(":")
    if not 1 <= len(parts) <= 2:
        raise SettingError(f"{text!r} is no link; expected {LINK_FORMS}")
    speeds = [math.inf if part in ("none", "inf") else _positive(part, f"link {text!r}") for part in parts]
    return Link(speeds[0], speeds[-1])


def parse(text: str, clients: int, link: Link | str = "none", folder: Path | None = None) -> Speeds:
    """The speeds that a text names, for so many clients.

    ``even[:SECONDS]``; ``lognormal:SIGMA[:JITTER]``; ``tiers:A:B:...``, seconds for a step of the clients in turn;
    ``trace:FILE``, a CSV file with the columns ``client, seconds_per_step`` and perhaps ``up_bytes_per_s,
    down_bytes_per_s``, a line for each client. ``link`` is a `Link` or the text of one; columns of a file go before
    it. A relative FILE starts at ``folder``.
    """
    link = parse_link(link) if isinstance(link, str) else link
    kind, colon, rest = text.strip().partition(":")
    numbers = rest.split(":") if colon else []
    if kind == "even" and len(numbers) <= 1:
        return Even(_positive(numbers[0], text) if numbers else 1.0, link)
    if kind == "lognormal" and 1 <= len(numbers) <= 2:
        return LogNormal(_spread(numbers[0], text), _spread(numbers[1], text) if len(numbers) > 1 else 0.0, link)
    if kind == "tiers" and numbers:
        return Tiers(tuple(_positive(n, text) for n in numbers), link)
    if kind == "trace" and rest:
        return _trace(rest, clients, link, folder)
    raise SettingError(f"no speeds are called {text!r}; expected {FORMS}{options.did_you_mean(kind, KINDS)}")


def _trace(text: str, clients: int, link: Link, folder: Path | None) -> Trace:
    table = tables.read(text, folder)
    known = ("client", "seconds_per_step", "up_bytes_per_s", "down_bytes_per_s")
    missing = [name for name in known[:2] if name not in table.names]
    if missing:
        raise SettingError(f"{table.path}: no column {missing[0]!r}; the columns are {', '.join(table.names)}")
    others = [name for name in table.names if name not in known]
    if others:
        raise SettingError(f"{table.path}: column {others[0]!r} is none of {', '.join(known)}")
    _check_all(table, "seconds_per_step", lambda x: 0 < x < math.inf, "a number > 0")
    for name in table.names:
        if name in known[2:]:
            _check_all(table, name, lambda x: x > 0, "a number > 0, or inf")
    _check_all(table, "client", lambda x: x >= 0 and float(x).is_integer(), "a whole number >= 0")
    row_of: dict[int, int] = {}
    for row, client in enumerate(table.column("client").astype(np.int64).tolist()):
        if client in row_of:
            raise SettingError(f"{table.path}: line {table.lines[row]}: client {client} has two lines")
        row_of[client] = row
    absent = [client for client in range(clients) if client not in row_of]
    if absent:
        raise SettingError(f"{table.path}: client {absent[0]} of {clients} has no line")
    rows = [row_of[client] for client in range(clients)]

    def of_each(name: str, otherwise: float) -> list[float]:
        return [float(table.column(name)[row]) for row in rows] if name in table.names else [otherwise] * clients

    pairs = zip(of_each("up_bytes_per_s", link.up), of_each("down_bytes_per_s", link.down), strict=True)
    return Trace(
        text, tuple(of_each("seconds_per_step", 1.0)), tuple(Link(up, down) for up, down in pairs), table.digest
    )


def _check_all(table: tables.Table, name: str, good: Callable[[float], bool], expected: str) -> None:
    for row, value in enumerate(table.column(name)):
        if not good(float(value)):
            raise table.refuse(row, name, expected)
