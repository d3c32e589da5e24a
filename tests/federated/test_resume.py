"""Killed at any moment, taken up again: the same bytes as if nothing had happened. With real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pluribus.federated import checkpoint
from pluribus.federated.config_file import to_toml
from pluribus.federated.experiment import run, tasks_of

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


# Hears Ctrl-C even where these tests were started without (nohup, or in the background of a script).
HEARING = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
COMMAND = f"{HEARING}from pluribus.cli import main\nif __name__ == '__main__': sys.exit(main())"


@contextlib.contextmanager
def started(settings, tmp_path, out: Path, script: str | Path = COMMAND) -> Iterator[subprocess.Popen]:
    """A real run on two processes, long enough to be caught under way; nothing of it is left at the end."""
    file = tmp_path / "long.toml"
    file.write_text(to_toml(settings), encoding="utf-8")
    command = [
        sys.executable,
        *(["-c"] if script is COMMAND else []),
        str(script),
        "federate",
        str(file),
        "--out",
        str(out),
        "--workers",
        "2",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        with process:
            yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


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
    with started(settings, tmp_path, out) as process:
        wait_for(lambda: list((out / "checkpoints").glob("*-seed*.safetensors")))
        workers = children(process.pid)
        assert len(workers) >= 2
        process.kill()
        process.wait()
        wait_for(lambda: not any(alive(pid) for pid in workers))
    assert json.loads((out / "checkpoints" / "run.json").read_text())["rounds"] == 120
    run(settings, out, resume=True)
    run(settings, tmp_path / "whole")
    assert files(out) == files(tmp_path / "whole")


def ended(process: subprocess.Popen, number: signal.Signals) -> str:
    """The last line of a run after a signal to all its processes, as a terminal and a batch system send them."""
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert stdout == ""
    assert "Traceback" not in stderr
    assert "resource_tracker" not in stderr
    return stderr.strip().splitlines()[-1]


groups = pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C reaches a group of processes on POSIX")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_process_that_dies_ends_the_run_with_a_reason(settings_of, tmp_path):
    settings = settings_of(rounds=20_000, seeds=1, rules="fedavg,fedavgm", eval_every=5000)
    out = tmp_path / "out"
    with started(settings, tmp_path, out) as process:
        wait_for(lambda: len(list((out / "checkpoints").glob("*-seed*.safetensors"))) == 2)
        running = [pid for pid in children(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(running) == 2
        os.kill(running[0], signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 1
        assert stderr.strip().splitlines()[-1].startswith("pluribus: a process of the run was ended from outside")
        assert not any(alive(pid) for pid in running)


@groups
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(settings_of, tmp_path, number):
    settings = settings_of(rounds=20_000, seeds=1, rules="fedavg,fedavgm", eval_every=5000)
    out = tmp_path / "out"
    with started(settings, tmp_path, out) as process:
        wait_for(lambda: len(list((out / "checkpoints").glob("*-seed*.safetensors"))) == 2)
        last = ended(process, number)
    assert last == f"pluribus: stopped; to go on: pluribus federate --resume --out {out}"
    for task in tasks_of(settings, out, json.loads((out / "checkpoints" / "run.json").read_text())):
        checkpoint.load(task.path, task.owner)  # each process left what it had reached


# A process of the pool runs this module's code again before its first task, so it can say here that it has begun.
BEGINNING = """
import os
if __name__ != "__main__":
    open(os.path.join(sys.argv[sys.argv.index("--out") + 1], f"begun-{os.getpid()}"), "w").close()
    import time
    time.sleep(0.3)
"""


@groups
def test_ctrl_c_while_processes_begin(settings_of, tmp_path):
    settings = settings_of(rounds=20_000, seeds=1, rules="fedavg,fedavgm", eval_every=5000)
    out = tmp_path / "out"
    (tmp_path / "begin.py").write_text(COMMAND.replace("\n", BEGINNING, 1), encoding="utf-8")
    with started(settings, tmp_path, out, tmp_path / "begin.py") as process:
        wait_for(lambda: list(out.glob("begun-*")))
        assert ended(process, signal.SIGINT).startswith("pluribus: stopped; to go on: ")
