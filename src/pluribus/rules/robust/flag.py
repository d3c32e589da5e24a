"""The flag aggregator: project the mean onto the subspace that most contributions lie near."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_groups import ABOUT_ORIGIN, ANONYMOUS
from pluribus.core.relations import Reads, Relation
from pluribus.core.rule import WeightRule, expect_gram, positive, register, whole_number

_RANK = 1e-12  # eigenvalues below this share of the greatest are rounding
_SETTLED = 1e-12  # IRLS stops when the objective falls by less than this share


def flag_median(
    points: Array, shares: Array, m: int, *, pairs: float, iterations: int, smoothing: float
) -> tuple[Array, list[float]]:
    """Orthonormal Y, shape (q, m), and the objective after each step.

    Least value of ``n sum_i w_i sqrt(1 - v_i + eps) + pairs / (p (p - 1)) sum_i!=j sqrt(1 - v_ij + eps)``, with v_i
    the squared norm of the projection of unit row i on Y, and v_ij that of the unit difference of rows i and j. Each
    step replaces the square roots by the parabolas that touch them, so the objective never rises; it starts from the
    principal subspace.

    Parameters
    ----------
    points
        Unit (or zero) rows in q coordinates, shape (n, q).
    shares
        Weights of sum one, shape (n,).
    m
        Dimension of the subspace, at most q.
    pairs, iterations, smoothing
        As in `Flag`: eps is the smoothing.
    """
    rows, counts = points, len(points) * shares
    if pairs > 0 and len(points) > 1:
        i, j = np.triu_indices(len(points), 1)
        gaps = points[i] - points[j]
        lengths = np.linalg.norm(gaps, axis=1, keepdims=True)
        units = np.divide(gaps, lengths, out=np.zeros_like(gaps), where=lengths > 0)
        rows = np.vstack([points, units])
        counts = np.concatenate([counts, np.full(len(units), pairs / len(units))])
    importance, objectives = counts, [np.inf]
    while True:
        subspace = np.linalg.eigh((rows.T * importance) @ rows)[1][:, ::-1][:, :m]
        missed = np.maximum(1.0 - ((rows @ subspace) ** 2).sum(axis=1), 0.0) + smoothing
        objectives.append(float(counts @ np.sqrt(missed)))
        if len(objectives) > iterations + 1 or objectives[-1] >= objectives[-2] * (1 - _SETTLED):
            return subspace, objectives[1:]
        importance = counts / np.sqrt(missed)


@register
@dataclass(frozen=True)
class Flag(WeightRule):
    """Projection of the weighted mean onto the m-dimensional subspace nearest to the directions of most contributions.

    The subspace is the flag median of the unit contributions: it minimises the sum of their sines to it, where outliers
    count less than with the squares of principal components, by iteratively reweighted least squares. (The paper comes
    to it from a Beta likelihood of the reconstruction ratios v_i, with alpha = 1 and beta = 1/2.) Everything happens in
    coordinates of the contributions' span, taken from the Gram matrix.

    Lengths are not bounded: only what is outside of the subspace is lost. Zero vectors have no say in the subspace.
    Given weights count in it and in the mean. The authors' code projects the sum of the *unit* contributions and
    divides by m, takes one step from a random subspace, and squares the factor of its pair terms, on differences of
    unit vectors that keep their length; here the paper's objective is minimised. Without pair terms, one step from the
    same subspace gives the projector of that code to 1e-15.

    Parameters
    ----------
    m
        Dimension of the subspace; None is ``ceil((n + 1) / 2)``, as in the paper. From the rank of the contributions on
        the result is their mean.
    pairs
        Strength of the pairwise term (lambda in the paper), which keeps differences of contributors too; 0 is none.
    iterations
        At most so many reweightings; it stops when the objective settles.
    smoothing
        Added to every squared sine.
    """

    m: int | None = None
    pairs: float = 0.0
    iterations: int = 50
    smoothing: float = 1e-7

    name = "flag"
    reads = Reads.GRAM
    numbers = (21,)
    laws = ANONYMOUS | ABOUT_ORIGIN | {"unanimity", "replication"}
    formula = "Y Y' sum_i w_i x_i, Y = argmin over orthonormal m columns of sum_i w_i sqrt(1 - |Y'x_i|^2 / |x_i|^2)"
    source = (
        "Almasi et al., Flag Aggregator: Scalable Distributed Training under Failures and Augmented Losses using "
        "Convex Optimization, ICLR 2024"
    )
    precision = 1e-5
    example = (("m", 1),)

    def __post_init__(self) -> None:
        if self.m is not None:
            whole_number("Flag", "m", self.m, 1)
        positive("Flag", "pairs", self.pairs, zero=True)
        whole_number("Flag", "iterations", self.iterations, 1)
        positive("Flag", "smoothing", self.smoothing)

    def weigh(self, relation: Relation | None, weights: Array) -> Array:
        """Coefficients of the projected mean over the contributions."""
        gram = expect_gram(relation)
        n = gram.n
        result = np.concatenate([weights, np.zeros(len(gram.extras))])
        norms = np.sqrt(gram.squared_norms[:n])
        inverse = np.divide(1.0, norms, out=np.zeros(n), where=norms > 0)
        spectrum, vectors = np.linalg.eigh(inverse[:, None] * gram.gram[:n, :n] * inverse)
        real = spectrum > _RANK * max(spectrum[-1], 0.0)
        m = self.m if self.m is not None else (n + 2) // 2
        if m >= real.sum():
            return result  # the whole span is kept
        roots, vectors = np.sqrt(spectrum[real]), vectors[:, real]
        points = vectors * roots  # the unit contributions in an orthonormal basis of their span
        subspace, _ = flag_median(
            points, weights, m, pairs=self.pairs, iterations=self.iterations, smoothing=self.smoothing
        )
        projected = subspace @ (subspace.T @ (points.T @ (weights * norms)))
        result[:n] = inverse * (vectors @ (projected / roots))
        return result
