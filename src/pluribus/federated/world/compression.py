"""What an update becomes on a narrow line: its largest numbers, coarse numbers, or signs; and the bytes that travel.

Bytes are those of a message that could be written and read back: both sides know the tensors' names, shapes and dtypes,
so none of these travel. Only real tensors (float16 to float64) are compressed; counters and masks travel whole, and so
does an update that holds NaN or Inf, for the server to see.

A compressor that errs to one side keeps what it left out and adds it to the next update (error feedback): without, the
small coordinates would never arrive.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from pluribus.federated import options
from pluribus.federated.errors import SettingError
from pluribus.federated.models import Array, Tree, real

FORMS = "none, topk:0.01, topk:0.01:plain, qsgd:16, sign or sign:plain"
KINDS = ("none", "topk", "qsgd", "sign")
COUNT = 4  # bytes of how many numbers follow


class Sent(NamedTuple):
    """The update that arrives, the bytes that travelled, and what the client keeps for the next (may be nothing)."""

    update: Tree
    bytes: int
    memory: Tree


class Compressor(Protocol):
    """What becomes of an update between client and server: compressed, or protected too (`channel.Channel`)."""

    def send(self, update: Tree, memory: Mapping[str, Any], rng: np.random.Generator) -> Sent:
        """Nothing that is given is modified. ``memory`` is what the client's last `Sent` held, or ``{}``."""
        ...


@dataclass(frozen=True)
class Whole:
    """Nothing is compressed."""

    def __str__(self) -> str:
        return "none"

    def send(self, update: Tree, memory: Mapping[str, Any], rng: np.random.Generator) -> Sent:
        """The update."""
        del memory, rng
        return Sent(update, size_of(update), {})


