"""The rows that take part in a pass, and what is told of them when something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pluribus.core.contributions import Block, Contributions
from pluribus.core.dtypes import Array
from pluribus.core.errors import ContributionError, RuleError, listing
from pluribus.core.kernels import Kernels
from pluribus.engines.base import Engine

TileRule = Callable[[Any, Sequence[Array], Array], bool]  # (kernel, views, out) -> finite


def by_kernel(rule: TileRule) -> TileRule:
    """Mark a tile rule that touches views and output through its kernel alone, so that these may be torch tensors.

    Other tile rules see numpy arrays: tensors are copied from their device and the result back, tile by tile.
    """
    rule.by_kernel = True  # type: ignore[attr-defined]
    return rule


@dataclass(frozen=True)
class Placed:
    """A tile rule that must know where its tile lies, since it draws random numbers for each coordinate.

    ``at(first)`` is the rule of the tile whose first coordinate has that number, counted over all tensors; so what is
    drawn does not depend on the tiles. Called as a tile rule that knows nothing of its place it raises `RuleError`.
    """

    at: Callable[[int], TileRule]

    def __call__(self, kernel: Any, views: Sequence[Array], out: Array) -> bool:
        """Refuse: without a place there is nothing to draw."""
        raise RuleError("a rule that draws random numbers must know where its tile lies: call at(first) first")


class Tainted(Exception):
    """Rows with NaN or Inf were met; ``found`` maps each to the names of its bad tensors."""

    def __init__(self, found: dict[int, list[str]]) -> None:
        super().__init__(found)
        self.found = found


class OutsideDomain(Exception):
    """A tile holds a value that a rule has no meaning for; ``position`` is that of the view that holds it."""

    def __init__(self, position: int, complaint: str) -> None:
        super().__init__(position, complaint)
        self.position, self.complaint = position, complaint


@dataclass(frozen=True, eq=False)
class Active:
    """The rows that take part: contributors ``rows``, then all extra rows.

    ``cleaned`` rows have NaN and Inf read as zero; ``integers`` says how counters and masks are combined; ``engine`` is
    where passes run (None: threads, by size; for tensors the calling thread) and ``out`` the file that the result goes
    to (None: memory).
    """

    data: Contributions
    rows: tuple[int, ...]
    cleaned: frozenset[int] = frozenset()
    integers: str = "round"
    engine: Engine | None = None
    out: Path | None = None

    @property
    def all_rows(self) -> tuple[int, ...]:
        """Contributors and extra rows."""
        return self.rows + tuple(range(self.data.n, len(self.data.rows)))

    @property
    def values(self) -> int:
        """How many coordinates a pass over all of it reads."""
        return self.data.coordinates * len(self.all_rows)

    @property
    def kernel(self) -> Kernels:
        """The kernels for a pass over all of it."""
        return self.data.medium.kernel(self.values)

    def without(self, position: int) -> Active:
        """All but the contributor at a position in ``rows``; in memory."""
        return replace(self, rows=self.rows[:position] + self.rows[position + 1 :], out=None)


def outside(active: Active, rows: Sequence[int], tensor: int, error: OutsideDomain) -> ContributionError:
    """The error that names who left a rule's domain, and with which tensor; no ``rows``: what pre-rules made."""
    who = active.data.labels[rows[error.position]] if rows else "a contribution made by a pre-rule"
    return ContributionError(f"{who}: {active.data.specs[tensor].label} {error.complaint}")


def views_of(active: Active, block: Block) -> list[Any]:
    """A block of all rows."""
    return active.data.views(block, active.all_rows, active.cleaned)


def row_labels(active: Active) -> tuple[str, ...]:
    """The names of the rows, in their order."""
    return tuple(active.data.labels[row] for row in active.all_rows)


def scan(active: Active) -> dict[int, list[str]]:
    """Rows that hold NaN or Inf, with the names of the tensors that do."""
    found: dict[int, list[str]] = {}
    for block in active.data.blocks(1 << 16, discrete=False):
        for row in active.all_rows:
            if active.data.rows[row][block.tensor] is None or row in active.cleaned:
                continue
            (view,) = active.data.views(block, [row])
            if not active.kernel.finite(view):
                names = found.setdefault(row, [])
                label = active.data.specs[block.tensor].label
                if label not in names:
                    names.append(label)
    return dict(sorted(found.items()))


def check_finite(active: Active, squares: Array) -> None:
    """Raise `Tainted` where a squared norm is not finite."""
    bad = np.flatnonzero(~np.isfinite(squares))
    if bad.size:
        named = scan(active)
        raise Tainted({active.all_rows[k]: named.get(active.all_rows[k], []) for k in bad})


def all_there(active: Active, what: str) -> None:
    """Raise where a contributor lacks a tensor, for passes that need all; ``what`` names what they read."""
    lacking = [active.data.labels[r] for r in active.all_rows if None in active.data.rows[r]]
    if lacking:
        raise ContributionError(
            f"a rule that reads {what} needs every tensor of every contributor; some are absent in {listing(lacking)}"
        )


def blame(active: Active) -> None:
    """Raise `Tainted` with the rows that hold NaN or Inf, if any do."""
    found = scan(active)
    if found:
        raise Tainted(found)
