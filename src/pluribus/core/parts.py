"""Parts of contributions handled apart from the rest, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pluribus.core import dtypes, leaves, passes, tree
from pluribus.core.contributions import Block, Contributions, TensorSpec
from pluribus.core.dtypes import Array
from pluribus.core.passes import Active


def put(result: Sequence[Array], tensors: Sequence[int], made: Sequence[Array]) -> None:
    """Copy the result of some tensors, by number, into the result of all."""
    for k, array in zip(tensors, made, strict=True):
        result[k][...] = array


def average(active: Active, shares: Array, tensors: Sequence[int], result: Sequence[Array]) -> None:
    """Write the plain weighted mean of some tensors into a result; counters and masks by their policy."""
    if tensors:
        coefficients = np.concatenate([shares, np.zeros(len(active.data.extras))])
        part = replace(active, data=active.data.subset(tensors))
        put(result, tensors, passes.weighted_sums(part, coefficients[None])[0])


def gathered(data: Contributions, blocks: Sequence[Block]) -> Contributions:
    """Ranges of tensors one after the other, copied into a tensor for float32 and one for float64.

    One long block takes less time than many short ones. Every row must hold every tensor.
    """
    everyone = range(len(data.rows))
    pieces: dict[str, list[list[Any]]] = {}
    for block in blocks:
        pieces.setdefault(data.specs[block.tensor].dtype.compute.name, []).append(data.views(block, everyone))
    kinds = {name: dtypes.of(name) for name in pieces}
    rows = tuple(
        tuple(leaves.of(data.medium.xp.concatenate([views[row] for views in pieces[k]]), k) for k in kinds)
        for row in everyone
    )
    specs = tuple(TensorSpec(k, (sum(len(views[0]) for views in pieces[k]),), kind) for k, kind in kinds.items())
    return replace(data, specs=specs, rows=rows, structure=tree.flat(list(kinds)))
