"""What dishonest clients send: attacks on the updates, and one on the data.

An update is the tree of changes ``w_client - w_server``. Integer tensors (counters) are left as the
attacker's own training made them. Attackers know the honest updates of their round and collude.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pluribus.federated.data import Dataset, flip_labels
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Array, Tree
from pluribus.federated.options import did_you_mean
from pluribus.federated.seeding import generator

Trees = Sequence[Tree]


def sign_flip(own: Trees, scale: float = 1.0) -> list[Tree]:
    """Each attacker sends ``-scale`` times its own update.

    Li et al. 2019 (RSA). With scale 1 as epfml/byzantine-robust-noniid-optimizer bitflipping.py does.
    """
    return [_mapped(tree, lambda value: -scale * value) for tree in own]


def alie(honest: Trees, own: Trees, z: float | None = None) -> list[Tree]:
    """A little is enough: all attackers send ``mean - z std`` of the honest updates, in each coordinate.

    The deviation has ``ddof = 1`` and is 0 for a single honest client; without honest clients in the round
    the attackers' own updates stand for them. ``z`` defaults to ``alie_z_max`` of the round's clients.

    Baruch et al. 2019. Compared with alittle.py of epfml/byzantine-robust-noniid-optimizer: the same
    statistics and z; the paper's own code takes them from the attackers' updates, with ``ddof = 0``.
    """
    if z is None:
        z = alie_z_max(len(honest) + len(own), len(own))
    sample = honest if len(honest) else own
    mean = _mean(sample)
    sent = {name: _less_deviation(name, value, sample, z) for name, value in mean.items()}
    return _sent_by_all(sent, own)


def alie_z_max(n: int, f: int) -> float:
    """ALIE's shift: ``Phi^-1((n - f - s) / (n - f))``, with ``s = floor(n / 2 + 1) - f`` honest supporters.

    ``n`` counts all clients and ``f`` the attackers among them; n = 50, f = 24 gives 1.43, as in the paper.
    It is below zero when few attackers need many supporters (n = 4, f = 1). Attackers that are a majority
    on their own need none, for which the formula has no finite value: one supporter is counted then.
    """
    if not 0 < f <= n:
        raise SettingError(f"ALIE needs 0 < f <= n; got {f} attackers among {n} clients")
    others = n - f
    supporters = max(math.floor(n / 2 + 1) - f, 1)
    if others <= supporters:
        return 0.0
    return NormalDist().inv_cdf((others - supporters) / others)


def ipm(honest: Trees, own: Trees, eps: float = 0.5) -> list[Tree]:
    """Inner product manipulation: all attackers send ``-eps`` times the mean of the honest updates.

    Small ``eps`` hides among the honest, ``eps > (n - f) / f`` turns the plain mean around. Without honest
    clients in the round the attackers' own updates stand for them.

    Xie et al. 2020 (Fall of Empires). As epfml/byzantine-robust-noniid-optimizer xie.py.
    """
    mean = _mean(honest if len(honest) else own)
    return _sent_by_all({name: -eps * value for name, value in mean.items()}, own)


def gaussian(own: Trees, sigma: float, rng: np.random.Generator) -> list[Tree]:
    """Each attacker sends independent noise N(0, sigma^2) in every coordinate (Blanchard et al. 2017)."""
    return [_mapped(tree, lambda value: sigma * rng.standard_normal(value.shape)) for tree in own]


def nan(own: Trees) -> list[Tree]:
    """Each attacker sends NaN everywhere, as a client whose training diverged does."""
    return [_mapped(tree, lambda value: np.full(value.shape, np.nan)) for tree in own]


@dataclass(frozen=True)
class Kind:
    """An attack's default strength, what that number is (empty: it takes none), and what is sent."""

    strength: float | None
    meaning: str
    make: Callable[[Trees, Trees, float | None, np.random.Generator], list[Tree]]


KINDS: dict[str, Kind] = {
    "sign_flip": Kind(1.0, "scale", lambda honest, own, s, rng: sign_flip(own, s or 0.0)),
    "alie": Kind(None, "z", lambda honest, own, s, rng: alie(honest, own, s)),
    "ipm": Kind(0.5, "eps", lambda honest, own, s, rng: ipm(honest, own, s or 0.0)),
    "gaussian": Kind(1.0, "sigma", lambda honest, own, s, rng: gaussian(own, s or 0.0, rng)),
    "label_flip": Kind(None, "", lambda honest, own, s, rng: list(own)),
    "nan": Kind(None, "", lambda honest, own, s, rng: nan(own)),
}
EXAMPLES = "sign_flip:4, alie:4, ipm:4:0.5, gaussian:4:1.0, label_flip:4 or nan:1"


