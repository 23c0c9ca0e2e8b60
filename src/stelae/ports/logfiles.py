"""Append-only files on a shard's own disk, under the log.

What survives a crash (power loss, not only kill -9):
- Bytes appended before a `sync` that returned survive whole.
- Of bytes appended after it, any subset of pages may survive, in any order, torn, or as zeros; the file's size may be
  anything from the synced size to the appended one.
- A file whose `sync` never returned may be gone, name and all.
- Zeros may follow what was appended, any number of them: room is taken ahead of the bytes. That is also found after a
  mere kill, and by other processes while the file is written. A file that was closed and then truncated has none.
- After a `sync` that raised, everything since the last good one is in doubt for ever: a later `sync` proves nothing
  about it. Close the file, and say in the next one where this one ends.
- `truncate` and `delete` are durable once they return; before that, either state may be found. A `truncate` that
  returned also makes the bytes it left and the name survive (but for those in doubt): recovery after a mere kill reads
  bytes that no `sync` ever covered, and truncates to where they are whole before it trusts them.

An `append` that raises has put nothing, a part, or all of its bytes after the old end; `size` then says where the
file ends now, and `truncate` can cut it back.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from typing_extensions import Buffer


class LogFileInfo(msgspec.Struct, frozen=True):
    name: str
    size_bytes: int


class LogFile(Protocol):
    """One file open for appending. Only one writer at a time; not safe for threads."""

    @property
    def name(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def append(self, *data: Buffer) -> int:
        """Put bytes at the end, one piece behind the other; the offset where they begin. Raises DiskFull,
        DiskFailed."""
        ...

    def sync(self) -> None:
        """All appended bytes, the size and the name survive a crash from here on. Raises DiskFull, DiskFailed."""
        ...

    def close(self) -> None:
        """Gives back the room that was taken ahead. Does not sync. Closing twice is no error; appending or syncing
        afterwards raises Closed."""
        ...


class LogFiles(Protocol):
    """A flat directory of log files. Names are of [A-Za-z0-9._-], at most 200 characters, not starting with a dot.

    A missing file raises NotFound; access refused by the system raises PermissionDenied.
    """

    def create(self, name: str) -> LogFile:
        """A new empty file; AlreadyExists if the name is taken."""
        ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes from offset, at most length of them; fewer where the file ends."""
        ...

    def truncate(self, name: str, size_bytes: int) -> None:
        """Cut to size_bytes (which may be all of it), durably. InvalidArgument if the file is shorter. Not while a
        writer has it open."""
        ...

    def list(self) -> list[LogFileInfo]:
        """All files, by name."""
        ...

    def delete(self, name: str) -> None:
        """Remove, durably. A file that is not there is no error."""
        ...

    def synced(self) -> LogFileInfo | None:
        """A place that a `sync` has certainly reached, as it is remembered apart from the files: at least the last one
        after a mere kill, an older one or None after a crash. Files are written in the order of their names, so what
        ends before this place has lost bytes that were safe."""
        ...

    def lost(self) -> str | None:
        """The oldest file, if it is missing and nobody has deleted it; None where that is not known."""
        ...
