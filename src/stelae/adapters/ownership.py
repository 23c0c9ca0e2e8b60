"""Who owns a directory: one process at a time, as long as it lives.

The lock is the operating system's, on a file that also says who holds it and where to reach it; when the process ends,
however it ends, the lock is free. What the file says is a hint for others, never the lock itself.
"""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path

import msgspec

from stelae.adapters.files import make_directories, os_errors
from stelae.adapters.liveness import ProcessMark, is_alive, mark_process

OWNER_FILE = "owner"


class OwnerNote(msgspec.Struct, frozen=True):
    """`address`: where the owner serves others; empty while it does not. `began`: when the process did, in the
    system's words (`liveness`)."""

    pid: int
    host: str
    release: str
    address: str = ""
    began: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (release {self.release})"


class Ownership:
    """Held until it is let go, or the process ends. A forked child does not hold it."""

    def __init__(self, directory: Path, fd: int, release: str) -> None:
        self._directory = directory
        self._fd = fd
        self._pid = os.getpid()
        mark = mark_process(self._pid)
        self._began = "" if mark is None else mark.began
        self._release = release

    @staticmethod
    def take(directory: Path, release: str) -> Ownership | None:
        """None if another process has it, or this one has it already."""
        path = directory / OWNER_FILE
        with os_errors(str(path)):
            make_directories(str(directory))
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
        owned = Ownership(directory, fd, release)
        try:
            owned.note("")
        except BaseException:
            owned.forget()
            raise
        return owned

    def note(self, address: str) -> None:
        """Tell others where this process is to be found."""
        note = OwnerNote(self._pid, platform.node(), self._release, address, self._began)
        data = msgspec.json.encode(note) + b"\n"
        with os_errors(str(self._directory / OWNER_FILE)):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, data, 0)

    def forget(self) -> None:
        """In a forked child: the parent has it, and this copy would hold the lock after the parent's end."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def release(self) -> None:
        """Letting go twice is no error."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._pid == os.getpid():
                os.ftruncate(fd, 0)
            os.close(fd)


def read_owner(directory: Path) -> OwnerNote | None:
    """What the owner says of itself; None if nobody does."""
    try:
        return msgspec.json.decode((directory / OWNER_FILE).read_bytes(), type=OwnerNote)
    except (OSError, msgspec.MsgspecError):
        return None


def read_living_owner(directory: Path) -> OwnerNote | None:
    """The same of an owner that lives; None if it has ended, however that came."""
    note = read_owner(directory)
    return note if note is not None and is_alive(ProcessMark(note.pid, note.began)) else None
