"""Files that are whole or not there: written aside, synced, and renamed over the old one.

A file that is being written has a name of its own beside its target, ``.pluribus-TARGET-TOKEN.tmp`` where TARGET is a
digest of the target's name, and its writer holds a lock on it for as long as it lives. What a killed writer left is
found by its name, known to be nobody's by its lock, and removed by the next writer of the same target.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import FileError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not a POSIX system: nothing is locked, and nothing left behind is removed
    fcntl = None

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the quota is used up; free some space or choose another folder",
    errno.EFBIG: "the file would be larger than the system or a limit (ulimit -f) allows",
    errno.ENAMETOOLONG: "its name is too long; choose a shorter one",
    errno.EACCES: "permission denied; check the permissions of the file and of its folder",
    errno.EPERM: "permission denied; check the permissions of the file and of its folder",
    errno.EROFS: "its file system is read-only; choose another folder",
    errno.ENOENT: "no such file or folder; check the name, and create the folder first if it is to be written",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.ELOOP: "its symbolic links go round in a circle",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
    errno.EIO: "the disk reported an error",
}


@contextlib.contextmanager
def told(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turn what the system says of a path into a `FileError` with the path and advice; ``what``: ``"be read"``.

    Raises
    ------
    FileError
        An ``OSError`` inside, or a path that no system call takes: with a NUL character, or not encodable.
    """
    name = os.fspath(path)
    if "\0" in name:
        raise FileError(f"{name!r} cannot {what}: a path holds no NUL characters")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise FileError(f"{name!r} cannot {what}: its characters cannot be encoded as a file name") from None
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
        raise FileError(f"{name} cannot {what}: {advice}") from error


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step: whoever reads sees the old file or the new one.

    The bytes go to a new file of a unique name in the same folder (a rename across file systems is no
    rename), are synced, and the file is renamed. A symbolic link is followed. A file that was there keeps
    its permissions, a new one gets those of the umask. If anything fails the temporary file is removed and
    the old file is as it was; what SIGKILL leaves is removed when the same path is written again.

    Raises :class:`FileError` when ``path`` is a folder, a device or a pipe, when its folder does not
    exist, or when the system refuses (no space, no permission).
    """
    with told(path, "be written"):
        target = target_of(path)
        with aside(target) as file:
            with file.path.open("r+b") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            file.replace()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """:func:`write_bytes` of ``text`` in UTF-8, line ends untouched: the same bytes on every system."""
    write_bytes(path, text.encode("utf-8"))


def target_of(path: str | os.PathLike[str]) -> Path:
    """The file that writing to a path means: symbolic links are followed.

    Raises
    ------
    FileError
        It is a folder, or a device, pipe or socket, which a rename would destroy.
    """
    with told(path, "be written"):
        target = Path(os.path.realpath(path))
        _mode_of(target)
        return target


class Aside:
    """A new empty file beside its target; see `aside`."""

    def __init__(self, target: Path, path: Path, descriptor: int, mode: int | None) -> None:
        self.target, self.path, self._mode = target, path, mode
        self.descriptor: int | None = descriptor

    def replace(self) -> None:
        """Put the file, which is synced, in its target's place."""
        if self._mode is not None:
            self.path.chmod(self._mode)
        if fcntl is None:  # where an open file cannot be renamed; elsewhere the lock is kept until it is
            self.release()
        os.replace(self.path, self.target)
        _sync_folder(self.target.parent)

    def release(self) -> None:
        """Let go of the file and of its lock."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def remove(self) -> None:
        """Remove the file if it has not replaced its target."""
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def aside(target: Path) -> Iterator[Aside]:
    """A new empty file beside ``target`` that is gone in the end, unless it has replaced it; also after SIGTERM."""
    with told(target, "be written"):
        mode = _mode_of(target)
        _remove_left(target)
        path, descriptor = _create_beside(target)
    file = Aside(target, path, descriptor, mode)
    try:
        with _removed_on_sigterm(file):
            yield file
    finally:  # an interrupt must not leave the temporary file either
        file.release()
        file.remove()


def _mode_of(target: Path) -> int | None:
    """Permissions of a file that is there, None where there is none."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise FileError(f"{target} cannot be written: a part of its path is a file, not a folder") from error
    if stat.S_ISDIR(mode):
        raise FileError(f"{target} cannot be written: it is a folder; give the name of a file inside it")
    if not stat.S_ISREG(mode):
        raise FileError(f"{target} cannot be written: it is a device or a pipe, which a rename would destroy")
    return stat.S_IMODE(mode)


def _mark(target: Path) -> str:
    """How names of files that are to become ``target`` begin; always short."""
    return f".pluribus-{hashlib.blake2b(os.fsencode(target.name), digest_size=6).hexdigest()}-"


def _create_beside(target: Path) -> tuple[Path, int]:
    """A new empty file in the folder of ``target``, open for writing, and locked."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        path = target.parent / f"{_mark(target)}{secrets.token_hex(8)}.tmp"
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileExistsError:
            continue
        except FileNotFoundError as error:
            raise FileError(
                f"{target} cannot be written: the folder {target.parent} does not exist; create it first"
            ) from error
        _lock(descriptor, wait=True)
        if os.fstat(descriptor).st_nlink:  # else another writer took it for one left behind before it was locked
            return path, descriptor
        os.close(descriptor)


def _remove_left(target: Path) -> None:
    """Remove what writers of ``target`` left that are no more: nobody holds its lock."""
    if fcntl is None:
        return
    mark = _mark(target)
    with contextlib.suppress(OSError):
        left = [entry.path for entry in os.scandir(target.parent) if entry.name.startswith(mark)]
        for path in left:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    if _lock(descriptor, wait=False):
                        os.unlink(path)
                finally:
                    os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Take the lock of a file, which goes with the process; False where another has it, or there are no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _removed_on_sigterm(file: Aside) -> Iterator[None]:
    """Remove a file before SIGTERM ends the process, where nothing else was to happen then."""
    process = os.getpid()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: Any) -> None:
        if os.getpid() == process:  # a forked worker inherits this, and the file is not its own
            file.remove()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
