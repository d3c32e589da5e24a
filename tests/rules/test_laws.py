"""Every registered rule: the laws it declares hold on every kind of array, and what it does not declare is broken.

Each law that a rule does not declare has a stored counterexample.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from pluribus import laws, rules
from pluribus.core.errors import MissingExtraError
from pluribus.core.passes import by_kernel
from pluribus.core.rule import CoordinateRule, PointRule, WeightRule

RULES = laws.example_rules()
# Many cases where laws are decided; on the others fewer, which show that what differs between kinds is right there too.
EXAMPLES = {"numpy-float64": 40, "numpy-float32": 15, "torch-float64": 6, "torch-float32": 6}

with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")


@pytest.mark.parametrize(
    "arrays", [pytest.param(kind, marks=[with_torch] if "torch" in kind else []) for kind in laws.KINDS]
)
@pytest.mark.parametrize("name", sorted(RULES))
def test_declared_laws_hold(name, arrays):
    rule = RULES[name]
    found = laws.check(rule, sorted(rule.laws), examples=EXAMPLES[arrays], arrays=arrays)
    broken = {law: (v.message, v.counterexample) for law, v in found.items() if v.holds is False}
    assert not broken


@pytest.mark.parametrize("name", sorted(RULES))
def test_what_is_not_declared_has_a_counterexample(name):
    rule, known = RULES[name], laws.stored().get(name, {})
    speaking = {name for name, law in laws.LAWS.items() if law.applies(rule)}
    assert set(known) == speaking - rule.laws, "run `pluribus laws --store` and declare what holds"
    for law, found in known.items():
        assert laws.replay(rule, law, found["case"]) is not None, f"{name} does not break {law} there any more"


@dataclass(frozen=True)
class Careless(WeightRule):
    """A rule with faults: the first contributor counts twice, and weights are ignored."""

    def weigh(self, relation, weights):
        w = np.ones(len(weights))
        w[0] = 2.0
        return w / w.sum()


def test_faults_of_a_users_rule_are_found_and_shrunk():
    found = laws.check(Careless(), examples=60)
    broken = {name for name, verdict in found.items() if not verdict.holds}
    assert broken >= {"anonymity", "replication", "mergeable", "breakdown"}
    assert {"unanimity", "translation", "scale", "rotation", "betweenness", "deterministic"}.isdisjoint(broken)
    small = found["anonymity"].counterexample
    assert np.shape(small["x"]) == (2, 1), "shrinking leaves the smallest case"


def test_known_faults_are_seen():
    assert not laws.check(rules.Median(), ["rotation"])["rotation"].holds
    assert not laws.check(rules.Mean(), ["breakdown"])["breakdown"].holds


@dataclass(frozen=True)
class Bent(CoordinateRule):
    """The mean, bent by a function at each coordinate."""

    bend: Callable[[np.ndarray], np.ndarray]

    takes_tensors = False

    def tile_rule(self, weights):
        def tile(kernel, views, out):
            out[...] = self.bend(sum(w * v for w, v in zip(weights, views, strict=True)))
            return True

        return by_kernel(tile)


@pytest.mark.parametrize(
    ("bend", "holds"),
    [
        (np.abs, False), (np.sign, False), (np.floor, False),
        (np.square, True), (np.sin, True), (lambda x: x * abs(x), True),
    ],
    ids=["kink", "jump", "jumps", "curved", "sine", "second derivative jumps"],
)  # fmt: skip
def test_kinks_and_jumps_have_no_derivative_and_curves_have(bend, holds):
    assert laws.check(Bent(bend), ["differentiable"], examples=60)["differentiable"].holds is holds


def test_derivatives_are_told_on_float64_alone():
    median = rules.Median()
    assert laws.check(median, ["differentiable"], arrays="numpy-float32")["differentiable"].word == "not applicable"
    both = laws.check(median, ["differentiable"], arrays=["numpy-float32", "numpy-float64"])["differentiable"]
    assert both.counterexample["arrays"] == "numpy-float64"


def test_the_same_seed_gives_the_same_counterexample():
    one, other = (laws.check(rules.Median(), ["rotation"], seed=5)["rotation"] for _ in range(2))
    assert one == other


@dataclass(frozen=True)
class Smallest(PointRule):
    """The smallest label: a rule that is not on vectors."""

    axes, whole = 0, True
    laws = frozenset({"anonymity"})

    def combine(self, points, weights):
        return points.min(axis=0)

    def complaint(self, points, rounding):
        return None

    def squared_distances(self, points, others):
        return (points != others).astype(float)

    def draw(self, x):
        return np.rint(x).astype(int)


def test_laws_about_vectors_say_nothing_about_labels():
    found = laws.check(Smallest(), examples=20)
    vectors = {"translation", "scale", "rotation", "betweenness", "monotone weight", "breakdown", "differentiable"}
    assert {name for name, verdict in found.items() if verdict.word == "not applicable"} == vectors
    assert {name for name, verdict in found.items() if verdict.word == "broken"} == {"mergeable"}
    assert found["null"].word == "holds"


def test_a_declared_law_is_tried_whatever_it_speaks_of(tmp_path):
    class Eager(Smallest):
        laws = frozenset({"translation", "scale"})

    found = laws.check(Eager(), ["scale", "rotation"], examples=20)
    assert found["scale"].word == "broken", "half of an odd label is no label"
    assert found["rotation"].word == "not applicable"
    laws.store({"eager": found}, tmp_path)
    assert "rotation" not in (tmp_path / "eager.json").read_text()


def test_unknown_law_lists_the_laws():
    with pytest.raises(ValueError, match=r"no law is called 'justice'.*anonymity"):
        laws.check(rules.Mean(), ["justice"])


@dataclass(frozen=True)
class Least(CoordinateRule):
    """The least value at each coordinate; of tensors, through a fault, the first contributor's."""

    laws = frozenset({"anonymity", "translation", "betweenness"})

    def tile_rule(self, weights):
        def tile(kernel, views, out):
            if isinstance(out, np.ndarray):
                return kernel.ranks(views, [0], [out])
            out.copy_(views[0])
            return True

        return by_kernel(tile)


