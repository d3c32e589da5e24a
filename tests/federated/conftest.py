"""A small federation that needs no data package: three clouds of points, a few clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pluribus.federated import Config, Layer, resolve


@pytest.fixture(scope="session")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 180 points in 4 dimensions, in three clouds that overlap."""
    rng = np.random.default_rng(7)
    y = np.repeat([0, 1, 2], 60)
    x = rng.normal(size=(3, 4))[y] * 1.5 + rng.normal(size=(180, 4))
    path = tmp_path_factory.mktemp("data") / "clouds.npz"
    np.savez(path, x=x, y=y)
    return path


@pytest.fixture
def settings_of(clouds: Path) -> Any:
    """``settings_of(rounds=3)``: settings of six clients and four rounds, with changes."""

    def make(**changes: Any) -> Config:
        tiny = {
            "data": str(clouds),
            "clients": 6,
            "rounds": 4,
            "rules": "fedavg,median",
            "model": "softmax",
            "partition": "dirichlet:1",
            "attack": "none",
            "epochs": 1,
            "batch_size": 8,
            "proxy": 12,
            "seeds": 2,
        }
        return resolve(Layer(tiny | changes))[0]

    return make


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower's runtime sets before it calls a ServerApp."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for the one that tells the time."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "timing.json"
    }


@pytest.fixture
def files() -> Any:
    """`contents`, for tests."""
    return contents
