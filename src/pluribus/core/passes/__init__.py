"""Passes over the data, block by block: the only code that reads contributions.

Each pass maps a function over blocks of coordinates and takes the results in the order of the blocks. Weighted sums
and order statistics are per coordinate, so their bits cannot depend on the blocks. A Gram matrix is a sum over
blocks, so its blocks are fixed (`Medium.gram_items`), each is computed by one BLAS thread, and they are added in fixed
groups (`GRAM_GROUP`) and in order. So neither threads, nor tiles, nor the engine change a bit.

Blocks are numpy arrays or torch tensors, as the contributions' medium has it (`pluribus.core.medium`).

`active` holds who takes part, `running` how a task goes over blocks; then what passes do: `deciding` (norms, Gram
matrix; `scaling` gives very long and very short rows a unit), `combining` (weighted sums, rules of coordinates; with
`overflow` for what leaves the range of its dtype) and `measuring` (distances to a result, what counted).
"""

from pluribus.core.passes.active import (
    Active,
    OutsideDomain,
    Placed,
    Tainted,
    TileRule,
    all_there,
    blame,
    by_kernel,
    outside,
    scan,
)
from pluribus.core.passes.combining import coordinatewise, stored, weighted_sums
from pluribus.core.passes.deciding import gram, largest, norms, over_blocks
from pluribus.core.passes.measuring import coordinate_shares, distances_to, shares_in_order
from pluribus.core.passes.running import run, single_blas
from pluribus.core.passes.scaling import unit_of

__all__ = [
    "Active",
    "OutsideDomain",
    "Placed",
    "Tainted",
    "TileRule",
    "all_there",
    "blame",
    "by_kernel",
    "coordinate_shares",
    "coordinatewise",
    "distances_to",
    "gram",
    "largest",
    "norms",
    "outside",
    "over_blocks",
    "run",
    "scan",
    "shares_in_order",
    "single_blas",
    "stored",
    "unit_of",
    "weighted_sums",
]
