"""Results that go to files: beside their inputs, whole or not there, and read again only while nothing has changed."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pluribus import aggregate, rules
from pluribus.core import checkpoints, files, stores
from pluribus.core.errors import ContributionError, FileError, PluribusError


@pytest.fixture
def paths(rng, tmp_path):
    found = [tmp_path / "in" / f"{i}.safetensors" for i in range(4)]
    found[0].parent.mkdir()
    for path in found:
        save_file({"w": rng.normal(size=(300, 40)), "b": rng.normal(size=7).astype(np.float32)}, path)
    return found


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("rule", ["mean", "median", "krum:f=1", "sphere_mean", "geometric_median"])
def test_an_input_is_no_place_for_the_result(paths, tmp_path, rule):
    before = [path.read_bytes() for path in paths]
    (tmp_path / "link.safetensors").symlink_to(paths[1])
    os.link(paths[2], tmp_path / "hard.safetensors")
    for out, who in ((paths[0], 0), (tmp_path / "link.safetensors", 1), (tmp_path / "hard.safetensors", 2)):
        with pytest.raises(FileError, match=f"contributor {who} is read from; give another name"):
            aggregate(paths, rule, out=out)
    assert [path.read_bytes() for path in paths] == before
    assert names(tmp_path) == ["hard.safetensors", "in", "link.safetensors"]


def test_neither_is_a_shard_or_the_reference(paths, tmp_path):
    index = tmp_path / "m.safetensors.index.json"
    index.write_text('{"weight_map": {"w": "s.safetensors"}}')
    save_file({"w": np.ones((300, 40))}, tmp_path / "s.safetensors")
    for path in paths:
        save_file({"w": load_file(path)["w"]}, path)
    for given, reference in (([*paths, index], None), (paths, str(index))):
        rule = rules.CenteredClipping(1.0) if reference else rules.Mean()
        with pytest.raises(FileError, match=r"s\.safetensors, which .* is read from"):
            rule(given, reference=reference, out=tmp_path / "s.safetensors")


def rewritten(path, how):
    tensors = load_file(path)
    if how == "removed":
        path.unlink()
    elif how == "replaced":
        save_file({name: array + 1 for name, array in tensors.items()}, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)
    else:
        time.sleep(0.02)  # longer than the clock of the file system
        whole = path.read_bytes()
        path.write_bytes({"shorter": whole[:-8], "longer": whole + bytes(8), "same size": whole[:-8] + bytes(8)}[how])


@pytest.mark.parametrize("how", ["removed", "replaced", "shorter", "longer", "same size"])
def test_a_file_that_changed_is_told(paths, tmp_path, how):
    found = aggregate(paths, "median", out=tmp_path / "out.safetensors")
    again = aggregate(paths, "median")
    rewritten(paths[1], how)
    with pytest.raises(FileError, match=r"1\.safetensors (was changed|cannot be read)"):
        _ = found.distances
    with pytest.raises(FileError, match=r"1\.safetensors (was changed|cannot be read)"):
        again.influence()


def test_a_result_that_changed_is_told(paths, tmp_path):
    found = aggregate(paths, "median", out=tmp_path / "out.safetensors")
    rewritten(tmp_path / "out.safetensors", "replaced")
    with pytest.raises(FileError, match=r"out\.safetensors was changed"):
        _ = found.distances


def test_a_file_that_changes_within_a_call_is_told(paths, tmp_path, monkeypatch):
    from pluribus.core import passes

    gram = passes.gram

    def then_changed(active, **options):
        made = gram(active, **options)
        rewritten(paths[3], "replaced")
        return made

    monkeypatch.setattr(passes, "gram", then_changed)
    with pytest.raises(FileError, match=r"3\.safetensors was changed"):
        aggregate(paths, "geometric_median", out=tmp_path / "out.safetensors")
    assert names(tmp_path) == ["in"]


def test_a_fold_that_was_torn_does_not_go_on(paths, monkeypatch):
    fold = rules.Mean().fold().add(paths[0])
    scan = stores.checkpoints.FileLeaf.items
    reads = []

    def once_changed(leaf, start, stop):
        reads.append(leaf.path)
        if len(reads) == 4:  # two tensors are checked, and one is added
            rewritten(paths[1], "replaced")
        return scan(leaf, start, stop)

    monkeypatch.setattr(checkpoints.FileLeaf, "items", once_changed)
    with pytest.raises(FileError, match="was changed"):
        fold.add(paths[1], label="site 9")
    for call in (fold.result, lambda: fold.add(paths[0]), lambda: rules.Mean().fold().merge(fold)):
        with pytest.raises(ContributionError, match="site 9 was added in part"):
            call()


def test_permissions_are_those_of_any_new_file(paths, tmp_path):
    out = tmp_path / "out.safetensors"
    old = os.umask(0o027)
    try:
        aggregate(paths, out=out)
    finally:
        os.umask(old)
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    out.chmod(0o604)
    aggregate(paths, out=out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o604


def test_links_are_followed_and_devices_kept(paths, tmp_path):
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "real.safetensors")
    found = aggregate(paths, out=tmp_path / "link.safetensors")
    assert (tmp_path / "link.safetensors").is_symlink()
    assert load_file(tmp_path / "real.safetensors")["w"].shape == (300, 40)
    assert found.distances.shape == (4,)
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "null.safetensors").symlink_to("/dev/null")
    (tmp_path / "round.safetensors").symlink_to(tmp_path / "round.safetensors")
    for name, told in (("pipe", "device or a pipe"), ("null", "device or a pipe"), ("round", "in a circle")):
        for write in (lambda p: aggregate(paths, out=p), lambda p: aggregate(paths).report(p)):
            with pytest.raises(FileError, match=told):
                write(tmp_path / f"{name}.safetensors")
    assert stat.S_ISFIFO((tmp_path / "pipe.safetensors").stat().st_mode)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("x" * 300, "name is too long"),
        ("a\0b", "NUL"),
        ("\ud800", "cannot be encoded"),
        ("no/x", "does not exist; create it first|no such file or folder"),
        ("in/0.safetensors/x", "a file, not a folder"),
    ],
)
def test_paths_that_cannot_be(paths, tmp_path, name, told):
    path = f"{tmp_path}/{name}.safetensors"
    for call in (
        lambda: aggregate(paths, out=path),
        lambda: aggregate(paths).report(path),
        lambda: aggregate([*paths, path]),
        lambda: files.write_bytes(path, b""),
    ):
        with pytest.raises(FileError, match=told):
            call()
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize("error", [(errno.ENOSPC, "the disk is full"), (errno.EIO, "the disk reported")])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
def test_what_the_system_refuses_is_told(paths, tmp_path, monkeypatch, error, call):
    number, told = error

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(FileError, match=f"out.safetensors cannot be written: {told}"):
        aggregate(paths, out=tmp_path / "out.safetensors")
    if call != "pwrite":
        with pytest.raises(FileError, match=f"r.html cannot be written: {told}"):
            aggregate(paths).report(tmp_path / "r.html")
    assert names(tmp_path) == ["in"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is full is Linux's")
def test_a_limit_on_file_sizes(paths, tmp_path):
    code = (
        "import resource, signal, sys, pluribus; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "pluribus.aggregate(sys.argv[2:], out=sys.argv[1])"
    )
    command = [sys.executable, "-c", code, tmp_path / "o.safetensors", *paths]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "FileError" in ran.stderr.splitlines()[-1]
    assert "limit" in ran.stderr.splitlines()[-1]
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize(("name", "told"), [("__metadata__", "keeps that name"), ("\ud800", "no UTF-8"), ("", "named")])
def test_names_that_a_file_cannot_hold(tmp_path, name, told):
    with pytest.raises(FileError, match=told):
        aggregate([{name: np.ones(2)}], out=tmp_path / "o.safetensors")
    assert not names(tmp_path)


KILLED = """
import sys, time
import pluribus
from pluribus.core.stores import FileStore
out, *paths = sys.argv[1:]
def write(self, block, items):
    print("writing", flush=True)
    time.sleep(60)
