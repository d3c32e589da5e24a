"""How samples are divided among clients: label skew, shards, quantity skew, or evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluribus.federated.errors import SettingError
from pluribus.federated.options import brief, did_you_mean
from pluribus.federated.seeding import generator

Indices = NDArray[np.int64]

KINDS = ("iid", "dirichlet", "shards", "quantity")
EXAMPLES = "iid, dirichlet:0.1, shards:2, quantity:0.5"
REDRAWS = 50  # the reference redraws for ever; here the smallest clients are topped up after so many draws


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each client has: every sample exactly once, no client without any.

    ``indices[i]`` holds client i's positions in the data set, ascending; ``counts`` is clients x classes.
    """

    name: str
    indices: tuple[Indices, ...]
    counts: Indices

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> Indices:
        """Samples of each client, shape ``(clients,)``."""
        sizes: Indices = self.counts.sum(axis=1)
        return sizes

    @property
    def distributions(self) -> NDArray[np.float64]:
        """Each client's shares of the classes, clients x classes; rows sum to one."""
        return self.counts / self.sizes[:, None]

    def table(self, class_names: Sequence[str] | None = None) -> str:
        """Samples of each class at each client as aligned text; ``.`` is none."""
        names = list(class_names or map(str, range(self.counts.shape[1])))
        rows = [[str(i), str(n), *_dotted(row)] for i, (n, row) in enumerate(zip(self.sizes, self.counts, strict=True))]
        total = self.counts.sum(axis=0)
        lines = [["client", "samples", *names], *rows, ["all", str(total.sum()), *_dotted(total)]]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )


def iid(y: ArrayLike, clients: int, seed: int, *, n_classes: int | None = None) -> Partition:
    """A random division into equal parts; sizes differ by one at most."""
    labels = _labels(y, clients)
    order = generator(seed, "partition.iid").permutation(len(labels))
    return _partition("iid", np.array_split(order, clients), labels, n_classes)


def dirichlet(
    y: ArrayLike, clients: int, alpha: float, seed: int, *, min_size: int = 1, n_classes: int | None = None
) -> Partition:
    """Label skew: the samples of each class go to clients in shares drawn from Dirichlet(alpha, ..., alpha).

    Small ``alpha`` gives each class to few clients, large ``alpha`` tends to ``iid``. As in the reference, a
    client that already has ``n / clients`` samples gets none of the classes still to come (the others' shares
    are renormalised), and the whole is drawn again while a client has fewer than ``min_size``. After 50 draws
    the smallest clients are topped up with random samples of the largest, so any feasible request ends.

    Yurochkin et al. 2019 (ICML), after Hsu et al. 2019. Compared with
    IBM/probabilistic-federated-neural-matching experiment.py ("hetero-dir"): same shares and gate; cut at
    the nearest sample, there at the lower.
    """
    labels = _labels(y, clients, min_size)
    _positive(alpha, "alpha")
    by_class = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    for draw in range(REDRAWS):
        rng = generator(seed, "partition.dirichlet", draw)
        parts = _label_skew(by_class, clients, alpha, rng)
        if min(map(len, parts)) >= min_size:
            break
    _top_up(parts, min_size, rng)
    return _partition(f"dirichlet:{brief(alpha)}", parts, labels, n_classes)


def shards(y: ArrayLike, clients: int, shards_per_client: int, seed: int, *, n_classes: int | None = None) -> Partition:
    """Label skew: samples sorted by label are cut into equal shards, and each client gets as many, at random.

    McMahan et al. 2017: with ``shards_per_client = 2`` most clients see two classes.
    """
    labels = _labels(y, clients)
    per = _count(shards_per_client, "shards_per_client")
    if clients * per > len(labels):
        raise SettingError(f"{clients} clients x {per} shards are more than {len(labels)} samples; ask for fewer")
    rng = generator(seed, "partition.shards")
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, clients * per)
    dealt = rng.permutation(clients * per).reshape(clients, per)
    parts = [np.concatenate([pieces[i] for i in hand]) for hand in dealt]
    return _partition(f"shards:{per}", parts, labels, n_classes)


def quantity(
    y: ArrayLike, clients: int, alpha: float, seed: int, *, min_size: int = 1, n_classes: int | None = None
) -> Partition:
    """Quantity skew: sizes in shares drawn from Dirichlet(alpha, ..., alpha), labels at random.

    Li et al. 2022 (NIID-Bench, "iid-diff-quantity"), which redraws until every client has 10 samples; here
    the smallest are topped up to ``min_size`` from the largest.
    """
    labels = _labels(y, clients, min_size)
    _positive(alpha, "alpha")
    rng = generator(seed, "partition.quantity")
    parts = _cut(rng.permutation(len(labels)), _simplex(rng, alpha, clients))
    _top_up(parts, min_size, rng)
    return _partition(f"quantity:{brief(alpha)}", parts, labels, n_classes)


