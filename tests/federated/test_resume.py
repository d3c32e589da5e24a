"""Killed at any moment, taken up again: the same bytes as if nothing had happened. With real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pluribus.federated.config_file import to_toml
from pluribus.federated.experiment import run

# Kills itself at the n-th file that it writes: before it is renamed, so that half of it lies there, or after.
KILLER = """
import os, signal, sys
from pathlib import Path
from pluribus.cli import main
from pluribus.federated import workers

when, moment, *arguments = sys.argv[1:]
workers.SAVE_EVERY = 0.0
rename, count = os.replace, 0

def replace(source, target):
    global count
    count += 1
    if count == int(when) and moment == "before":
        Path(source).write_bytes(Path(source).read_bytes()[:7])
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)
    if count == int(when):
        os.kill(os.getpid(), signal.SIGKILL)

os.replace = replace
main(arguments)
print(count)
"""


@pytest.fixture
def whole(settings_of, tmp_path, files):
    """Settings in a file, and the bytes of an unbroken run."""
    settings = settings_of(rounds=3, seeds=1, rules="fedavg,fedadam")
    (tmp_path / "settings.toml").write_text(to_toml(settings), encoding="utf-8")
    run(settings, tmp_path / "whole")
    return settings, tmp_path / "settings.toml", files(tmp_path / "whole")


# 1 mark, 2 x 3 checkpoints, 2 models, 6 texts, 1 summary.
WRITES = 16


@pytest.mark.parametrize(
    ("when", "moment"),
    [(1, "before"), (2, "before"), (4, "after"), (6, "before"), (7, "after"), (9, "before"), (WRITES, "before"),
     (WRITES, "after")],
)  # fmt: skip
def test_killed_while_writing(whole, tmp_path, files, when, moment):
    settings, file, expected = whole
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLER, str(when), moment, "federate", str(file), "--out", str(out), "--quiet"]
    killed = subprocess.run([*command, "--workers", "1"], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, (killed.stdout, killed.stderr)
    run(settings, out, resume=True)
    assert files(out) == expected
    assert not (out / "checkpoints").exists()


def test_the_last_write_is_the_last(whole, tmp_path):
    command = [sys.executable, "-c", KILLER, "99", "before", "federate", str(whole[1]), "--out", str(tmp_path / "out")]
    ended = subprocess.run([*command, "--workers", "1", "--quiet"], capture_output=True, text=True, check=True)
    assert ended.stdout.split()[-1] == str(WRITES)


def started(settings, tmp_path, out: Path, **options) -> subprocess.Popen:
    """A real run on two processes, long enough to be caught under way."""
    file = tmp_path / "long.toml"
    file.write_text(to_toml(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pluribus.cli", "federate", str(file), "--out", str(out), "--workers", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def children(pid: int) -> list[int]:
    """Processes of a process (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_for(what, seconds: float = 60.0):
    """The first true value of ``what()``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := what():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_killed_from_outside_with_its_processes_left_behind(settings_of, tmp_path, files):
    settings = settings_of(rounds=120, seeds=2, rules="fedavg,fedavgm", eval_every=50)
    out = tmp_path / "out"
    process = started(settings, tmp_path, out)
    wait_for(lambda: list((out / "checkpoints").glob("*-seed*.safetensors")))
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers))
    assert json.loads((out / "checkpoints" / "run.json").read_text())["rounds"] == 120
    process.stdout.close()
    process.stderr.close()
    run(settings, out, resume=True)
    run(settings, tmp_path / "whole")
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C reaches a group of processes on POSIX")
def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(settings_of, tmp_path):
    settings = settings_of(rounds=20_000, seeds=1, rules="fedavg,fedavgm", eval_every=5000)
    out = tmp_path / "out"
    process = started(settings, tmp_path, out, start_new_session=True)
    wait_for(lambda: list((out / "checkpoints").glob("*-seed*.safetensors")))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == ""
    assert stderr.strip().splitlines()[-1] == f"pluribus: stopped; to go on: pluribus federate --resume --out {out}"
    assert "Traceback" not in stderr
    checkpoints = list((out / "checkpoints").glob("*-seed*.safetensors"))
    assert len(checkpoints) == 2  # each process left what it had reached
