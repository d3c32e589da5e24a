"""Laws: what each says, and the test of one case of it.

A test is given a `Trial`, which runs the rule on the kind of array that is tried, and a case: arrays of numpy.
How cases are drawn and searched is in `pluribus.core.laws`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.law_arrays import Kind
from pluribus.core.rule import Rule

Case = dict[str, Any]


@dataclass(frozen=True)
class Law:
    """A statement, what its cases hold beside contributions and weights, and the test of one case.

    ``test(trial, case)`` gives None when the statement holds, and else what went wrong.
    """

    name: str
    statement: str
    test: Callable[[Trial, Case], str | None]
    needs: tuple[str, ...] = ()
    generic: bool = True  # whether noise keeps values apart
    numbers: tuple[int, ...] = ()
    vectors: bool = False  # whether it speaks of contributions as vectors that can be moved, scaled, turned, measured
    widths: tuple[str, ...] = ("float64", "float32")  # of the kinds of array on which it can be told

    def applies(self, rule: Rule) -> bool:
        """Whether it says something about a rule: a law about vectors does where all are taken, or where declared."""
        return not self.vectors or rule.any_vectors or self.name in rule.laws


LAWS: dict[str, Law] = {}


def law(
    name: str,
    statement: str,
    *needs: str,
    generic: bool = True,
    vectors: bool = False,
    widths: tuple[str, ...] = ("float64", "float32"),
) -> Callable[[Callable[[Trial, Case], str | None]], Law]:
    """Decorator that makes a test a known law."""

    def make(test: Callable[[Trial, Case], str | None]) -> Law:
        LAWS[name] = Law(name, statement, test, needs, generic, vectors=vectors, widths=widths)
        return LAWS[name]

    return make


@dataclass(frozen=True)
class Trial:
    """A rule that is tried on one kind of array: cases hold numpy arrays, and the rule sees that kind."""

    rule: Rule
    kind: Kind

    def __call__(self, x: Array, weights: Array, reference: Array | None = None) -> Array:
        """The rule's result on contributions x, shape (n, ...), as float64 of numpy."""
        given = [self.kind.given(row) for row in x]
        there = None if reference is None else self.kind.given(reference)
        return self.kind.back(self.rule(given, weights, reference=there, engine=self.kind.engine).value)

    def slack(self, *arrays: Array) -> float:
        """How far results may lie apart that are made of arrays of this size and are called equal."""
        scale = max((float(np.abs(a).max(initial=0.0)) for a in arrays), default=0.0)
        return max(self.kind.slack, self.rule.precision) * max(scale, 1e-300)

    def differs(self, found: Array, expected: Array, *scales: Array) -> str | None:
        """None where they are equal, and else what was found."""
        gap = float(np.abs(found - expected).max(initial=0.0))
        if gap <= self.slack(*scales):
            return None
        return f"gave {found.tolist()}, expected {np.asarray(expected).tolist()}"


def _reference(case: Case) -> Array | None:
    return case["reference"].astype(case["x"].dtype) if "reference" in case else None


@law("anonymity", "The order of the contributors does not matter.", "order")
def _anonymity(trial: Trial, case: Case) -> str | None:
    x, w, order, r = case["x"], case["weights"], case["order"], _reference(case)
    return trial.differs(trial(x[order], w[order], r), trial(x, w, r), x)


@law(
    "anonymity at ties",
    "The order of the contributors does not matter, even where some tie.",
    "order",
    generic=False,
)
def _anonymity_at_ties(trial: Trial, case: Case) -> str | None:
    return _anonymity.test(trial, case)


@law("unanimity", "When all contributors agree, the result is what they agree on.")
def _unanimity(trial: Trial, case: Case) -> str | None:
    x, w = case["x"], case["weights"]
    same = np.broadcast_to(x[:1], x.shape)
    return trial.differs(trial(same, w, _reference(case)), x[0], x)


@law("null", "A contributor of weight zero is as good as absent.", "extra")
def _null(trial: Trial, case: Case) -> str | None:
    x, w, r = case["x"], case["weights"], _reference(case)
    extra = np.resize(case["extra"], x.shape[1:])
    extra = extra.astype(x.dtype) if x.dtype.kind == "f" else np.full(extra.shape, -1, x.dtype)
    more, weights = np.vstack([x[:1], extra[None], x[1:]]), np.insert(w, 1, 0.0)
    return trial.differs(trial(more, weights, r), trial(x, w, r), x)


@law("replication", "A weight of two is as good as two copies.")
def _replication(trial: Trial, case: Case) -> str | None:
    x, w, r = case["x"], case["weights"].astype(int), _reference(case)
    copies = np.repeat(x, w, axis=0)
    return trial.differs(trial(x, w.astype(float), r), trial(copies, np.ones(len(copies)), r), x)


@law("translation", "Moving all contributions moves the result as much.", "shift", vectors=True)
def _translation(trial: Trial, case: Case) -> str | None:
    x, w, shift = case["x"], case["weights"], case["shift"].astype(case["x"].dtype)
    moved, r = x + shift, _reference(case)
    there = None if r is None else r + shift
    return trial.differs(trial(moved, w, there), trial(x, w, r) + shift, x, moved)


@law("scale", "Scaling all contributions scales the result as much.", "factor", vectors=True)
def _scale(trial: Trial, case: Case) -> str | None:
    x, w, factor = case["x"], case["weights"], case["factor"]
    scaled, r = (x * factor).astype(x.dtype), _reference(case)
    there = None if r is None else (r * factor).astype(x.dtype)
    return trial.differs(trial(scaled, w, there), trial(x, w, r) * factor, scaled)


