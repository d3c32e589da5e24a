"""Laws that rules declare, and a search that tries to break each: for our rules and for anybody's.

>>> from pluribus import laws, rules
>>> laws.check(rules.Median(), ["rotation"])["rotation"].holds
False

A law is a statement about a rule and a small random case. Cases are drawn by hypothesis, which shrinks what breaks a
law to a small counterexample. Values lie on a grid, with a little noise so that nothing ties by accident: a rule that
chooses one of several is not blamed for how it breaks ties, except by the law about ties. A rule that needs a reference
gets one, which moves, scales and turns with the contributions. A case for which a rule has no answer by nature
(`UndefinedError`: antipodal points on a sphere) is none. Laws about vectors say nothing about a rule on other things:
that is a verdict of its own, *not applicable*. So is the law of derivatives on float32, whose results have too few
digits to tell a kink from rounding: it is tried on float64 alone.

What the laws say is in `pluribus.core.law_statements`; the kinds of array that they are tried on, numpy's and torch's,
in `pluribus.core.law_arrays`.
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

from pluribus.core.errors import PluribusError, RuleError, UndefinedError, require
from pluribus.core.law_arrays import DEFAULT, KINDS, Kind, kinds
from pluribus.core.law_statements import LAWS, Case, Law, Trial
from pluribus.core.registry import registered
from pluribus.core.rule import Rule

__all__ = [
    "KINDS", "LAWS", "STORE", "Case", "Kind", "Law", "Verdict", "check", "example_rules", "replay", "store", "stored",
]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What a search found. ``counterexample`` is a case that breaks the law, as small as shrinking made it.

    Its ``"arrays"`` name the kind of array on which the law broke. ``holds`` is None where the law is not applicable to
    the rule or to the kinds of array; `word` says which of the three it is.
    """

    law: str
    holds: bool | None
    counterexample: Case | None = field(default=None)
    message: str | None = None

    @property
    def word(self) -> str:
        """``"holds"``, ``"broken"`` or ``"not applicable"``."""
        return {True: "holds", False: "broken", None: "not applicable"}[self.holds]


def check(
    rule: Rule,
    laws: Iterable[str] | None = None,
    *,
    examples: int = 100,
    seed: int = 0,
    arrays: str | Iterable[str] = DEFAULT,
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
    arrays
        The kinds of array that contributions are: one or more of ``"numpy-float64"``, ``"numpy-float32"``,
        ``"torch-float64"`` and ``"torch-float32"``, or ``"numpy"`` or ``"torch"`` for both widths. Each is searched
        with as many cases, in turn, until one breaks the law. Tensors are combined as on a CUDA device
        (``engine="torch"``).
    after
        Told each verdict as it is found, for progress.

    Returns
    -------
    dict
        A `Verdict` for each law, with a small counterexample where it is broken.

    Raises
    ------
    RuleError
        No law or no kind of array is called so.
    MissingExtraError
        hypothesis, or the library of the arrays, is not installed.
    """
    names = list(LAWS) if laws is None else list(laws)
    unknown = [name for name in names if name not in LAWS]
    if unknown:
        raise RuleError(f"no law is called {unknown[0]!r}; the laws are {', '.join(LAWS)}")
    tried = kinds(arrays)
    found = {}
    for name in names:
        found[name] = _searched(rule, LAWS[name], examples, seed, tried)
        after(found[name])
    return found


def replay(rule: Rule, name: str, case: Mapping[str, Any]) -> str | None:
    """Test one stored case: None when the law holds there, and else what went wrong.

    It is tried on the kind of array that its ``"arrays"`` names, numpy's float64 where it names none.
    """
    kind = KINDS[case.get("arrays", DEFAULT)]
    restored = {k: np.asarray(v) if isinstance(v, list) else v for k, v in case.items()}
    return _tested(Trial(rule, kind), LAWS[name], restored | {"x": kind.narrowed(restored["x"])})


class _BrokenError(Exception):
    """A case broke the law."""


def _tested(trial: Trial, tested: Law, case: Case) -> str | None:
    try:
        return tested.test(trial, case)
    except UndefinedError:
        return None
    except PluribusError as error:
        return f"raised {type(error).__name__}: {error}"


def _searched(rule: Rule, tested: Law, examples: int, seed: int, tried: Iterable[Kind]) -> Verdict:
    """The first verdict of those on each kind that is not that the law holds."""
    tried = [kind for kind in tried if kind.width in tested.widths]
    if not tried or not tested.applies(rule):
        return Verdict(tested.name, None)
    verdicts = (_search(Trial(rule, kind), tested, examples, seed) for kind in tried)
    return next((verdict for verdict in verdicts if not verdict.holds), Verdict(tested.name, True))


def _search(trial: Trial, tested: Law, examples: int, seed: int) -> Verdict:
    hypothesis = require("hypothesis", "laws")
    worst: dict[str, Any] = {}

    def attempt(case: Case) -> None:
        message = _tested(trial, tested, case)
        if message:
            worst.update(case=case, message=message)
            raise _BrokenError(message)

    run = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )(hypothesis.seed(seed)(hypothesis.given(_cases(trial, tested))(attempt)))
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


def _cases(trial: Trial, tested: Law) -> Any:
    """A hypothesis strategy for cases of a law: n from the fewest the rule takes, d from 1 to 3."""
    rule, kind = trial.rule, trial.kind
    st = require("hypothesis.strategies", "laws")
    grid = st.integers(-8, 8) if tested.generic else st.integers(-2, 2)

    extreme = [1e-120, 1e120] if tested.name == "scale" and kind.width == "float64" else []
    factors = [2.0, 0.5, 3.0, 1000.0, 0.001, *extreme]

    def drawn(draw: Any) -> Case:
        least = max(2, rule.least)
        n, d = draw(st.integers(least, least + 4)), draw(st.integers(1, 3))
        x = np.array(draw(st.lists(st.lists(grid, min_size=d, max_size=d), min_size=n, max_size=n)), dtype=float)
        if tested.generic:
            x += 0.01 * np.random.default_rng(draw(st.integers(0, 99))).standard_normal((n, d))
        case: Case = {"arrays": kind.name, "x": kind.narrowed(rule.draw(x))}
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
            "direction": lambda: np.array(
                draw(st.lists(st.lists(st.integers(-2, 2), min_size=d, max_size=d), min_size=n, max_size=n)),
                dtype=float,
            ),
            "noise": lambda: draw(st.sampled_from([0.0, 0.0, 0.3])) * np.random.default_rng(n).standard_normal((n, d)),
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
