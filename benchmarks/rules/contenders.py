"""The models, and what is measured on them: our rules and the peers', under the names of ours.

What comes after a bar in a name says how a peer's row differs from ours: ``"geometric median | 3 steps"``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.shapes import resnet50

Model = dict[str, np.ndarray]
Timed = dict[str, Callable[[], Any]]

HEADLINE = (
    "mean", "mean, weighted", "median", "trimmed mean", "krum", "geometric_median", "nnm + geometric median",
)  # fmt: skip
"""What is measured of every kind of kernels."""

VARIANTS = ("meamed", "krum, one neighbour more", "multi_krum, one neighbour more", "nash_mtl, published length")
"""What is measured beside peers only."""


def models(n: int, share: int = 1, seed: int = 0) -> tuple[list[Model], Model]:
    """n models of float32 with ResNet-50's shapes (one in ``share`` of each array's numbers), and a reference.

    A direction that all share and noise of each contributor's own length; the last fifth points the other way, so that
    gradients conflict, attackers stand out, and no two distances are alike.
    """
    rng = np.random.default_rng(seed)
    shapes = {k: s if share == 1 else (max(1, math.prod(s) // share),) for k, s in resnet50().items()}
    shared = {k: rng.standard_normal(s, dtype=np.float32) for k, s in shapes.items()}

    def one(along: float, noise: float) -> Model:
        found = {}
        for k, direction in shared.items():
            found[k] = rng.standard_normal(direction.shape, dtype=np.float32)
            found[k] *= np.float32(noise)
            found[k] += np.float32(along) * direction
        return found

    f = n // 5
    made = [one(0.5 if i < n - f else -0.4, 0.8 + 0.4 * ((7 * i) % n) / n) for i in range(n)]
    return made, one(1.0, 0.1)


def ours(xs: list[Model], reference: Model) -> Timed:
    """Our rules, f = n / 5."""
    from pluribus import rules

    n, f = len(xs), len(xs) // 5
    weights = np.arange(1, n + 1)
    return {
        "mean": lambda: rules.Mean()(xs),
        "mean, weighted": lambda: rules.Mean()(xs, weights),
        "median": lambda: rules.Median()(xs),
        "trimmed mean": lambda: rules.TrimmedMean(f)(xs),
        "meamed": lambda: rules.Meamed(f)(xs),
        "gram and mean": lambda: gram_and_mean(xs),
        "nnm + geometric median": lambda: rules.chain(rules.NNM(f), rules.GeometricMedian())(xs),
        "krum, one neighbour more": lambda: rules.Krum(f - 1)(xs),
        "multi_krum, one neighbour more": lambda: rules.MultiKrum(f - 1, n - f)(xs),
        "nash_mtl, published length": lambda: rules.NashMTL("published", 1.0)(xs),
        **gram_rules(xs, reference),
    }


def gram_and_mean(xs: list[Model]) -> None:
    """What every rule on the Gram matrix must do: one pass for it, one for a weighted mean."""
    from pluribus import rules
    from pluribus.core import passes
    from pluribus.core.contributions import gather

    passes.gram(passes.Active(gather(xs), tuple(range(len(xs)))))
    rules.Mean()(xs)


def gram_rules(xs: list[Model], reference: Model) -> Timed:
    """Every registered rule that reads the Gram matrix, f = n / 5 or the most that it takes."""
    from pluribus.core.relations import Reads
    from pluribus.core.rule import registered

    found: Timed = {}
    for name, kind in registered().items():
        if kind.__module__.split(".")[-2] not in ("robust", "gradients", "models"):
            continue
        options = dict(kind.example) | special(name, len(xs))
        if "f" in options:
            options["f"] = most(name, len(xs))
        rule = kind(**options)
        if rule.reads is Reads.GRAM:
            given = {"reference": reference} if rule.needs_reference else {}
            label = f"{name} (f={options['f']})" if options.get("f", len(xs) // 5) != len(xs) // 5 else name
            found[label] = lambda rule=rule, given=given: rule(xs, **given)
    return found


def most(name: str, n: int) -> int:
    """n / 5 attackers, or as many as a rule is defined for."""
    if name == "bulyan_selection":
        return min(n // 5, (n - 3) // 4)
    if name == "smea":  # compares all subsets, at most 100 000
        return next(f for f in range(n // 5, 0, -1) if math.comb(n, f) <= 100_000)
    return n // 5


def special(name: str, n: int) -> dict[str, Any]:
    """Options that fit these models."""
    radius = {"radius": 0.5 * math.sqrt(25e6)}
    return {"centered_clipping": radius, "flag": {"m": None}, "rfa": {"nu": 0.1}}.get(name, {})


def with_numpy(xs: list[Model], reference: Model) -> Timed:
    """What one writes in numpy."""
    return {
        "mean": lambda: {k: np.mean([x[k] for x in xs], axis=0) for k in xs[0]},
        "median": lambda: {k: np.median([x[k] for x in xs], axis=0) for k in xs[0]},
    }


def with_flwr(xs: list[Model], reference: Model) -> Timed:
    """flwr's aggregate functions on lists of arrays."""
    from flwr.server.strategy import aggregate as peer

    n, f = len(xs), len(xs) // 5
    results = [(list(x.values()), 1) for x in xs]
    return {
        "mean": lambda: peer.aggregate(results),
        "median": lambda: peer.aggregate_median(results),
        "trimmed mean": lambda: peer.aggregate_trimmed_avg(results, f / n),
        "krum": lambda: peer.aggregate_krum(results, f, 0),
    }


