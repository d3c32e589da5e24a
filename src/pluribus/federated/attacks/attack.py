"""An attack as a setting: its text, who attacks, what they train on, and what they send."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluribus.federated import options
from pluribus.federated.attacks import backdoor, distances, little, simple
from pluribus.federated.attacks.copying import mimic
from pluribus.federated.attacks.trees import Trees
from pluribus.federated.data import Dataset, flip_labels
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Tree, real
from pluribus.federated.seeding import generator

Memory = dict[str, Any]
Made = tuple[list[Tree], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Scene:
    """What the attackers of a round know.

    Attributes
    ----------
    honest
        Updates of the round's honest clients.
    own
        What the attackers' own training gave them, in the order of the clients.
    seed, round
        Of the run, for attacks that draw.
    clients
        Whose the honest updates are; None numbers them.
    defence
        What the server's model moves by if the attackers send these updates: the running rule, for attacks that adapt
        to it. None where it is not known.
    params
        The model that the server sent, for attacks that send back what others made of it. None where it is not known.
    """

    honest: Trees
    own: Trees
    seed: int = 0
    round: int = 0
    clients: Sequence[int] | None = None
    defence: little.Defence | None = None
    params: Tree | None = None

    @property
    def rng(self) -> np.random.Generator:
        """This round's noise."""
        return generator(self.seed, "attack.noise", self.round)


@dataclass(frozen=True)
class Kind:
    """A kind of attack.

    Attributes
    ----------
    make
        ``make(scene, strength, variant, memory) -> (updates, memory)``.
    strength, meaning
        The default of its number, and what the number is (empty: it takes none).
    good, expected
        Which numbers make sense, and how messages call them.
    variants
        Words that choose among its forms, the default first.
    data
        What an attacker trains on.
    """

    make: Callable[[Scene, float, str, Mapping[str, Any]], Made]
    strength: float | None = None
    meaning: str = ""
    good: Callable[[float], bool] = field(default=lambda x: True)
    expected: str = "a number"
    variants: tuple[str, ...] = ("",)
    data: Callable[[Dataset], Dataset] = field(default=lambda dataset: dataset)


def _alie(scene: Scene, z: float, variant: str, memory: Mapping[str, Any]) -> Made:
    if variant != "adaptive":
        return little.alie(scene.honest, scene.own, None if np.isnan(z) else z), memory
    if scene.defence is None:
        raise SettingError("alie with adaptive z asks the server's rule, and nobody said what that does")
    return little.alie_adaptive(scene.honest, scene.own, scene.defence)[0], memory


def _mimic(scene: Scene, warmup: float, variant: str, memory: Mapping[str, Any]) -> Made:
    del variant
    clients = scene.clients if scene.clients is not None else range(len(scene.honest))
    return mimic(scene.honest, scene.own, clients, memory, warmup=int(warmup), seed=scene.seed)


def _free_rider(scene: Scene, noise: float, variant: str, memory: Mapping[str, Any]) -> Made:
    if variant != "delta":
        return simple.free_rider(scene.own, noise, scene.rng), memory
    if scene.params is None:
        raise SettingError("free_rider with delta sends the model's last change, and nobody said what the model is")
    before = memory.get("params")
    now = {name: np.array(value) for name, value in scene.params.items() if real(value)}
    change = {name: value - before[name] for name, value in now.items()} if before is not None else None
    return simple.free_rider(scene.own, noise, scene.rng, change), {"params": now}


KINDS: dict[str, Kind] = {
    "sign_flip": Kind(lambda scene, s, v, memory: (simple.sign_flip(scene.own, s), memory), 1.0, "scale"),
    "alie": Kind(_alie, None, "z", variants=("", "adaptive")),
    "ipm": Kind(lambda scene, s, v, memory: (simple.ipm(scene.honest, scene.own, s), memory), 0.5, "eps"),
    "gaussian": Kind(lambda scene, s, v, memory: (simple.gaussian(scene.own, s, scene.rng), memory), 1.0, "sigma"),
    "label_flip": Kind(
        lambda scene, s, v, memory: (list(scene.own), memory),
        data=lambda dataset: dataset.with_labels(flip_labels(dataset.y, dataset.n_classes)),
    ),
    "nan": Kind(lambda scene, s, v, memory: (simple.nan(scene.own), memory)),
    "mimic": Kind(_mimic, 10, "warmup", lambda x: x >= 1 and float(x).is_integer(), "a whole number >= 1"),
    "min_max": Kind(
        lambda scene, s, v, memory: (distances.min_max(scene.honest, scene.own, v), memory),
        variants=distances.DIRECTIONS,
    ),
    "min_sum": Kind(
        lambda scene, s, v, memory: (distances.min_sum(scene.honest, scene.own, v), memory),
        variants=distances.DIRECTIONS,
    ),
    "backdoor": Kind(
        lambda scene, s, v, memory: (backdoor.boosted(scene.own, s), memory), 1.0, "boost", data=backdoor.poisoned
    ),
    "free_rider": Kind(_free_rider, 0.0, "noise", lambda x: x >= 0, "a number >= 0", variants=("", "delta")),
}
EXAMPLES = (
    "sign_flip:4, alie:4, alie:4:adaptive, ipm:4:0.5, gaussian:4:1.0, label_flip:4, nan:1, mimic:4, min_max:4, "
    "min_sum:4:sign, backdoor:4:5 or free_rider:4:delta"
)