@dataclass(frozen=True)
class Attack:
    """``count`` clients that attack in one way: ``Attack("ipm", 4, 0.5)``.

    ``strength`` is the scale of ``sign_flip`` (default 1), ``z`` of ``alie`` (default: from the round's
    numbers of clients), ``eps`` of ``ipm`` (0.5), ``sigma`` of ``gaussian`` (1); the others take none.
    """

    kind: str
    count: int
    strength: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingError(
                f"no attack is called {self.kind!r}; there are {', '.join(KINDS)}{did_you_mean(self.kind, KINDS)}"
            )
        if not isinstance(self.count, (int, np.integer)) or self.count < 0:
            raise SettingError(f"{self.kind}: {self.count!r} attackers; expected a whole number >= 0")
        if self.strength is None:
            object.__setattr__(self, "strength", KINDS[self.kind].strength)
        elif not KINDS[self.kind].meaning:
            raise SettingError(f"{self.kind} takes a number of attackers and nothing else; got {self.strength!r}")
        elif not np.isfinite(self.strength):
            raise SettingError(f"{self.kind}: {KINDS[self.kind].meaning} is {self.strength!r}; expected a number")

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}" + (f":{self.strength:g}" if self.strength is not None else "")

    def attackers(self, clients: int, seed: int) -> NDArray[np.int64]:
        """Who attacks, ascending: the first ``count`` of a permutation of the clients that the seed fixes.

        So with the same seed 3 attackers are among the 4 that there would be, whatever the kind of attack.
        """
        if self.count > clients:
            raise SettingError(f"{self}: {self.count} attackers among {clients} clients; there are not so many")
        return np.sort(generator(seed, "attack.who").permutation(clients)[: self.count])

    def poison_data(self, dataset: Dataset) -> Dataset:
        """What an attacker trains on: under ``label_flip`` labels ``n_classes - 1 - y``, else as it is."""
        if self.kind != "label_flip":
            return dataset
        return dataset.with_labels(flip_labels(dataset.y, dataset.n_classes))

    def poison_updates(self, honest: Trees, own: Trees, seed: int, round: int) -> list[Tree]:
        """What this round's attackers send.

        ``honest`` are the updates of the round's honest clients, ``own`` what the attackers' training gave
        them, in the order of the clients; the result has one tree for each of ``own``. Nothing is modified.
        """
        if not own:
            return []
        return KINDS[self.kind].make(honest, own, self.strength, generator(seed, "attack.noise", round))


def parse(text: str) -> Attack | None:
    """The attack that a text names, ``KIND:COUNT`` or ``KIND:COUNT:STRENGTH``; ``none`` is no attack."""
    if text.strip().lower() in ("none", ""):
        return None
    kind, *numbers = text.strip().split(":")
    if kind in KINDS and not 1 <= len(numbers) <= 2:
        raise SettingError(f"{text!r}: say how many clients attack, and how hard if you like; e.g. {EXAMPLES}")
    try:
        return Attack(kind, int(numbers[0]) if numbers else 0, float(numbers[1]) if len(numbers) > 1 else None)
    except SettingError:
        raise
    except ValueError:
        raise SettingError(f"{text!r} holds something that is no number; expected e.g. {EXAMPLES}") from None


def _mapped(tree: Tree, change: Callable[[Array], Array]) -> Tree:
    return {name: change(value).astype(value.dtype) if _real(value) else value.copy() for name, value in tree.items()}


def _mean(trees: Trees) -> dict[str, NDArray[np.float64]]:
    """Mean of each real tensor in float64, one tree at a time."""
    return {
        name: sum((np.asarray(tree[name], dtype=np.float64) for tree in trees), start=np.zeros(value.shape))
        / len(trees)
        for name, value in trees[0].items()
        if _real(value)
    }


def _less_deviation(name: str, mean: NDArray[np.float64], sample: Trees, z: float) -> NDArray[np.float64]:
    if len(sample) < 2:
        return mean
    squares = np.zeros_like(mean)
    for tree in sample:
        squares += np.square(tree[name] - mean)
    result: NDArray[np.float64] = mean - z * np.sqrt(squares / (len(sample) - 1))
    return result


def _sent_by_all(real: dict[str, NDArray[np.float64]], own: Trees) -> list[Tree]:
    """The same real tensors from each attacker, in its own dtypes; its own integer tensors."""
    return [
        {name: real[name].astype(value.dtype) if name in real else value.copy() for name, value in tree.items()}
        for tree in own
    ]


def _real(value: Array) -> bool:
    return value.dtype.kind == "f"
