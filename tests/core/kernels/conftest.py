"""Tiles that are hard on a kernel, and both backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pluribus.core.kernels import Kernels, plain

HARD = ("normal", "ties", "denormal", "zeros", "huge", "spread", "same", "near")


def hard_tile(kind: str, n: int, size: int, dtype: Any) -> list[np.ndarray]:
    """n views of one tile; the first is strided, the second read-only, the third reversed."""
    rng = np.random.default_rng([HARD.index(kind), n, size])
    info = np.finfo(dtype)
    shape = (n, size)
    values = {
        "normal": lambda: rng.standard_normal(shape),
        "ties": lambda: rng.integers(-2, 3, shape),
        "denormal": lambda: rng.integers(-5, 6, shape) * info.smallest_subnormal,
        "zeros": lambda: np.where(rng.random(shape) < 0.5, 0.0, -0.0),
        "huge": lambda: rng.choice([-1, 1, 1, 0.5, 1e-3], shape) * float(info.max),
        "spread": lambda: rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 30, shape),
        "same": lambda: np.repeat(rng.standard_normal((1, size)), n, axis=0),
        "near": lambda: 1 + rng.integers(0, 3, shape) * float(info.eps),
    }[kind]()
    views = list(values.astype(dtype))
    if n > 2:
        wide = np.zeros(2 * size, dtype)
        wide[::2] = views[0]
        views[0] = wide[::2]
        views[1].flags.writeable = False
        views[2] = views[2][::-1].copy()[::-1]
    return views


@pytest.fixture(params=["plain", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Each backend in turn."""
    if request.param == "plain":
        return plain
    pytest.importorskip("numba", reason="numba is not installed: pip install 'pluribus[fast]'")
    from pluribus.core.kernels import compiled

    return compiled


@pytest.fixture
def tile() -> Callable[..., list[np.ndarray]]:
    """The maker of hard tiles."""
    return hard_tile


@pytest.fixture(params=HARD)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of hard tile in turn."""
    return request.param
