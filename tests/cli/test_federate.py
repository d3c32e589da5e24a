"""``pluribus federate``: what goes to which stream, where settings come from, and going on."""

from __future__ import annotations

import json
import sys

import pytest

from pluribus.cli import main, progress, show
from pluribus.federated import Layer, resolve
from pluribus.federated.workers import Board, Task

TINY = [
    *("--clients", "6", "--rounds", "3", "--rules", "fedavg,median", "--model", "softmax"),
    *("--seeds", "2", "--attack", "none", "--workers", "1"),
]


def federate(*arguments: object) -> int:
    return main(["federate", *map(str, arguments)])


def test_a_table_progress_and_files(tmp_path, capsys):
    assert federate(*TINY, "--out", tmp_path) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    heads = [line.split() for line in lines[:2]]
    assert heads == [
        ["against", "worst", "effective", "MB", "CPU", "s"],
        ["rule", "accuracy", "fedavg", "client", "clients", "moved", "a", "run"],
    ]
    first = next(line for line in lines if line.strip().startswith("fedavg"))
    assert "baseline" in first
    assert "±" in first
    assert lines[-1] == f"report: {tmp_path / 'report.html'}"
    assert (tmp_path / "report.html").exists()
    assert "6 clients" in told.err.splitlines()[0]
    assert "4/4 runs, median, seed 1: accuracy" in told.err


def test_json_alone_on_the_output_stream(tmp_path, capsys):
    assert federate(*TINY, "--out", tmp_path, "--json", "--rules", "median,fedlaw", "--proxy", 20) == 0
    told = capsys.readouterr()
    assert told.err == ""
    result = json.loads(told.out)
    assert [row["rule"] for row in result["rules"]] == ["fedavg", "median", "fedlaw", "finetune"]
    assert result["made_now"] is True
    assert len(result["told"]) == 2
    assert result["notes"] == []
    assert len(result["timing"]["seconds"]["fedlaw"]["cpu"]) == 2
    assert result["out"] == str(tmp_path)
    assert federate(*TINY, "--out", tmp_path, "--json", "--rules", "median,fedlaw", "--proxy", 20) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["made_now"] is False
    assert again["rules"] == result["rules"]


def test_quiet_is_the_table_alone(tmp_path, capsys):
    assert federate(*TINY, "--out", tmp_path, "--quiet", "--attack", "nan:1", "--label-noise", "1:0.5") == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "attackers'" in told.out
    assert "noisy clients'" in told.out
    assert "report:" not in told.out


