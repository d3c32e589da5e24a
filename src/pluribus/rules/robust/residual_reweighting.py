"""Residual-based reweighting: a robust line through the sorted values of each coordinate tells who is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.kernels import plain, select
from pluribus.core.kernels.tiles import SHRINK
from pluribus.core.passes import Active, TileRule, coordinate_shares
from pluribus.core.relations import Reads
from pluribus.core.rule import CompositeRule, CoordinateRule, Execute, positive, register
from pluribus.core.weights import normalise

if TYPE_CHECKING:
    from pluribus.core.execution import Outcome

_PIECE = 1 << 11  # coordinates: n rows of slopes fit the cache
_HUGE = 2.0**900  # differences of values below it are numbers
_ROUNDING = 1e-12  # residuals below this share of the largest value are rounding


def repeated_median_line(ranked: Sequence[Array], kernel: Any = plain) -> tuple[Array, Array]:
    """Slope and height at rank 0 of the repeated-median line through n sorted values, each of shape (T,).

    The slope is the median over i of the median over j != i of (y_j - y_i) / (j - i); the line passes the median of
    the values at the middle rank.
    """
    n, size = len(ranked), len(ranked[0])
    medians = []
    for i in range(n):
        slopes = [(ranked[j] - ranked[i]) / (j - i) for j in range(n) if j != i]
        medians.append(_median(slopes, kernel))
    slope = _median(medians, kernel) if n > 1 else np.zeros(size)
    return slope, _median(ranked, kernel) - slope * (n - 1) / 2


def _median(views: Sequence[Array], kernel: Any) -> Array:
    n, out = len(views), np.empty(len(views[0]))
    kernel.middle(views, (n - 1) // 2, n // 2 + 1, out)
    return out


def line_weights(tile: Array, width: float, kernel: Any = plain) -> tuple[Array, Array]:
    """Confidence in each value, in [0, 1], and the value of the line at its rank; both of shape (n, T).

    Confidence is ``min(1, K sqrt(1 - h) tau / |residual|)`` with ``K = width sqrt(2 / n)``, h the leverage of the rank
    and tau = ``1.4826 (1 + 5 / (n - 1))`` times the median of all but the smallest absolute residual.
    """
    n, tile = len(tile), tile.astype(np.float64)
    unit = 1.0 if np.abs(tile).max(initial=0.0) < _HUGE else SHRINK
    tile = tile if unit == 1.0 else tile * unit
    ranks = np.arange(n, dtype=np.float64)
    leverage = 1 / n + (ranks - (n - 1) / 2) ** 2 / ((n**3 - n) / 12)
    factor, most = 1.4826 * (1 + 5 / (n - 1)), width * np.sqrt(2 / n) * np.sqrt(np.maximum(1 - leverage, 0.0))
    if kernel.NAME == "compiled":
        from pluribus.core.kernels import pairs

        confidence, line = pairs.lines(tile, (factor, most, _ROUNDING))
    else:
        confidence, line = _fitted(tile, factor, most, kernel)
    with np.errstate(over="ignore"):  # a line may leave the range of its values
        return confidence, line / unit


def _fitted(tile: Array, factor: float, most: Array, kernel: Any) -> tuple[Array, Array]:
    """The steps that `pluribus.core.kernels.pairs.lines` compiles."""
    order = np.argsort(tile, axis=0, kind="stable")
    ranked = np.take_along_axis(tile, order, axis=0)
    slope, start = repeated_median_line(list(ranked), kernel)
    line = start + slope * np.arange(len(tile), dtype=np.float64)[:, None]
    away = np.abs(ranked - line)
    away[away <= _ROUNDING * np.abs(ranked).max(axis=0)] = 0.0
    tau = _median(list(np.sort(away, axis=0)[1:]), kernel) * factor
    full = most[:, None] * tau
    found = np.where(away <= full, 1.0, np.divide(full, away, out=np.zeros_like(away), where=away > 0))
    confidence, at_rank = np.empty_like(found), np.empty_like(line)
    np.put_along_axis(confidence, order, found, axis=0)
    np.put_along_axis(at_rank, order, line, axis=0)
    return confidence, at_rank


def _pieces(size: int) -> list[slice]:
    return [slice(k, min(k + _PIECE, size)) for k in range(0, size, _PIECE)]


@dataclass(frozen=True)
class _Mended(CoordinateRule):
    """The weighted mean of values, of which those without confidence are put on the line."""

    width: float
    threshold: float

    def tile_rule(self, weights: Array) -> TileRule:
        def combine(kernel: Any, views: Sequence[Array], out: Array) -> bool:
            if not all(kernel.finite(view) for view in views):
                return False
            for piece in _pieces(len(out)):
                tile = np.stack([view[piece] for view in views]).astype(np.float64)
                if len(tile) > 2:
                    confidence, line = line_weights(tile, self.width, kernel)
                    tile = np.where(confidence >= self.threshold, tile, line)
                with np.errstate(over="ignore", invalid="ignore"):  # the pass tells
                    out[piece] = weights @ tile
            return True

        return combine


@register
@dataclass(frozen=True)
class ResidualReweighting(CompositeRule):
    """Weights by how well the values of each contributor fit a robust line through the sorted values of a coordinate.

    At each coordinate the repeated-median line of value over rank is fitted; a value's confidence falls with its
    residual, and values with less than a threshold are put on the line. A contributor's weight is the square of its
    confidences, summed over the coordinates with their standard deviation as factor (a coordinate on which all are
    alike says nothing), relative to the greatest sum; given weights multiply. Two passes, with n^2 work a coordinate:
    the dearest rule here (0.5 microseconds a coordinate with 10 contributors and 10 with 50, compiled, where measured).

    One reweighting, as in the authors' code, which is its "IRLS". Where nobody stands out anywhere that code divides
    zero by zero, and here the given weights stand; its constant 1e-7 beside the scale of the residuals, which has a
    unit, is left out. Its results are those of the authors' code to 1e-6 (it computes in float32).

    Parameters
    ----------
    width
        Residuals up to ``width sqrt(2 / n)`` scales have full confidence (lambda in the paper).
    threshold
        Confidence below which a value is replaced by the line's.
    """

    width: float = 2.0
    threshold: float = 0.1

    name = "residual_reweighting"
    reads = Reads.COORDINATES
    takes_tensors = True
    laws = frozenset({"anonymity", "unanimity", "null", "translation", "scale", "breakdown", "deterministic"})
    formula = "sum_i a_i y_i, a_i from the residuals of x_ik about the repeated-median line over ranks, y_ik mended"
    source = "Fu et al., Attack-Resistant Federated Learning with Residual-Based Reweighting, 2019"

    def __post_init__(self) -> None:
        positive("ResidualReweighting", "width", self.width)
        positive("ResidualReweighting", "threshold", self.threshold)

    def compose(self, active: Active, shares: Array, execute: Execute) -> Outcome:
        """Confidence over all coordinates, then the mean of mended values."""
        from pluribus.core.execution import Outcome

        weights = normalise(shares * self._trust(active))
        outcome = execute(_Mended(self.width, self.threshold), active, weights)
        return Outcome(outcome.active, outcome.results, counted=weights)

    def _trust(self, active: Active) -> Array:
        """What each contributor's weight is multiplied by, in [0, 1], shape (n,)."""

        kernel = select(active.values)

        def confidence(tile: Array, _: Array) -> Array:
            found = np.zeros(tile.shape)
            for piece in _pieces(tile.shape[1]) if len(tile) > 2 else []:
                part, _ = line_weights(tile[:, piece], self.width, kernel)
                found[:, piece] = part * part.std(axis=0, ddof=1)
            return found

        with np.errstate(invalid="ignore", over="ignore"):  # the second pass tells who is not finite
            total = coordinate_shares(active, confidence, np.ones(len(active.rows)))
        greatest = total.max()
        return (total / greatest) ** 2 if np.isfinite(greatest) and greatest > 0 else np.ones(len(total))

    def tolerates(self, n: int) -> int:
        """What the repeated median withstands, with one residual set aside."""
        return max((n - 2) // 2, 0)

    def breakdown_factor(self, n: int, d: int) -> float:
        """Slope and scale of the line are within those of the honest values, and so is what is kept of a value."""
        line = (n - 1) / 2
        scale = 1.4826 * (1 + 5 / (n - 1)) * (1 + line)
        kept = self.width * np.sqrt(2 / n) * scale / min(self.threshold, 1.0)
        return float(np.sqrt(d) * (1 + line + kept))
