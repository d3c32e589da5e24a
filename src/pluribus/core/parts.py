"""Parts of contributions handled apart from the rest, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pluribus.core import passes
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
