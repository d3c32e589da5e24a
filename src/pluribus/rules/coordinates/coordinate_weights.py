"""A mean in which each contributor takes part in each element as much as a mask says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pluribus.core import elements
from pluribus.core.contributions import Contributions, gather
from pluribus.core.dtypes import Array
from pluribus.core.errors import ContributionError, RuleError
from pluribus.core.law_groups import AVERAGE
from pluribus.core.passes import Active
from pluribus.core.rule import CompositeRule, Execute, register

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome

NONZERO = "nonzero"


@register
@dataclass(frozen=True, eq=False)
class CoordinateWeights(CompositeRule):
    """Element-wise ``sum_i w_i m_ik x_ik / sum_i w_i m_ik``: who holds, trained or is sure of an element shapes it.

    With masks of zeros and ones: partial participation (federated dropout, personal layers, sub-models). With other
    numbers: importances, such as the diagonal Fisher information. Elements in which nobody takes part keep the value
    of ``reference=``, and without one are an error that names the tensor. Counters and integer masks among the
    contributions themselves are averaged under the plain weights.

    Parameters
    ----------
    masks
        As many contributions as are combined, in their order (or under their names), of the same names and shapes:
        numbers that are finite and not negative, of any scale. Or ``"nonzero"``: a contributor takes part in the
        elements at which it is not zero, as in sparse updates; an element at which all are zero is zero.
    """

    masks: Any = NONZERO

    name = "coordinate_weights"
    laws = AVERAGE | {"scale", "betweenness", "monotone weight"}
    formula = "z_k = sum_i w_i m_ik x_ik / sum_i w_i m_ik"
    source = "Matena and Raffel, Merging Models with Fisher-Weighted Averaging, NeurIPS 2022 (for importances)"
    uses_reference = True

    def __post_init__(self) -> None:
        if isinstance(self.masks, str) and self.masks != NONZERO:
            raise RuleError(
                f"CoordinateWeights: masks are contributions of weights, or {NONZERO!r}, not {self.masks!r}"
            )

    def draw(self, x: Array) -> Array:
        """Numbers some of which are zero."""
        return np.where(np.abs(x) < 2, 0.0, x)

    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """One pass over contributions and masks."""
        from pluribus.core.execution import Outcome

        masks = None if isinstance(self.masks, str) else self._gathered(active.data)
        found = elements.weighted_elements(active, shares, masks)
        return Outcome(active, [found.result], counted=found.counted)

    def _gathered(self, data: Contributions) -> Contributions:
        """The masks, checked against the contributions."""
        masks = gather(self.masks)
        if masks.n != data.n:
            raise ContributionError(f"{masks.n} masks for {data.n} contributors: give one for each")
        if masks.labels[: masks.n] != data.labels[: data.n]:
            raise ContributionError(
                f"masks are those of {masks.labels[0]}, ..., and contributions those of {data.labels[0]}, ...; "
                "name both alike, in one order"
            )
        shapes = {spec.name: spec.shape for spec in masks.specs}
        for spec in data.specs:
            if spec.dtype.discrete:
                continue
            if spec.name not in shapes:
                raise ContributionError(f"the masks lack {spec.label}; give weights for every tensor of floats")
            if shapes[spec.name] != spec.shape:
                raise ContributionError(
                    f"the masks of {spec.label} have shape {shapes[spec.name]}, expected {spec.shape} as contributed"
                )
        return masks

    def __str__(self) -> str:
        return f"CoordinateWeights(masks={self.masks!r})" if isinstance(self.masks, str) else "CoordinateWeights(...)"