def test_the_plain_command_twice_in_a_row(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert federate(*TINY) == 0
    first = capsys.readouterr().out
    assert federate(*TINY) == 0
    told = capsys.readouterr()
    assert told.out == first
    assert "holds this experiment already" in told.err
    assert (tmp_path / "pluribus-out" / "federate" / "summary.json").exists()


def test_a_file_then_options(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text('[federate]\nclients = 5\nrounds = 9\nrules = ["krum:f=1"]\nout = "there"\nworkers = 1\n')
    assert federate(file, "--rounds", 2, "--seeds", 1, "--model", "softmax", "--attack", "none", "--json") == 0
    binding = json.loads(capsys.readouterr().out)["binding"]
    assert (binding["clients"], binding["rounds"], binding["rules"]) == (5, 2, ["fedavg", "krum:f=1"])
    again = tmp_path / "there" / "config.toml"
    assert federate(again, "--out", tmp_path / "other", "--quiet") == 0
    for name in ("summary.json", "report.html", "rounds.csv", "weights.csv", "clients.csv", "config.toml"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_what_was_stopped_goes_on_without_its_options(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pluribus.federated.workers.work", stop)
        patch.setattr("pluribus.federated.experiment.work", stop)
        assert federate(*TINY, "--out", out) == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"pluribus federate --resume --out {out}")
    assert federate(*TINY, "--out", out) == 2
    assert "--resume" in capsys.readouterr().err
    assert federate("--resume", "--out", out, "--rounds", 4) == 2
    assert "differs in rounds (3 there, 4 here)" in capsys.readouterr().err
    assert federate("--resume", "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["binding"]["clients"] == 6
    assert federate("--resume", "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["made_now"] is False


def test_rounds_without_a_step_are_told(tmp_path, capsys):
    rules = ["--rules", "krum:f=1", "--participation", "cyclic:2"]
    assert federate(*TINY, *rules, "--out", tmp_path) == 0
    expected = "krum:f=1: the model stayed as it was in 6 of 6 rounds: too few for the rule."
    assert expected in capsys.readouterr().err.splitlines()
    assert expected in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_nothing_to_resume(tmp_path, capsys):
    new = tmp_path / "new"
    for settings in ([], TINY):
        assert federate(*settings, "--resume", "--out", new) == 2
        assert capsys.readouterr().err.startswith(f"pluribus: nothing to resume in {new}; ")
    assert not new.exists()
    assert federate(*TINY, "--resume", "--force", "--quiet", "--out", new) == 0


@pytest.mark.parametrize("step", ["resolve", "read_workers"])
def test_stopped_before_anything_was_stored(tmp_path, capsys, monkeypatch, step):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"pluribus.federated.config.{step}", stop)
    assert federate(*TINY, "--out", tmp_path) == 130
    expected = "pluribus: stopped; nothing was stored yet; run the same command again\n"
    assert capsys.readouterr().err == expected
    monkeypatch.undo()
    monkeypatch.setattr("pluribus.federated.experiment.load", stop)
    assert federate(*TINY, "--out", tmp_path) == 130
    assert capsys.readouterr().err == expected


def test_a_failing_run_is_code_1(tmp_path, capsys):
    rules = "median:nonfinite=raise"
    assert federate(*TINY, "--rules", rules, "--attack", "nan:1", "--quiet", "--out", tmp_path) == 1
    assert capsys.readouterr().err.startswith("pluribus: median:nonfinite=raise, seed 0, round 1: ")


def test_a_dry_run_shows_the_clients(tmp_path, capsys):
    out = tmp_path / "out"
    assert federate(*TINY, "--dry-run", "--out", out, "--attack", "nan:1", "--label-noise", "1:1") == 0
    told = capsys.readouterr().out
    assert 'partition = "dirichlet:0.5"' in told
    assert "attacks" in told
    assert federate(*TINY, "--dry-run", "--json", "--out", out) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["label_counts"]) == 6
    assert facts["config"]["clients"] == 6
    assert not out.exists()


# --- pieces ---------------------------------------------------------------------------------------------------------


def board_of(rounds, accuracy) -> Board:
    board = Board.shared(len(rounds))
    board.rounds[:], board.accuracy[:] = rounds, accuracy
    return board


@pytest.fixture
def tasks(tmp_path):
    return [Task(rule, 0, tmp_path, "x") for rule in ("fedavg", "median")]


def test_lines_where_there_is_no_terminal(tasks, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    settings = resolve(Layer({"rules": "median", "rounds": 10, "seeds": 1}))[0]
    shown = progress._Lines(settings)
    shown.begin(settings, tasks)
    shown.look(board_of([5, 0], [0.5, float("nan")]))
    shown.look(board_of([10, 2], [0.75, 0.1]))
    told = capsys.readouterr().err.splitlines()
    assert told[1].endswith("0/2 runs, 25.0 % of all rounds")
    assert told[2].endswith("1/2 runs, fedavg, seed 0: accuracy 75.0 %")


def test_a_file_of_data_is_told_by_its_name():
    settings = resolve(Layer({"data": "/far/away/in/some/folder/mine.csv"}))[0]
    assert progress.heading(settings, 3).startswith("mine.csv: 20 clients")


def test_bars_on_a_terminal(tasks, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    settings = resolve(Layer({"rules": "median", "rounds": 10, "seeds": 1}))[0]
    watch = progress.watch(settings)
    bars = watch.begin.__self__
    assert isinstance(bars, progress._Bars)
    watch.begin(settings, tasks)
    watch.look(board_of([10, 4], [0.75, float("nan")]))
    watch.end()
    done = {task.description: (task.completed, task.finished) for task in bars.progress.tasks}
    assert done == {"fedavg": (10, True), "median": (4, False)}
    assert bars.progress.tasks[0].fields["accuracy"] == "75.0 %"


def test_missing_numbers_are_dashes():
    nothing = {"mean": None, "spread": None}
    row = {
        "rule": "a",
        "label": "A",
        **dict.fromkeys(
            ("accuracy", "worst_client", "effective_clients", "gain", "bytes", "seconds_to_target"), nothing
        ),
    }
    heads, rows = show.table(
        {"rules": [row], "attackers": {"0": []}, "noisy": {"0": []}, "binding": {"schedule": "async", "target": 0.9}},
        {},
    )
    assert len(heads) == len(rows[0])
    assert rows[0] == ["a", "–", "baseline", *["–"] * 5]