FileStore.write = write
pluribus.aggregate(paths, out=out, engine=pluribus.engines.Threads(1))
"""


@pytest.fixture
def killed(paths, tmp_path):
    def start():
        out = tmp_path / "out.safetensors"
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, out, *paths], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        process.stdout.readline()
        return process

    return start


def ended(process, number):
    process.send_signal(number)
    process.communicate()
    return process.returncode


def test_what_a_killed_writer_left_is_removed_by_the_next(paths, tmp_path, killed):
    process = killed()
    (half,) = set(names(tmp_path)) - {"in"}
    aggregate(paths, out=tmp_path / "out.safetensors")
    assert half in names(tmp_path), "its writer is alive"
    assert ended(process, signal.SIGKILL) == -signal.SIGKILL
    assert half in names(tmp_path)
    aggregate(paths, out=tmp_path / "other.safetensors")
    assert half in names(tmp_path), "it is of another file"
    aggregate(paths, out=tmp_path / "out.safetensors")
    assert names(tmp_path) == ["in", "other.safetensors", "out.safetensors"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_writer_that_is_told_to_end_leaves_nothing(tmp_path, killed, number):
    assert ended(killed(), number) == -number
    assert names(tmp_path) == ["in"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_of_the_caller_stays(paths, tmp_path):
    seen = []
    old = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        with files.aside(tmp_path / "a"):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, old)
    assert seen == [1]
    with files.aside(tmp_path / "a"):
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert issubclass(FileError, PluribusError)
