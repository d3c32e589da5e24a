"""``pluribus federate GRID.toml`` and ``pluribus federate compare``."""

from __future__ import annotations

import json

import pytest

from pluribus.cli import main

TOML = """
clients = 5
rounds = 2
model = "softmax"
rules = ["fedavg", "median"]
seeds = 2
epochs = 1
workers = 1
attack = ["none", "sign_flip:1:9"]
out = "runs"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(TOML)
    return path


def federate(*arguments) -> int:
    return main(["federate", *map(str, arguments)])


def test_a_grid_by_one_file(file, capsys):
    out = file.parent / "runs"
    assert federate(file, "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == ["attack-none", "attack-sign_flip-1-9", "2 experiments, 8 runs"]
    assert federate(file, "--resume") == 2
    assert "nothing to resume" in capsys.readouterr().err
    assert federate(file) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert "[2] attack-sign_flip-1-9 sign_flip:1:9" in " ".join(told.out.split())
    assert "experiment 2 of 2: attack-sign_flip-1-9" in told.err
    assert federate("--resume", "--out", out, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["made_now"] is False
    assert list(again["cells"]) == ["attack-none", "attack-sign_flip-1-9"]


def test_a_stopped_grid_says_how_to_go_on(file, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pluribus.federated.experiment.run", stop)
        assert federate(file) == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"--resume --out {file.parent / 'runs'}")
    assert federate("--resume", "--out", file.parent / "runs", "--quiet") == 0


def test_compare_grids_and_experiments(file, tmp_path, capsys, monkeypatch):
    assert federate(file, "--quiet") == 0
    assert federate(file, "--attack", "none", "--rounds", 3, "--out", tmp_path / "longer", "--quiet") == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert federate("compare", "runs", "longer", "--out", "side.html") == 0
    lines = capsys.readouterr().out.splitlines()
    shown = " ".join(" ".join(lines).split())
    assert "experiment rounds attack" in shown
    assert "[3] longer 3 none" in shown
    assert lines[-1] == "report: side.html"
    page = (tmp_path / "side.html").read_text(encoding="utf-8")
    assert 'href="runs/attack-none/report.html"' in page
    assert 'href="longer/report.html"' in page
    assert federate("compare", "runs", "longer", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differing"] == {"attack": ["none", "sign_flip:1:9", "none"], "rounds": [2, 2, 3]}
    assert [one["name"] for one in found["experiments"]][2] == "longer"
    assert federate("compare", "runs", "nowhere") == 2
    assert "nowhere holds no finished experiment" in capsys.readouterr().err


def test_compare_without_folders_and_its_help(capsys):
    assert federate("compare") == 2
    assert "federate compare --help" in capsys.readouterr().err
    assert federate("compare", "--help") == 0
    assert "side by side" in capsys.readouterr().out


def test_an_engine_that_is_none(capsys):
    assert federate("--engine", "proceses", "--dry-run") == 2
    assert "did you mean processes?" in capsys.readouterr().err