@law("rotation", "Rotating all contributions rotates the result.", "angle", vectors=True)
def _rotation(trial: Trial, case: Case) -> str | None:
    x, w = case["x"], case["weights"]
    turn = np.eye(x.shape[1])
    if x.shape[1] > 1:
        c, s = np.cos(case["angle"]), np.sin(case["angle"])
        turn[:2, :2] = [[c, -s], [s, c]]
    r = _reference(case)
    there = None if r is None else (r @ turn).astype(x.dtype)
    return trial.differs(trial((x @ turn).astype(x.dtype), w, there), trial(x, w, r) @ turn, x)


@law("betweenness", "At each coordinate the result lies between the least and the greatest contribution.", vectors=True)
def _betweenness(trial: Trial, case: Case) -> str | None:
    x, w = case["x"], case["weights"]
    z, slack = trial(x, w, _reference(case)), trial.slack(x)
    inside = (z >= x.min(axis=0) - slack) & (z <= x.max(axis=0) + slack)
    return (
        None if inside.all() else f"gave {z.tolist()}, outside of {x.min(axis=0).tolist()} to {x.max(axis=0).tolist()}"
    )


@law(
    "monotone weight",
    "More weight for a contributor does not move the result away from it.",
    "who",
    "factor",
    vectors=True,
)
def _monotone_weight(trial: Trial, case: Case) -> str | None:
    x, w, who, r = case["x"], case["weights"], case["who"], _reference(case)
    more = w.copy()
    more[who] *= 1 + case["factor"]
    before = np.linalg.norm(trial(x, w, r) - x[who])
    after = np.linalg.norm(trial(x, more, r) - x[who])
    return None if after <= before + trial.slack(x) else f"distance to it grew from {before} to {after}"


@law(
    "breakdown",
    "The contributors that a rule declares to withstand, at least one, move it only so far.",
    "attack",
    vectors=True,
)
def _breakdown(trial: Trial, case: Case) -> str | None:
    x, w = case["x"], np.ones(len(case["x"]))
    # A rule that withstands nobody, however many there are, is tried with one attacker.
    f = trial.rule.tolerates(len(x)) if trial.rule.tolerates(1000) else 1
    honest = x[f:]
    attacked = x.copy()
    attacked[:f] = (x[:f] * case["attack"]).astype(x.dtype)
    spread = max(float(np.linalg.norm(a - b)) for a in honest for b in honest)
    bound = trial.rule.breakdown_factor(*x.shape) * spread + trial.slack(honest)
    moved = float(np.linalg.norm(trial(attacked, w, _reference(case)) - honest.mean(axis=0)))
    return None if moved <= bound else f"{f} of {len(x)} moved it {moved:g}, more than {bound:g}"


@law("mergeable", "Parts combined apart and then together give the whole.", "cut")
def _mergeable(trial: Trial, case: Case) -> str | None:
    x, w, cut = case["x"], case["weights"], case["cut"]
    parts = [trial.rule.fold(), trial.rule.fold()]
    for k in range(len(x)):
        parts[k >= cut].add(trial.kind.given(x[k]), w[k])
    merged = trial.kind.back(parts[0].merge(parts[1]).result().value)
    return trial.differs(merged, trial(x, w, _reference(case)), x)


@law(
    "differentiable",
    "In every direction, moving the contributions a little one way or the other changes the result at the same rate.",
    "direction",
    "noise",
    generic=False,
    vectors=True,
    widths=("float64",),  # a float32 result has too few digits for a difference quotient
)
def _differentiable(trial: Trial, case: Case) -> str | None:
    x, w, v, r = case["x"] + case["noise"], case["weights"], case["direction"], _reference(case)
    here = trial(x, w, r)
    # The step that balances the error of results, divided by it, and curvature, which grows with it.
    step = float(np.sqrt(max(trial.kind.slack, trial.rule.precision)))
    slack = trial.slack(x, v, here) * 4 / step

    def rates(h: float) -> tuple[float, float]:
        """How far the rates there and back differ, and the greatest rate of both together."""
        there, back = trial(x + h * v, w, r), trial(x - h * v, w, r)
        return (
            float(np.abs(there - 2 * here + back).max(initial=0.0)) / h,
            float(np.abs(there - back).max(initial=0.0)) / (2 * h),
        )

    (coarse, slow), (fine, fast) = rates(10 * step), rates(step)
    # The two rates differ by what shrinks tenfold from curvature, stays at a kink, grows at a jump.
    if fine > max(0.5 * coarse, slack):
        return f"rates of change there and back differ by {fine:g} at step {step:g}, and {coarse:g} at ten times that"
    # A jump as far up as down looks alike from both sides, but has no rate: it grows as steps shrink.
    if fast > 2 * slow + slack:
        return f"the rate of change is {fast:g} at step {step:g}, and {slow:g} at ten times that"
    return None


@law("deterministic", "The same contributions give the same bits, wherever they lie in memory.")
def _deterministic(trial: Trial, case: Case) -> str | None:
    x, w, r = case["x"], case["weights"], _reference(case)
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    first, second, third = (
        trial(np.ascontiguousarray(x), w, r),
        trial(x, w, r),
        trial(strided, w, r),
    )
    return None if first.tobytes() == second.tobytes() == third.tobytes() else "bits differ between two runs"
