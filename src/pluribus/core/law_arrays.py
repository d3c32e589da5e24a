"""The kinds of array that laws are tried on: a library and a width.

`KINDS` holds them by name: ``numpy-float64``, ``numpy-float32``, ``torch-float64``, ``torch-float32``. Contributions
become arrays of that kind before the rule sees them, and its result a numpy array again.

Tensors are combined as those on a CUDA device are, by ``engine="torch"``: without it, tensors on the CPU lend numpy
their memory, and nothing but numpy would be tried.

There is no bfloat16. The noise that keeps contributions apart (0.01) is less than its spacing (1/32 from 4 to 8), so
all cases would be ties; and moved, scaled or turned contributions are rounded to three digits, which a rule that
chooses may rightly answer with another choice. Widths are rounded as `pluribus.core.dtypes` says, after the same
float64 sums, whatever the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import RuleError, require


@dataclass(frozen=True)
class Kind:
    """Arrays of one library and one width.

    Attributes
    ----------
    library
        ``"numpy"`` or ``"torch"``.
    width
        ``"float64"`` or ``"float32"``. Labels and ranks stay whole numbers.
    slack
        How far, relative to the contributions, two results may lie apart that a law calls equal.
    """

    library: str
    width: str
    slack: float

    @property
    def name(self) -> str:
        """As in ``"torch-float32"``."""
        return f"{self.library}-{self.width}"

    @property
    def engine(self) -> str | None:
        """Where rules run."""
        return "torch" if self.library == "torch" else None

    def narrowed(self, x: Array) -> Array:
        """Numbers of this width; whole numbers as they are."""
        return x.astype(self.width) if x.dtype.kind == "f" else x

    def given(self, x: Array) -> Any:
        """One contribution as a rule sees it: it shares memory with x where it can.

        Raises
        ------
        MissingExtraError
            The library is not installed.
        """
        if self.library == "numpy":
            return x
        return require("torch", "torch").from_numpy(np.require(x, requirements="W"))

    def back(self, value: Any) -> Array:
        """A result as float64 of numpy."""
        return np.asarray(value, dtype=np.float64)


_SLACK = {"float64": 1e-9, "float32": 2e-5}
KINDS = {kind.name: kind for library in ("numpy", "torch") for kind in (Kind(library, w, s) for w, s in _SLACK.items())}
DEFAULT = "numpy-float64"


def kinds(arrays: str | Iterable[str]) -> list[Kind]:
    """Kinds by their names; the name of a library is all of its kinds. Each once, in the order given.

    Raises
    ------
    RuleError
        There is no such kind, or none is named.
    MissingExtraError
        The library of one is not installed.
    """
    names = [arrays] if isinstance(arrays, str) else list(arrays)
    found: dict[str, Kind] = {}
    for name in names:
        meant = {key: kind for key, kind in KINDS.items() if name in (key, kind.library)}
        if not meant:
            raise RuleError(f"no kind of array is called {name!r}; there are numpy, torch, {', '.join(KINDS)}")
        found |= meant
    if not found:
        raise RuleError(f"arrays names no kind of array; there are numpy, torch, {', '.join(KINDS)}")
    if any(kind.library == "torch" for kind in found.values()):
        require("torch", "torch")
    return list(found.values())