@dataclass(frozen=True)
class Partitioner:
    """A kind of partition with its parameter: ``Partitioner("dirichlet", 0.1)(y, clients, seed)``."""

    kind: str = "iid"
    parameter: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingError(
                f"no partition is called {self.kind!r}; there are {EXAMPLES}{did_you_mean(self.kind, KINDS)}"
            )
        if (self.parameter is None) != (self.kind == "iid"):
            raise SettingError(f"{self.kind!r} takes {'no' if self.kind == 'iid' else 'one'} number; e.g. {EXAMPLES}")
        if self.kind == "shards":
            _count(self.parameter, "shards_per_client")
        elif self.parameter is not None:
            _positive(self.parameter, "alpha")

    def __str__(self) -> str:
        return self.kind if self.parameter is None else f"{self.kind}:{brief(self.parameter)}"

    def __call__(self, y: ArrayLike, clients: int, seed: int, *, n_classes: int | None = None) -> Partition:
        """Divide the samples with these labels."""
        if self.parameter is None:
            return iid(y, clients, seed, n_classes=n_classes)
        if self.kind == "shards":
            return shards(y, clients, int(self.parameter), seed, n_classes=n_classes)
        skew = dirichlet if self.kind == "dirichlet" else quantity
        return skew(y, clients, self.parameter, seed, n_classes=n_classes)


def parse(text: str) -> Partitioner:
    """The partition that a text names: ``iid``, ``dirichlet:0.1``, ``shards:2`` or ``quantity:0.5``."""
    kind, colon, number = text.strip().partition(":")
    try:
        return Partitioner(kind, float(number) if colon else None)
    except SettingError:
        raise
    except ValueError:
        raise SettingError(f"{text!r}: {number!r} is no number; expected e.g. {EXAMPLES}") from None


def _label_skew(by_class: list[Indices], clients: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    pieces: list[list[Indices]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    fair = sum(map(len, by_class)) / clients
    for members in by_class:
        shares = _simplex(rng, alpha, clients) * (sizes < fair)
        if shares.sum() == 0:  # all of it fell on clients that are full
            shares = (sizes < fair).astype(np.float64)
        cut = _cut(rng.permutation(members), shares / shares.sum())
        for piece, new in zip(pieces, cut, strict=True):
            piece.append(new)
        sizes += [len(new) for new in cut]
    return [np.concatenate(piece) for piece in pieces]


def _simplex(rng: np.random.Generator, alpha: float, size: int) -> NDArray[np.float64]:
    """A draw of Dirichlet(alpha, ..., alpha), with its limits where floating point gives none."""
    with np.errstate(all="ignore"):
        draw = rng.dirichlet(np.full(size, alpha))
    if np.isfinite(draw).all() and abs(draw.sum() - 1) < 1e-6:
        return draw
    if alpha > 1:
        return np.full(size, 1 / size)
    corner: NDArray[np.float64] = np.eye(size)[rng.integers(size)]
    return corner


def _cut(order: Indices, shares: NDArray[np.float64]) -> list[Indices]:
    ends = np.rint(np.cumsum(shares)[:-1] * len(order)).astype(np.int64)
    return np.split(order, ends)


def _top_up(parts: list[Indices], min_size: int, rng: np.random.Generator) -> None:
    sizes = np.array([len(part) for part in parts])
    while sizes.min() < min_size:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        pick = int(rng.integers(sizes[rich]))
        parts[poor] = np.append(parts[poor], parts[rich][pick])
        parts[rich] = np.delete(parts[rich], pick)
        sizes[poor] += 1
        sizes[rich] -= 1


def _partition(name: str, parts: Sequence[Indices], labels: Indices, n_classes: int | None) -> Partition:
    classes = int(labels.max()) + 1 if n_classes is None else n_classes
    if labels.max() >= classes:
        raise SettingError(f"labels go up to {labels.max()}; with n_classes={classes} they stop at {classes - 1}")
    indices = tuple(np.sort(part) for part in parts)
    return Partition(name, indices, np.stack([np.bincount(labels[i], minlength=classes) for i in indices]))


def _labels(y: ArrayLike, clients: int, min_size: int = 1) -> Indices:
    labels = np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (labels.size and labels.min() < 0):
        raise SettingError(
            f"labels are {labels.dtype} of shape {labels.shape}; expected whole numbers >= 0, one a sample"
        )
    need = _count(clients, "clients") * _count(min_size, "min_size")
    if need > len(labels):
        raise SettingError(
            f"{clients} clients with at least {min_size} sample(s) each need {need}; there are {len(labels)}"
        )
    return labels.astype(np.int64)


def _count(value: float | None, name: str) -> int:
    if value is None or not np.isfinite(value) or value < 1 or value != int(value):
        raise SettingError(f"{name} is {value!r}; expected a whole number >= 1")
    return int(value)


def _positive(value: float, name: str) -> None:
    if not (np.isfinite(value) and value > 0):
        raise SettingError(f"{name} is {value!r}; expected a finite number > 0")


def _dotted(row: Indices) -> list[str]:
    return [str(n) if n else "." for n in row]