@dataclass(frozen=True)
class Attack:
    """``count`` clients that attack in one way: ``Attack("ipm", 4, 0.5)``.

    ``strength`` is the scale of ``sign_flip`` (default 1), ``z`` of ``alie`` (default: from the round's numbers of
    clients), ``eps`` of ``ipm`` (0.5), ``sigma`` of ``gaussian`` (1), the rounds of ``mimic``'s warm-up (10), the boost
    of ``backdoor`` (1) and the noise of ``free_rider`` (0); the others take none.

    ``variant`` is ``"adaptive"`` for an ``alie`` that searches its z against the server's rule, the direction of
    ``min_max`` and ``min_sum`` (``"std"``, ``"unit"``, ``"sign"``), and ``"delta"`` for a ``free_rider`` that sends
    what the model changed by since one of them last got it, instead of nothing.
    """

    kind: str
    count: int
    strength: float | None = None
    variant: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingError(
                f"no attack is called {self.kind!r}; there are {', '.join(KINDS)}"
                f"{options.did_you_mean(self.kind, KINDS)}"
            )
        kind = KINDS[self.kind]
        if not isinstance(self.count, (int, np.integer)) or self.count < 0:
            raise SettingError(f"{self.kind}: {self.count!r} attackers; expected a whole number >= 0")
        if self.variant is None:
            object.__setattr__(self, "variant", kind.variants[0])
        if self.variant not in kind.variants:
            words = ", ".join(filter(None, kind.variants)) or "no word"
            raise SettingError(f"{self.kind}: {self.variant!r} is none of its forms; expected {words}")
        if self.strength is None:
            object.__setattr__(self, "strength", kind.strength)
        elif not kind.meaning:
            takes = " but one of its forms" if len(kind.variants) > 1 else ""
            raise SettingError(
                f"{self.kind} takes a number of attackers and nothing else{takes}; got {self.strength!r}"
            )
        elif not (np.isfinite(self.strength) and kind.good(self.strength)):
            raise SettingError(f"{self.kind}: {kind.meaning} is {self.strength!r}; expected {kind.expected}")
        elif self.variant == "adaptive":
            raise SettingError(f"{self.kind}: adaptive finds {kind.meaning} itself; got {self.strength!r}")

    def __str__(self) -> str:
        number = f":{options.brief(self.strength)}" if self.strength is not None else ""
        word = f":{self.variant}" if self.variant != KINDS[self.kind].variants[0] else ""
        return f"{self.kind}:{self.count}{number}{word}"

    def attackers(self, clients: int, seed: int) -> NDArray[np.int64]:
        """Who attacks, ascending: the first ``count`` of a permutation of the clients that the seed fixes.

        So with the same seed 3 attackers are among the 4 that there would be, whatever the kind of attack.
        """
        if self.count > clients:
            raise SettingError(f"{self}: {self.count} attackers among {clients} clients; there are not so many")
        return np.sort(generator(seed, "attack.who").permutation(clients)[: self.count])

    def poison_data(self, dataset: Dataset) -> Dataset:
        """What an attacker trains on.

        Under ``label_flip`` labels ``n_classes - 1 - y``, under ``backdoor`` every second sample with the trigger and
        its class, else the samples as they are.
        """
        return KINDS[self.kind].data(dataset)

    def send(self, scene: Scene, memory: Mapping[str, Any]) -> tuple[list[Tree], Memory]:
        """What this round's attackers send, a tree for each of ``scene.own``, and what they remember.

        ``memory`` is ``{}`` before the first round and a tree of arrays after it (of ``mimic`` and of ``free_rider``
        with delta); it is to be stored and resumed with the run. Nothing that is given is modified.
        """
        if not scene.own:
            return [], dict(memory)
        strength = np.nan if self.strength is None else self.strength
        sent, kept = KINDS[self.kind].make(scene, strength, self.variant or "", memory)
        return sent, dict(kept)

    def poison_updates(self, honest: Trees, own: Trees, seed: int, round: int) -> list[Tree]:
        """`send` for attackers that remember nothing and know nothing of the server.

        ``honest`` are the updates of the round's honest clients, ``own`` what the attackers' training gave
        them, in the order of the clients; the result has one tree for each of ``own``. Nothing is modified.
        """
        return self.send(Scene(honest, own, seed, round), {})[0]


def parse(text: str) -> Attack | None:
    """The attack that a text names, ``KIND:COUNT``, then perhaps its number or its form; ``none`` is no attack."""
    if text.strip().lower() in ("none", ""):
        return None
    kind, *rest = text.strip().split(":")
    known = KINDS.get(kind)
    words = [part for part in rest[1:] if known and part and part in known.variants]
    numbers = [part for part in rest[1:] if part not in words]
    if known and (not rest or len(words) > 1 or len(numbers) > 1):
        raise SettingError(f"{text!r}: say how many clients attack, and how hard if you like; e.g. {EXAMPLES}")
    try:
        return Attack(
            kind, int(rest[0]) if rest else 0, float(numbers[0]) if numbers else None, words[0] if words else None
        )
    except SettingError:
        raise
    except ValueError:
        raise SettingError(f"{text!r} holds something that is no number; expected e.g. {EXAMPLES}") from None
