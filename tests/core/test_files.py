"""Atomic writes: whole or not there, and nothing left behind."""

from __future__ import annotations

import fcntl
import io
import os
import stat
import threading
from pathlib import Path

import pytest

from pluribus.core import files
from pluribus.core.errors import FileError
from pluribus.core.files import write_bytes, write_text


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_writes_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    write_bytes(target, b"\x00\r\n\xff")
    assert target.read_bytes() == b"\x00\r\n\xff"
    write_bytes(str(target), b"")
    assert target.read_bytes() == b""
    assert names(tmp_path) == ["a.bin"]


def test_text_is_utf8_with_line_ends_as_given(tmp_path: Path) -> None:
    write_text(tmp_path / "t", "ä∑\r\n\n")
    assert (tmp_path / "t").read_bytes() == "ä∑\r\n\n".encode()


def test_text_that_is_no_text_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "t", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "t", "\udc80")
    assert (tmp_path / "t").read_text() == "old"


@pytest.mark.parametrize("name", ["報告 ünï.html", "with space", ".hidden", "x" * 250])
def test_names(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "ok")
    assert names(tmp_path) == [name]


def test_a_relative_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text("plain", "ok")
    assert names(tmp_path) == ["plain"]


@pytest.mark.parametrize("step", ["fsync", "replace", "write"])
def test_a_failure_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    target = tmp_path / "a"
    write_bytes(target, b"old")

    def fail(*_: object) -> None:
        assert len(names(tmp_path)) == 2, "the temporary file lies beside the target"
        raise KeyboardInterrupt

    if step == "write":

        class Full(io.BytesIO):
            def write(self, data: bytes) -> int:
                fail()
                return 0

        monkeypatch.setattr(files.Path, "open", lambda *_: Full())
    else:
        monkeypatch.setattr(files.os, step, fail)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(target, b"new")
    monkeypatch.undo()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_the_bytes_are_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda d: (seen.append("fsync"), sync(d))[1])
    monkeypatch.setattr(files.os, "replace", lambda a, b: (seen.append("replace"), replace(a, b))[1])
    write_bytes(tmp_path / "a", b"x")
    assert seen[:2] == ["fsync", "replace"]


def test_the_temporary_name_is_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "same")
    with files.aside(tmp_path / "a") as other:
        taken = other.path
    taken.write_bytes(b"another writer's")
    holder = taken.open()
    fcntl.flock(holder, fcntl.LOCK_EX)
    tokens = iter(["same", "same", "other"])
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: next(tokens))
    write_bytes(tmp_path / "a", b"mine")
    assert taken.read_bytes() == b"another writer's"
    assert (tmp_path / "a").read_bytes() == b"mine"
    holder.close()


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    target = tmp_path / "a"
    bodies = [bytes([i]) * 200_000 for i in range(6)]
    writers = [threading.Thread(target=write_bytes, args=(target, body)) for body in bodies]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert target.read_bytes() in bodies
    assert names(tmp_path) == ["a"]


@pytest.mark.skipif(os.name != "posix", reason="permissions as on POSIX")
def test_permissions(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_bytes(tmp_path / "new", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    write_bytes(tmp_path / "new", b"again")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


@pytest.mark.skipif(os.name != "posix", reason="links and pipes as on POSIX")
def test_links_are_followed_and_pipes_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_bytes(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="device or a pipe"):
        write_bytes(tmp_path / "pipe", b"x")
    with pytest.raises(FileError, match="device or a pipe"):
        write_bytes("/dev/null", b"x")


def test_wrong_places_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder; give the name of a file"):
        write_bytes(tmp_path, b"")
    with pytest.raises(FileError, match="does not exist; create it first"):
        write_bytes(tmp_path / "no" / "a", b"")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="a file, not a folder"):
        write_bytes(tmp_path / "file" / "a", b"")
    assert names(tmp_path) == ["file"]
