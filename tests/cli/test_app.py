"""The command as a whole: quick help, errors of one line, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pluribus.cli import app, main

HEAVY = "numpy scipy sklearn numba torch rich jinja2 safetensors hypothesis ray flwr"
CODE = f"""
import sys, time
start = time.process_time()
from pluribus.cli import main
assert main(sys.argv[1:]) == 0
taken = time.process_time() - start
found = [m for m in {HEAVY.split()!r} if m in sys.modules]
assert not found, found
assert taken < 0.3, taken
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["federate", "--help"], ["laws", "-h"]])
def test_help_is_quick_and_brings_nothing_heavy(arguments):
    told = subprocess.run([sys.executable, "-c", CODE, *arguments], check=True, capture_output=True, text=True)
    assert "luribus" in told.stdout


def test_every_verb_has_help(capsys):
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for verb in app.VERBS:
        assert f"\n  {verb}" in listed
        assert main([verb, "--help"]) == 0
        assert capsys.readouterr().out.startswith("Usage: pluribus ")


def test_without_a_verb_there_is_help(capsys):
    assert main(["--help"]) == 0
    expected = capsys.readouterr().out
    assert main([]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["federat"], "federat"),
        (["federate", "--round", "3"], "--round"),
        (["federate", "--rounds"], "requires an argument"),
        (["federate", "--rounds", "x"], "--rounds is 'x'; expected a whole number"),
        (["federate", "--rules", "nope"], "--rules: no rule is called 'nope'"),
        (["federate", "--alpha", "0.1", "--partition", "iid"], "--alpha is short for"),
        (["federate", "nowhere.toml"], "nowhere.toml: no such file"),
        (["federate", "a", "b"], "unexpected extra argument"),
        (["federate", "--workers", "none"], "--workers is 'none'"),
        (["federate", "--data", "nowhere.csv"], "nowhere.csv: no such file"),
        (["laws", "nope"], "no rule is called 'nope'"),
        (["laws", "--law", "nope", "median"], "no law is called 'nope'"),
        (["laws", "--examples", "0"], "0 is not in the range"),
        (["catalog", "--jso"], "--jso"),
    ],
)
def test_a_wrong_value_is_one_line_and_code_2(capsys, arguments, message):
    assert main(arguments) == 2
    told = capsys.readouterr()
    last = told.err.splitlines()[-1]
    assert message in last
    assert last.startswith("pluribus: ")
    assert "Traceback" not in told.err
    assert told.out == ""


def test_what_fails_under_way_is_code_1(capsys, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device", "/there/x")

    monkeypatch.setattr("pluribus.federated.experiment.run", fail)
    assert main(["federate", "--quiet"]) == 1
    assert capsys.readouterr().err == "pluribus: /there/x: No space left on device\n"


def test_out_of_memory_is_told(capsys, monkeypatch):
    def fail(*_, **__):
        raise MemoryError("Unable to allocate 46 TiB")

    monkeypatch.setattr("pluribus.federated.experiment.run", fail)
    assert main(["federate", "--quiet"]) == 1
    assert capsys.readouterr().err == "pluribus: out of memory: Unable to allocate 46 TiB\n"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_reader_who_has_seen_enough_gets_no_traceback():
    code = "import sys; from pluribus.cli import main; sys.exit(main(['catalog', '--json']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1
    process.stderr.close()


def test_a_terminal_that_knows_few_letters_gets_its_table(tmp_path):
    tiny = "--clients 4 --rounds 1 --rules fedavg --model softmax --seeds 2 --attack none --workers 1"
    code = "import sys; from pluribus.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "federate", *tiny.split(), "--out", str(tmp_path)]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert "fedavg" in told.stdout
    assert "?" in told.stdout
