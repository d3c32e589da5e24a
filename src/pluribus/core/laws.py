"""Laws that rules declare, and a search that tries to break each: for our rules and for anybody's.

>>> from pluribus import laws, rules
>>> laws.check(rules.Median(), ["rotation"])["rotation"].holds
False

A law is a statement about a rule and a small random case. Cases are drawn by hypothesis, which shrinks what breaks a
law to a small counterexample. Values lie on a grid, with a little noise so that nothing ties by accident: a rule that
chooses one of several is not blamed for how it breaks ties, except by the law about ties. A rule that needs a reference
gets one, which moves, scales and turns with the contributions. A case for which a rule has no answer by nature
(`UndefinedError`: antipodal points on a sphere) is none. Laws about vectors say nothing about a rule on other things:
that is a verdict of its own, *not applicable*.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pluribus.core.dtypes import Array
from pluribus.core.errors import PluribusError, RuleError, UndefinedError, require
from pluribus.core.rule import Rule, registered

Case = dict[str, Any]


@dataclass(frozen=True)
class Law:
    """A statement, what its cases hold beside contributions and weights, and the test of one case.

    ``test(rule, case)`` gives None when the statement holds, and else what went wrong.
    """

    name: str
    statement: str
    test: Callable[[Rule, Case], str | None]
    needs: tuple[str, ...] = ()
    generic: bool = True  # whether noise keeps values apart
    numbers: tuple[int, ...] = ()
    vectors: bool = False  # whether it speaks of contributions as vectors that can be moved, scaled, turned, measured

    def applies(self, rule: Rule) -> bool:
        """Whether it says something about a rule: a law about vectors does where all are taken, or where declared."""
        return not self.vectors or rule.any_vectors or self.name in rule.laws


@dataclass(frozen=True)
class Verdict:
    """What a search found. ``counterexample`` is a case that breaks the law, as small as shrinking made it.

    ``holds`` is None where the law is not applicable to the rule; `word` says which of the three it is.
    """

    law: str
    holds: bool | None
    counterexample: Case | None = field(default=None)
    message: str | None = None

    @property
    def word(self) -> str:
        """``"holds"``, ``"broken"`` or ``"not applicable"``."""
        return {True: "holds", False: "broken", None: "not applicable"}[self.holds]


LAWS: dict[str, Law] = {}


def law(
    name: str, statement: str, *needs: str, generic: bool = True, vectors: bool = False
) -> Callable[[Callable[[Rule, Case], str | None]], Law]:
    """Decorator that makes a test a known law."""

    def make(test: Callable[[Rule, Case], str | None]) -> Law:
        LAWS[name] = Law(name, statement, test, needs, generic, vectors=vectors)
        return LAWS[name]

    return make


def _apply(rule: Rule, x: Array, weights: Array, reference: Array | None) -> Array:
    return np.asarray(rule(list(x), weights, reference=reference).value, dtype=np.float64)


def _reference(case: Case) -> Array | None:
    return case["reference"].astype(case["x"].dtype) if "reference" in case else None


def _tolerance(rule: Rule, *arrays: Array) -> float:
    scale = max((float(np.abs(a).max(initial=0.0)) for a in arrays), default=0.0)
    coarse = 1e-9 if arrays[0].dtype == np.float64 else 2e-5
    return max(coarse, rule.precision) * max(scale, 1e-300)


def _differs(rule: Rule, found: Array, expected: Array, *scales: Array) -> str | None:
    gap = float(np.abs(found - expected).max(initial=0.0))
    if gap <= _tolerance(rule, *scales):
        return None
    return f"gave {found.tolist()}, expected {np.asarray(expected).tolist()}"


@law("anonymity", "The order of the contributors does not matter.", "order")
def _anonymity(rule: Rule, case: Case) -> str | None:
    x, w, order, r = case["x"], case["weights"], case["order"], _reference(case)
    return _differs(rule, _apply(rule, x[order], w[order], r), _apply(rule, x, w, r), x)


@law(
    "anonymity at ties",
    "The order of the contributors does not matter, even where some tie.",
    "order",
    generic=False,
)
def _anonymity_at_ties(rule: Rule, case: Case) -> str | None:
    return _anonymity.test(rule, case)


@law("unanimity", "When all contributors agree, the result is what they agree on.")
def _unanimity(rule: Rule, case: Case) -> str | None:
    x, w = case["x"], case["weights"]
    same = np.broadcast_to(x[:1], x.shape)
    return _differs(rule, _apply(rule, same, w, _reference(case)), x[0], x)


@law("null", "A contributor of weight zero is as good as absent.", "extra")
def _null(rule: Rule, case: Case) -> str | None:
    x, w, r = case["x"], case["weights"], _reference(case)
    extra = np.resize(case["extra"], x.shape[1:])
    extra = extra.astype(x.dtype) if x.dtype.kind == "f" else np.full(extra.shape, -1, x.dtype)
    more, weights = np.vstack([x[:1], extra[None], x[1:]]), np.insert(w, 1, 0.0)
    return _differs(rule, _apply(rule, more, weights, r), _apply(rule, x, w, r), x)


@law("replication", "A weight of two is as good as two copies.")
def _replication(rule: Rule, case: Case) -> str | None:
    x, w, r = case["x"], case["weights"].astype(int), _reference(case)
    copies = np.repeat(x, w, axis=0)
    return _differs(rule, _apply(rule, x, w.astype(float), r), _apply(rule, copies, np.ones(len(copies)), r), x)


@law("translation", "Moving all contributions moves the result as much.", "shift", vectors=True)
def _translation(rule: Rule, case: Case) -> str | None:
    x, w, shift = case["x"], case["weights"], case["shift"].astype(case["x"].dtype)
    moved, r = x + shift, _reference(case)
    there = None if r is None else r + shift
    return _differs(rule, _apply(rule, moved, w, there), _apply(rule, x, w, r) + shift, x, moved)


@law("scale", "Scaling all contributions scales the result as much.", "factor", vectors=True)
def _scale(rule: Rule, case: Case) -> str | None:
    x, w, factor = case["x"], case["weights"], case["factor"]
    scaled, r = (x * factor).astype(x.dtype), _reference(case)
    there = None if r is None else (r * factor).astype(x.dtype)
    return _differs(rule, _apply(rule, scaled, w, there), _apply(rule, x, w, r) * factor, scaled)


@law("rotation", "Rotating all contributions rotates the result.", "angle", vectors=True)
def _rotation(rule: Rule, case: Case) -> str | None:
    x, w = case["x"], case["weights"]
    turn = np.eye(x.shape[1])
    if x.shape[1] > 1:
        c, s = np.cos(case["angle"]), np.sin(case["angle"])
        turn[:2, :2] = [[c, -s], [s, c]]
    r = _reference(case)
    there = None if r is None else (r @ turn).astype(x.dtype)
    return _differs(rule, _apply(rule, (x @ turn).astype(x.dtype), w, there), _apply(rule, x, w, r) @ turn, x)


@law("betweenness", "At each coordinate the result lies between the least and the greatest contribution.", vectors=True)
def _betweenness(rule: Rule, case: Case) -> str | None:
    x, w = case["x"], case["weights"]
    z, slack = _apply(rule, x, w, _reference(case)), _tolerance(rule, x)
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
def _monotone_weight(rule: Rule, case: Case) -> str | None:
    x, w, who, r = case["x"], case["weights"], case["who"], _reference(case)
    more = w.copy()
    more[who] *= 1 + case["factor"]
    before = np.linalg.norm(_apply(rule, x, w, r) - x[who])
    after = np.linalg.norm(_apply(rule, x, more, r) - x[who])
    return None if after <= before + _tolerance(rule, x) else f"distance to it grew from {before} to {after}"


@law(
    "breakdown",
    "The contributors that a rule declares to withstand, at least one, move it only so far.",
    "attack",
    vectors=True,
)
def _breakdown(rule: Rule, case: Case) -> str | None:
    x, w = case["x"], np.ones(len(case["x"]))
    # A rule that withstands nobody, however many there are, is tried with one attacker.
    f = rule.tolerates(len(x)) if rule.tolerates(1000) else 1
    honest = x[f:]
    attacked = x.copy()
    attacked[:f] = (x[:f] * case["attack"]).astype(x.dtype)
    spread = max(float(np.linalg.norm(a - b)) for a in honest for b in honest)
    bound = rule.breakdown_factor(*x.shape) * spread + _tolerance(rule, honest)
    moved = float(np.linalg.norm(_apply(rule, attacked, w, _reference(case)) - honest.mean(axis=0)))
    return None if moved <= bound else f"{f} of {len(x)} moved it {moved:g}, more than {bound:g}"


@law("mergeable", "Parts combined apart and then together give the whole.", "cut")
def _mergeable(rule: Rule, case: Case) -> str | None:
    x, w, cut = case["x"], case["weights"], case["cut"]
    parts = [rule.fold(), rule.fold()]
    for k in range(len(x)):
        parts[k >= cut].add(x[k], w[k])
    return _differs(rule, np.asarray(parts[0].merge(parts[1]).result().value), _apply(rule, x, w, _reference(case)), x)


@law("deterministic", "The same contributions give the same bits, wherever they lie in memory.")
def _deterministic(rule: Rule, case: Case) -> str | None:
    x, w, r = case["x"], case["weights"], _reference(case)
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    first, second, third = (
        _apply(rule, np.ascontiguousarray(x), w, r),
        _apply(rule, x, w, r),
        _apply(rule, strided, w, r),
    )
    return None if first.tobytes() == second.tobytes() == third.tobytes() else "bits differ between two runs"


def check(
    rule: Rule,
    laws: Iterable[str] | None = None,
    *,
    examples: int = 100,
    seed: int = 0,
    dtype: Any = np.float64,
    after: Callable[[Verdict], None] = lambda verdict: None,
) -> dict[str, Verdict]:
    """Try to break laws of a rule.

    Parameters
    ----------
    rule
        Any rule.
    laws
        Names of laws; None is all of them.
    examples
        How many random cases of each.
    seed
        The same seed gives the same cases.
    dtype
        float64 or float32.
    after
        Told each verdict as it is found, for progress.

    Returns
    -------
    dict
        A `Verdict` for each law, with a small counterexample where it is broken.
    """
    names = list(LAWS) if laws is None else list(laws)
    unknown = [name for name in names if name not in LAWS]
    if unknown:
        raise RuleError(f"no law is called {unknown[0]!r}; the laws are {', '.join(LAWS)}")
    found = {}
    for name in names:
        found[name] = _search(rule, LAWS[name], examples, seed, np.dtype(dtype))
        after(found[name])
    return found


def replay(rule: Rule, name: str, case: Mapping[str, Any]) -> str | None:
    """Test one stored case: None when the law holds there, and else what went wrong."""
    return _tested(rule, LAWS[name], {k: np.asarray(v) if isinstance(v, list) else v for k, v in case.items()})


class _BrokenError(Exception):
    """A case broke the law."""


def _tested(rule: Rule, tested: Law, case: Case) -> str | None:
    try:
        return tested.test(rule, case)
    except UndefinedError:
        return None
    except PluribusError as error:
        return f"raised {type(error).__name__}: {error}"


def _search(rule: Rule, tested: Law, examples: int, seed: int, dtype: np.dtype[Any]) -> Verdict:
    if not tested.applies(rule):
        return Verdict(tested.name, None)
    hypothesis = require("hypothesis", "laws")
    worst: dict[str, Any] = {}

    def attempt(case: Case) -> None:
        message = _tested(rule, tested, case)
        if message:
            worst.update(case=case, message=message)
            raise _BrokenError(message)

    run = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )(hypothesis.seed(seed)(hypothesis.given(_cases(rule, tested, dtype))(attempt)))
    try:
        with _caches_elsewhere():
            run()
    except _BrokenError:
        return Verdict(tested.name, False, _plain(worst["case"]), worst["message"])
    return Verdict(tested.name, True)


@contextlib.contextmanager
def _caches_elsewhere() -> Iterator[None]:
    """hypothesis caches what it reads of modules, even without a database: not in the user's folder."""
    configuration = require("hypothesis.configuration", "laws")
    before = getattr(configuration, "__hypothesis_home_directory", None)
    configuration.set_hypothesis_home_dir(_cache_folder())
    try:
        yield
    finally:
        configuration.set_hypothesis_home_dir(before)