@dataclass(frozen=True)
class TopK:
    """The ``ceil(fraction d)`` coordinates of largest size, of all d in the real tensors together; the others are 0.

    Of equals the earlier ones are kept. With feedback the rest is kept and added to the next update, so ``sent +
    memory`` is exactly the update plus the old memory.

    Encoding: for each tensor a count (4 bytes, of which one bit says what follows), then positions in the tensor (2
    bytes each where it has at most 65,536 numbers, else 4) or one bit for every coordinate, whichever is shorter, then
    the numbers.

    Stich et al. 2018 (Sparsified SGD with memory), Algorithm 1.
    """

    fraction: float
    feedback: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise SettingError(f"topk keeps a fraction of {self.fraction!r}; expected a number in (0, 1]")

    def __str__(self) -> str:
        return f"topk:{options.brief(self.fraction)}" + ("" if self.feedback else ":plain")

    def send(self, update: Tree, memory: Mapping[str, Any], rng: np.random.Generator) -> Sent:
        """See `Compressor`."""
        del rng
        if not finite(update):
            return _as_it_is(update, memory)
        target = _with_memory(update, memory if self.feedback else {})
        names = [name for name, value in target.items() if real(value)]
        kept = self._largest([np.abs(target[name]).astype(np.float64).ravel() for name in names])
        sent, rest = {**target}, {}
        bytes_sent = size_of({name: value for name, value in target.items() if not real(value)})
        for name, here in zip(names, kept, strict=True):
            value = target[name]
            mask = here.reshape(value.shape)
            sent[name] = np.where(mask, value, value.dtype.type(0))
            rest[name] = np.where(mask, value.dtype.type(0), value)
            chosen, size = int(mask.sum()), value.size
            places = min(chosen * (2 if size <= 2**16 else 4), -(-size // 8))
            bytes_sent += COUNT + places + chosen * value.itemsize
        return Sent(sent, bytes_sent, rest if self.feedback else {})

    def _largest(self, sizes: list[Array]) -> list[Array]:
        """Which coordinates of each tensor are sent."""
        if not sizes:
            return []
        flat = np.concatenate(sizes)
        count = min(math.ceil(self.fraction * len(flat) * (1 - 1e-12)), len(flat))
        kept = np.ones(len(flat), dtype=np.bool_)
        if count < len(flat):
            least = np.partition(flat, len(flat) - count)[len(flat) - count]
            kept = flat > least
            kept[np.flatnonzero(flat == least)[: count - int(kept.sum())]] = True
        return np.split(kept, np.cumsum([len(size) for size in sizes])[:-1])


@dataclass(frozen=True)
class QSGD:
    """Each real tensor v on ``levels`` steps up to its norm, rounded up or down at random so that the mean is v.

    ``|v| sign(v_i) l_i / levels`` with ``l_i`` one of the two whole numbers around ``levels |v_i| / |v|``. Unbiased up
    to the rounding of the dtype; the variance is at most ``min(d / levels^2, sqrt(d) / levels) |v|^2``. No feedback: it
    errs to no side.

    Encoding: for each tensor its norm (4 bytes, 8 for float64; infinity says that the tensor follows whole), then a
    sign bit and ``ceil(log2(levels + 1))`` bits for each coordinate. The paper's Elias code is shorter where most
    levels are 0.

    Alistarh et al. 2017. Rounding as in GRACE's QSGDCompressor.
    """

    levels: int

    def __post_init__(self) -> None:
        if not isinstance(self.levels, (int, np.integer)) or not 1 <= self.levels < 2**31:
            raise SettingError(f"qsgd has {self.levels!r} levels; expected a whole number >= 1")

    def __str__(self) -> str:
        return f"qsgd:{self.levels}"

    def send(self, update: Tree, memory: Mapping[str, Any], rng: np.random.Generator) -> Sent:
        """See `Compressor`."""
        if not finite(update):
            return _as_it_is(update, memory)
        sent, bytes_sent = {}, 0
        for name, value in update.items():
            sent[name], used = self._rounded(value, rng) if real(value) else (value, value.nbytes)
            bytes_sent += used
        return Sent(sent, bytes_sent, {})

    def _rounded(self, value: Array, rng: np.random.Generator) -> tuple[Array, int]:
        sizes = np.abs(value, dtype=np.float64)
        norm = _header(norm_of([sizes]), value, upward=True)
        draws = rng.random(value.shape)
        if not np.isfinite(norm):
            return value, _header_bytes(value) + value.nbytes
        scaled = sizes / norm * self.levels if norm > 0 else sizes
        level = np.minimum(np.floor(scaled + draws), self.levels)
        sent = (np.sign(value) * (norm / self.levels * level)).astype(value.dtype)
        bits = value.size * (1 + self.levels.bit_length())
        return sent, _header_bytes(value) + -(-bits // 8)


@dataclass(frozen=True)
class Sign:
    """The signs of each real tensor times its mean size: ``sign(v_i) |v|_1 / d``, where zero counts as positive.

    With feedback the difference is kept and added to the next update; ``sent + memory`` is the update plus the old
    memory up to the rounding of the dtype.

    Encoding: for each tensor the mean size (4 bytes, 8 for float64; infinity says that the tensor follows whole), then
    a bit for each coordinate.

    Karimireddy et al. 2019 (EF-signSGD).
    """

    feedback: bool = True

    def __str__(self) -> str:
        return "sign" if self.feedback else "sign:plain"

    def send(self, update: Tree, memory: Mapping[str, Any], rng: np.random.Generator) -> Sent:
        """See `Compressor`."""
        del rng
        if not finite(update):
            return _as_it_is(update, memory)
        target = _with_memory(update, memory if self.feedback else {})
        sent, rest, bytes_sent = {}, {}, 0
        for name, value in target.items():
            if not real(value):
                sent[name] = value
                bytes_sent += value.nbytes
                continue
            size = _header(float(np.abs(value, dtype=np.float64).mean()) if value.size else 0.0, value)
            known = np.isfinite(size)
            sent[name] = np.where(value >= 0, size, -size).astype(value.dtype) if known else value
            rest[name] = value - sent[name]
            bytes_sent += _header_bytes(value) + (-(-value.size // 8) if known else value.nbytes)
        return Sent(sent, bytes_sent, rest if self.feedback else {})


def parse(text: str) -> Compressor:
    """The compressor that a text names: ``none``, ``topk:FRACTION``, ``qsgd:LEVELS`` or ``sign``.

    ``topk`` and ``sign`` have error feedback; ``topk:FRACTION:plain`` and ``sign:plain`` go without.
    """
    kind, *rest = text.strip().split(":")
    if kind == "none" and not rest:
        return Whole()
    plain = rest[-1:] == ["plain"]
    numbers = rest[:-1] if plain else rest
    if kind == "topk" and len(numbers) == 1:
        fraction = options.number(lambda x: 0 < x <= 1, "a number in (0, 1]")(numbers[0], "topk's fraction")
        return TopK(fraction, feedback=not plain)
    if kind == "qsgd" and len(numbers) == 1 and not plain:
        return QSGD(options.whole(1, 2**31 - 1)(numbers[0], "qsgd's levels"))
    if kind == "sign" and not numbers:
        return Sign(feedback=not plain)
    hint = options.did_you_mean(kind, KINDS) if kind not in KINDS else ""
    raise SettingError(f"no compression is called {text!r}; expected {FORMS}{hint}")


def size_of(tree: Mapping[str, Any]) -> int:
    """Bytes of all arrays of a tree, as they are."""
    return sum(size_of(value) if isinstance(value, Mapping) else np.asarray(value).nbytes for value in tree.values())


def finite(tree: Mapping[str, Array]) -> bool:
    """Whether all numbers of a tree are finite."""
    return all(bool(np.isfinite(value).all()) for value in tree.values() if real(value))


def norm_of(values: Collection[Array]) -> float:
    """The Euclidean norm over all tensors together, in float64 and without overflow before its end."""
    largest = max((float(np.abs(value).max(initial=0.0)) for value in values), default=0.0)
    if largest == 0:
        return 0.0
    return largest * float(np.sqrt(sum(np.square(value / np.float64(largest)).sum() for value in values)))


def _as_it_is(update: Tree, memory: Mapping[str, Any]) -> Sent:
    """An update that diverged: the server is to see it, and what the client still owes is not spoilt by it."""
    return Sent(update, size_of(update), dict(memory))


def _with_memory(update: Tree, memory: Mapping[str, Any]) -> Tree:
    target = dict(update)
    for name, owed in memory.items():
        if name not in target or target[name].shape != np.shape(owed):
            there = target[name].shape if name in target else "nothing"
            raise SettingError(f"tensor {name!r}: the memory has shape {np.shape(owed)} and the update {there}")
        target[name] = target[name] + np.asarray(owed, dtype=target[name].dtype)
    return target


def _header_bytes(value: Array) -> int:
    return max(4, value.itemsize)


def _header(number: float, value: Array, upward: bool = False) -> float:
    """A number as the message holds it, in float32 or a wider dtype of the tensor; infinity where it does not fit."""
    kind = np.result_type(value.dtype, np.float32).type
    with np.errstate(over="ignore"):
        held = kind(number)
        if upward and held < number:
            held = np.nextafter(held, kind(np.inf))
    return float(held)
