"""Files that are whole or not there: written aside, synced, and renamed over the old one."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from .errors import FileError


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step: whoever reads sees the old file or the new one.

    The bytes go to a new file of a unique name in the same folder (a rename across file systems is no
    rename), are synced, and the file is renamed. A symbolic link is followed. A file that was there keeps
    its permissions, a new one gets those of the umask. If anything fails the temporary file is removed and
    the old file is as it was; after SIGKILL one named ``.pluribus-*.tmp`` may remain.

    Raises :class:`FileError` when ``path`` is a folder, a device or a pipe, or when its folder does not
    exist; ``OSError`` from the system (no space, no permission) passes through.
    """
    target = Path(os.path.realpath(path))
    mode = _mode_of(target)
    aside, descriptor = _create_beside(target)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            aside.chmod(mode)
        os.replace(aside, target)
    except BaseException:  # an interrupt must not leave the temporary file either
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """:func:`write_bytes` of ``text`` in UTF-8, line ends untouched: the same bytes on every system."""
    write_bytes(path, text.encode("utf-8"))


def _mode_of(target: Path) -> int | None:
    """Permissions of a file that is there, None where there is none."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise FileError(f"cannot write {target}: a part of its path is a file, not a folder") from error
    if stat.S_ISDIR(mode):
        raise FileError(f"cannot write {target}: it is a folder; give the name of a file inside it")
    if not stat.S_ISREG(mode):
        raise FileError(f"cannot write {target}: it is a device or a pipe, which a rename would destroy")
    return stat.S_IMODE(mode)


def _create_beside(target: Path) -> tuple[Path, int]:
    """A new empty file in the folder of ``target``, open for writing; its name is always short."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        aside = target.parent / f".pluribus-{os.getpid()}-{secrets.token_hex(8)}.tmp"
        try:
            return aside, os.open(aside, flags, 0o666)
        except FileExistsError:
            continue
        except FileNotFoundError as error:
            raise FileError(
                f"cannot write {target}: the folder {target.parent} does not exist; create it first"
            ) from error


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
