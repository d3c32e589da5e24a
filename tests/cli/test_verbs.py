"""``catalog``, ``laws`` and ``doctor``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pluribus.cli import main
from pluribus.core import catalogue, laws
from pluribus.core.errors import RuleError
from pluribus.federated import methods, server
from pluribus.rules import NNM, Krum, Median, chain, registered

laws_stored = laws.store


def test_the_catalogue_holds_every_named_method_once(capsys):
    assert main(["catalog", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"numbers", "name", "room", "where", "status"} == set(rows[0])
    names = [(row["room"], row["name"]) for row in rows]
    assert len(names) == len(set(names))
    assert {name for room, name in names if room == "rules"} == set(registered())
    assert {name for room, name in names if room == "federated"} == {*server.registered(), *methods.registered()}
    numbers = [number for row in rows for number in row["numbers"]]
    assert {54, 149, 161, 206, 371} <= set(numbers)
    law = next(row for row in rows if row["name"] == "fedlaw")
    assert law == {
        "numbers": [0], "name": "fedlaw", "room": "federated",
        "where": "pluribus.federated.server.fedlaw.FedLAW", "status": "built",
    }  # fmt: skip
    assert all(row["status"] == "built" for row in rows)
    numbered = [row["numbers"] for row in rows if row["numbers"]]
    assert numbered == sorted(numbered)
    assert [row["numbers"] for row in rows[: len(numbered)]] == numbered


def test_the_catalogue_as_a_table(capsys):
    assert main(["catalog"]) == 0
    told = capsys.readouterr().out
    assert "fedlaw" in told
    assert len(told.splitlines()) >= len(catalogue.entries())


def test_the_catalogue_about_one_method(capsys):
    assert main(["catalog", "Multi-Krum"]) == 0
    told = capsys.readouterr().out
    lines = {line.split()[0]: line for line in told.splitlines()[:8]}
    assert lines["parameters"].split()[1:] == ["f,", "m=None"]
    for name, part in (("reads", "gram"), ("laws", "breakdown"), ("source", "NeurIPS 2017"), ("formula", "n-f-2")):
        assert part in lines[name]
    assert "How many contributors may be arbitrary" in told
    assert main(["catalog", "fedlaw", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert "gamma=learned" in found["parameters"]
    assert main(["catalog", "fedlow"]) == 2
    assert "did you mean fedlaw" in capsys.readouterr().err


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_every_method_can_tell_about_itself(capsys, entry):
    assert main(["catalog", entry.name]) == 0
    assert entry.where in capsys.readouterr().out


def test_laws_leave_nothing_in_the_folder_and_tell_each(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["laws", "median", "mean", "--law", "unanimity", "--law", "null", "--examples", "5"]) == 0
    assert capsys.readouterr().err == "trying [1/2] median .. 2 laws\ntrying [2/2] mean .. 2 laws\n"
    code = "import sys; from pluribus.cli import main; sys.exit(main(['laws', 'median', '--examples', '2']))"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []


def test_laws_of_a_rule(capsys):
    arguments = ["laws", "median", "--law", "rotation", "--law", "unanimity", "--examples", "60"]
    assert main(arguments) == 0
    told = capsys.readouterr()
    lines = {line.split()[0]: line.split()[-1] for line in told.out.splitlines() if line.strip()}
    assert (lines["rotation"], lines["unanimity"]) == ("no", "holds")
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rules"]
    assert found["median"]["unanimity"] == "holds"
    assert len(found["median"]["rotation"]["counterexample"]["x"]) >= 2
    assert found["median"]["rotation"]["message"]


def test_laws_on_tensors(capsys):
    pytest.importorskip("torch")
    arguments = ["laws", "median", "--law", "rotation", "--law", "null", "--examples", "40", "--json"]
    assert main([*arguments, "--arrays", "torch"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"rules"}
    assert found["rules"]["median"]["null"] == "holds"
    assert found["rules"]["median"]["rotation"]["counterexample"]["arrays"] == "torch-float64"
    assert main([*arguments, "--arrays", "numpy-float32", "--arrays", "torch"]) == 0
    found = json.loads(capsys.readouterr().out)["rules"]
    assert found["median"]["rotation"]["counterexample"]["arrays"] == "numpy-float32", "in the order given"
    assert main([*arguments, "--arrays", "jax"]) == 2
    assert "no kind of array is called 'jax'; there are numpy, torch, numpy-float64" in capsys.readouterr().err


def test_laws_of_a_rule_with_parameters(capsys):
    assert main(["laws", "krum:f=2", "Krum", "--law", "unanimity", "--examples", "3", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["rules"]) == {"krum:f=2", "Krum"}
    assert main(["laws", "krum:f=2", "--law", "unanimity", "--examples", "3", "--store"]) == 2
    assert "krum:f=2 is none" in capsys.readouterr().err


def test_counterexamples_are_kept_on_demand(tmp_path, monkeypatch):
    monkeypatch.setattr(laws, "store", lambda found: laws_stored(found, tmp_path))
    assert main(["laws", "median", "--law", "rotation", "--law", "null", "--examples", "20", "--store"]) == 0
    assert list(json.loads((tmp_path / "median.json").read_text())) == ["rotation"]


OWN = """
from dataclasses import dataclass
from pluribus.rules import Median

@dataclass(frozen=True)
class Boastful(Median):
    laws = frozenset({"rotation"})

rule = Median()
number = 3

def needs(x):
    return rule
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_rules_of_a_user.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    return "own_rules_of_a_user"


def test_a_rule_of_ones_own_that_breaks_what_it_declares(own, capsys):
    assert main(["laws", f"{own}:Boastful", "--law", "rotation", "--examples", "60"]) == 1
    told = capsys.readouterr().out
    assert "BROKEN" in told
    assert f"{own}:Boastful breaks 'rotation': gave " in told


def test_rules_by_place(own):
    assert catalogue.rules_named([f"{own}:rule"]) == {f"{own}:rule": Median()}
    assert set(catalogue.rules_named([])) == set(registered())
    assert catalogue.rules_named(["krum:f=2", "NNM:f=1 + median", "krum"]) == {
        "krum:f=2": Krum(2),
        "NNM:f=1 + median": chain(NNM(1), Median()),
        "krum": Krum(1),
    }
    for place, message in (
        (f"{own}:none", "has no 'none'"),
        (f"{own}:number", "is a int"),
        (f"{own}:needs", "cannot be called without arguments"),
        ("no_such_module_at_all:x", "'no_such_module_at_all' is no rule's name, and as a module it cannot be imported"),
        ("krun:f=2", "no rule is called 'krun'; did you mean krum"),
        ("krum:g=2", "Krum takes f, not g"),
        ("krum:f", "'f' is no option; write krum:name=value"),
        (":x", "':x' is neither a named rule nor a place; write krum:f=2, or my_module:MyRule"),
        (f"{own}:", "is neither a named rule nor a place"),
    ):
        with pytest.raises(RuleError, match=message):
            catalogue.rules_named([place])


def test_the_doctor(capsys):
    assert main(["doctor"]) == 0
    assert "numpy" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kernels"] in ("plain", "compiled")
    assert facts["processors"] >= 1
    assert "extra torch" in facts