@lru_cache(maxsize=1)
def _cache_folder() -> Path:
    """A folder that goes when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="pluribus-laws-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _cases(rule: Rule, tested: Law, dtype: np.dtype[Any]) -> Any:
    """A hypothesis strategy for cases of a law: n from the fewest the rule takes, d from 1 to 3."""
    st = require("hypothesis.strategies", "laws")
    grid = st.integers(-8, 8) if tested.generic else st.integers(-2, 2)

    extreme = [1e-120, 1e120] if tested.name == "scale" and dtype == np.float64 else []
    factors = [2.0, 0.5, 3.0, 1000.0, 0.001, *extreme]

    def drawn(draw: Any) -> Case:
        least = max(2, rule.least)
        n, d = draw(st.integers(least, least + 4)), draw(st.integers(1, 3))
        x = np.array(draw(st.lists(st.lists(grid, min_size=d, max_size=d), min_size=n, max_size=n)), dtype=float)
        if tested.generic:
            x += 0.01 * np.random.default_rng(draw(st.integers(0, 99))).standard_normal((n, d))
        x = rule.draw(x)
        case: Case = {"x": x.astype(dtype) if x.dtype.kind == "f" else x}
        if rule.needs_reference:
            noise = 0.01 * np.random.default_rng(d).standard_normal(d) if tested.generic else 0.0
            case["reference"] = np.array(draw(st.lists(grid, min_size=d, max_size=d)), dtype=float) + noise
        case["weights"] = np.array(draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)), dtype=float)
        extra: dict[str, Callable[[], Any]] = {
            "order": lambda: np.array(draw(st.permutations(range(n)))),
            "extra": lambda: np.array(draw(st.lists(st.sampled_from([0.0, 1e6, np.nan]), min_size=d, max_size=d))),
            "shift": lambda: np.array(draw(st.lists(st.integers(-100, 100), min_size=d, max_size=d)), dtype=float),
            "factor": lambda: draw(st.sampled_from(factors)),
            "angle": lambda: draw(st.sampled_from([np.pi / 2, np.pi / 4, 0.3])),
            "who": lambda: draw(st.integers(0, n - 1)),
            "attack": lambda: draw(st.sampled_from([1.0, -1.0, 1e3, -1e3, 1e8, 3.0])),
            "cut": lambda: draw(st.integers(0, n)),
        }
        return case | {name: extra[name]() for name in tested.needs}

    build: Any = st.composite(drawn)
    return build()


def _plain(case: Case) -> Case:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in case.items()}


# --- what is known of the named rules -------------------------------------------------------------------------------

STORE = Path(__file__).with_name("counterexamples")


def example_rules() -> dict[str, Rule]:
    """One instance of every registered rule, by name, on which its laws are checked."""
    importlib.import_module("pluribus.rules")  # registers them; the core imports no rule itself
    return {name: cls(**dict(cls.example)) for name, cls in registered().items()}


def stored() -> dict[str, dict[str, Any]]:
    """Known counterexamples: ``{rule: {law: {"case": ..., "message": ...}}}``."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(STORE.glob("*.json"))}


def store(verdicts: Mapping[str, Mapping[str, Verdict]], folder: Path = STORE) -> None:
    """Write the counterexamples of verdicts, a file a rule; what was there for that rule and those laws goes."""
    from pluribus.core.files import write_text

    for name, found in verdicts.items():
        path = folder / f"{name}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        kept = {law: entry for law, entry in known.items() if law not in found}
        broken = {v.law: {"case": v.counterexample, "message": v.message} for v in found.values() if v.holds is False}
        table = kept | broken
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({law: table[law] for law in LAWS if law in table}, indent=1) + "\n")
