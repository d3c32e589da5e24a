"""FedAsync: each model that arrives is mixed into the global one, for less the staler it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.errors import RuleError
from pluribus.core.rule import positive
from pluribus.federated.server.asynchronous.arrivals import arrived, staleness_of
from pluribus.federated.server.base import Array, Round, State
from pluribus.federated.server.rule import Server, Step, one_of, register


@register
@dataclass(frozen=True)
class FedAsync(Server):
    """``x <- (1 - a_t) x + a_t y`` with the client's model y and ``a_t = alpha s(tau)``.

    s is 1 (``constant``), ``(1 + tau) ** -a`` (``polynomial``), or 1 up to b and ``1 / (a (tau - b) + 1)`` beyond
    (``hinge``). It is a mean of models, so a stale one pulls the server back towards where it started. Where several
    arrive at one step they are mixed in one after another, the stalest first and then by id; the weights are what
    each counts for in the end. The paper's proximal term is the federation's ``proximal``.

    Compared with FedAsync of Plato and APPFL (section 5.2 of the paper in both): the same three functions.

    Parameters
    ----------
    alpha
        Share of a fresh model, in (0, 1].
    staleness
        ``"polynomial"``, ``"hinge"`` or ``"constant"``.
    a, b
        Of the function; 0.5 for the polynomial in the paper, 10 and 4 for the hinge.
    """

    alpha: float = 0.6
    staleness: str = "polynomial"
    a: float = 0.5
    b: float = 4.0

    key = "fedasync"
    formula = "(1 - alpha s(tau)) x + alpha s(tau) y"
    source = "Xie, Koyejo and Gupta, Asynchronous Federated Optimization, 2019 (OPT 2020)"
    explanation = "Each client's model is mixed into the global one as it comes, for less the staler it is."

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "staleness", ("polynomial", "hinge", "constant"))
        positive("FedAsync", "alpha", self.alpha)
        if self.alpha > 1:
            raise RuleError(f"FedAsync: alpha is the share of a fresh model, at most 1, not {self.alpha!r}")
        positive("FedAsync", "a", self.a, zero=True)
        positive("FedAsync", "b", self.b, zero=True)

    def discount(self, staleness: Array) -> Array:
        """s(tau)."""
        if self.staleness == "constant":
            return np.ones_like(staleness)
        if self.staleness == "polynomial":
            return np.asarray((1 + staleness) ** -self.a)
        return 1 / (self.a * np.maximum(staleness - self.b, 0) + 1)

    def advance(self, state: State, round: Round) -> Step:
        """Mix the models in."""
        tau = staleness_of(round)
        shares = self.alpha * self.discount(tau)
        order = np.argsort(-tau, kind="stable")
        left = np.append(np.cumprod((1 - shares[order])[::-1])[::-1][1:], 1.0)  # what later ones leave of each
        counted = np.empty_like(shares)
        counted[order] = shares[order] * left
        return Step(arrived(self, state["params"], round, counted, models=True), counted, {})