@with_torch
def test_what_breaks_on_tensors_alone_is_found_there():
    least = Least()
    assert all(v.holds for v in laws.check(least, sorted(least.laws), examples=15, arrays="numpy").values())
    found = laws.check(least, sorted(least.laws), examples=15, arrays="torch")
    assert {law for law, v in found.items() if not v.holds} == {"anonymity"}
    small = found["anonymity"].counterexample
    assert small["arrays"] == "torch-float64"
    assert np.shape(small["x"]) == (2, 1), "shrinking leaves the smallest case"
    later = laws.check(least, ["anonymity"], examples=15, arrays=["numpy", "torch-float32"])["anonymity"]
    assert later.counterexample["arrays"] == "torch-float32", "kinds are tried in turn, up to the first that breaks it"


@with_torch
def test_a_counterexample_is_replayed_on_its_kind():
    found = laws.check(Least(), ["anonymity"], examples=15, arrays="torch-float32")["anonymity"]
    case = json.loads(json.dumps(found.counterexample))
    assert laws.replay(Least(), "anonymity", case) == found.message
    assert laws.replay(Least(), "anonymity", case | {"arrays": "numpy-float32"}) is None
    del case["arrays"]
    assert laws.replay(Least(), "anonymity", case) is None, "no kind is numpy's float64"


@dataclass(frozen=True)
class Spy(WeightRule):
    """The mean, but it remembers what contributions and references were."""

    uses_reference, needs_reference = True, "what it is told"

    def weigh(self, relation, weights):
        return weights

    def __call__(self, contributions, weights=None, *, reference=None, **options):
        SEEN.update((type(x).__module__, str(x.dtype), options["engine"]) for x in [*contributions, reference])
        return super().__call__(contributions, weights, reference=reference, **options)


SEEN: set[tuple[str, str, str | None]] = set()


@pytest.mark.parametrize(
    ("arrays", "kinds"),
    [
        ("numpy", {("numpy", "float64", None), ("numpy", "float32", None)}),
        ("numpy-float32", {("numpy", "float32", None)}),
        pytest.param(
            ["torch"], {("torch", "torch.float64", "torch"), ("torch", "torch.float32", "torch")}, marks=with_torch
        ),
    ],
)
def test_rules_see_the_kind_that_was_asked_for(arrays, kinds):
    SEEN.clear()
    found = laws.check(Spy(), ["unanimity", "null", "scale", "rotation", "deterministic"], examples=3, arrays=arrays)
    assert all(verdict.holds for verdict in found.values())
    assert kinds == SEEN


def test_unknown_kinds_list_the_kinds(monkeypatch):
    with pytest.raises(ValueError, match=r"no kind of array is called 'float16'.*numpy, torch, numpy-float64"):
        laws.check(rules.Mean(), ["null"], arrays="float16")
    with pytest.raises(ValueError, match=r"arrays names no kind"):
        laws.check(rules.Mean(), ["null"], arrays=[])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"needs torch.*pluribus\[torch\]"):
        laws.check(rules.Mean(), ["null"], arrays=["numpy", "torch-float32"])


def test_numpy_kinds_bring_no_torch():
    code = (
        "import sys; from pluribus import laws, rules; laws.check(rules.Mean(), ['null'], examples=2, arrays='numpy'); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