def with_byzfl(xs: list[Model], reference: Model) -> Timed:
    """byzfl's aggregators on a matrix that is already stacked (the stacking is a row of its own)."""
    import byzfl

    n, f = len(xs), len(xs) // 5
    rows = [flat(x) for x in xs]
    matrix = np.stack(rows)
    known: Timed = {
        "stacking": lambda: np.stack([flat(x) for x in xs]),
        "mean": lambda: byzfl.Average()(matrix),
        "median": lambda: byzfl.Median()(matrix),
        "trimmed mean": lambda: byzfl.TrMean(f=f)(matrix),
        "meamed": lambda: byzfl.Meamed(f=f)(matrix),
        "krum, one neighbour more": lambda: byzfl.Krum(f=f)(matrix),
        "multi_krum, one neighbour more": lambda: byzfl.MultiKrum(f=f)(matrix),
        "geometric_median | 3 steps": lambda: byzfl.GeometricMedian()(matrix),
        "geometric_median | 8 steps": lambda: byzfl.GeometricMedian(T=8)(matrix),
        "centered_clipping | start 0": lambda: byzfl.CenteredClipping(tau=special("centered_clipping", n)["radius"])(
            matrix
        ),
        "nnm": lambda: byzfl.Average()(byzfl.NNM(f=f)(matrix)),
        "nnm + geometric median | 8 steps": lambda: byzfl.GeometricMedian(T=8)(byzfl.NNM(f=f)(matrix)),
        "nnm + geometric median | 3 steps": lambda: byzfl.GeometricMedian()(byzfl.NNM(f=f)(matrix)),
    }
    if math.comb(n, f) < 1000:
        known["mda"] = lambda: byzfl.MDA(f=f)(matrix)
    return known


def with_torchjd(xs: list[Model], reference: Model) -> Timed:
    """TorchJD's aggregators on a matrix that is already stacked (the stacking is a row of its own)."""
    import torch
    from torchjd import aggregation as peer
    from torchjd._linalg._dual_cone import QuadprogProjector

    n, f = len(xs), len(xs) // 5
    matrix = torch.stack([torch.from_numpy(flat(x)) for x in xs])
    exact = QuadprogProjector(norm_eps=0.0, reg_eps=1e-7)  # its default ridge of 1e-4 shows in the fourth digit
    known = {
        "mean": peer.Mean(),
        "trimmed mean": peer.TrimmedMean(f),
        "krum | plain distances": peer.Krum(f),
        "multi_krum | plain distances": peer.Krum(f, n - f),
        "mgda": peer.MGDA(),
        "upgrad": peer.UPGrad(projector=exact),
        "dualproj": peer.DualProj(projector=exact),
        "cagrad": peer.CAGrad(0.5),
        "pcgrad | orders of its own": peer.PCGrad(),
        "gradvac | orders of its own": peer.GradVac(),
        "nash_mtl, published length": peer.NashMTL(n),
        "aligned_mtl": peer.AlignedMTL(),
        "imtl_g": peer.IMTLG(),
        "config": peer.ConFIG(),
    }
    timed: Timed = {"stacking": lambda: torch.stack([torch.from_numpy(flat(x)) for x in xs])}
    timed |= {name: lambda aggregate=aggregate: aggregate(matrix) for name, aggregate in known.items()}
    if matrix.numel() < 1 << 29:
        wide = matrix.double()
        timed["upgrad | of float64"] = lambda: known["upgrad"](wide)
    return timed


def flat(model: Model) -> np.ndarray:
    """One vector."""
    return np.concatenate([a.ravel() for a in model.values()])


SIDES: dict[str, Callable[[list[Model], Model], Timed]] = {
    "pluribus": ours,
    "numpy": with_numpy,
    "flwr": with_flwr,
    "byzfl": with_byzfl,
    "torchjd": with_torchjd,
}
