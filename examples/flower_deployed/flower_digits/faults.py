"""What a client that is broken or hostile sends, to see what the server makes of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Tree = dict[str, NDArray[np.float32]]


def spoiled(params: Tree, faults: str, server_round: int) -> Tree:
    """A client's model as it is sent in a round: ``"nan,shapes,huge"`` names what is wrong in rounds 1, 2 and 3.

    ``""``, and any round after the last named, is an honest one.
    """
    named = faults.split(",")
    fault = named[server_round - 1].strip() if server_round <= len(named) else ""
    if fault == "nan":
        return {name: np.full_like(value, np.nan) for name, value in params.items()}
    if fault == "shapes":
        return {name: value[:-1] for name, value in params.items()}
    if fault == "huge":
        return {name: value + np.float32(1e6) for name, value in params.items()}
    if fault:
        raise ValueError(f"no fault is called {fault!r}; there are nan, shapes and huge")
    return params
