"""How loops are compiled, and how they reach a view's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import cgutils
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function) -> Function:
    """Compile without the GIL, into numba's cache where a folder for it can be written."""
    return _compiled(function, {})


def reordered(function: Function) -> Function:
    """`jit`, with sums in whatever order is fastest: for what need not have the bits of a plain version."""
    return _compiled(function, {"fastmath": {"reassoc", "contract"}})


def _compiled(function: Function, more: dict[str, Any]) -> Function:
    options = {"nogil": True, "error_model": "numpy", **more}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "no locator available": neither __pycache__ nor the user's cache folder is writable
        compiled = numba.njit(**options)(function)
    return cast(Function, compiled)


def _pointer_from_address(typing: Any, address: Any) -> Any:
    """Turn an address into a pointer (an intrinsic of numba: a signature and the instruction)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return numba.types.voidptr(numba.types.uintp), generate


pointer = intrinsic(_pointer_from_address)
