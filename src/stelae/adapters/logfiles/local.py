"""Log files in a directory of a local disk, with fdatasync.

A name becomes durable with the file's first `sync`, which syncs the directory too. `truncate` and `delete` sync even
when there is nothing left to cut or to remove, because a process may have died between such a change and its sync.

Room is taken ahead: a sync that changes neither the size of a file nor where its blocks lie takes about half the time
of one that does, since the file system has nothing to say about it in its own journal (decision 9). Until the file is
closed, zeros stand behind the last byte; `read` and `list` do not show them. Ahead of small appends zeros are also
written: the first write into a block that was only taken is news for that journal, too (decision 49).

Of a large append, what is in the page cache is sent to the disk while the rest is copied there (decision 49).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from stat import S_ISREG
from threading import Lock
from weakref import WeakValueDictionary

from typing_extensions import Buffer

from stelae.adapters.files import (
    make_directories,
    os_errors,
    read_all,
    stelae_error,
    sync_directory,
    sync_file,
)
from stelae.adapters.logfiles.marks import LogMarks
from stelae.model.errors import Closed, InvalidArgument
from stelae.ports.logfiles import LogFileInfo
from stelae.ports.names import check_log_name

_AHEAD_BYTES = 4 * 2**20
_LARGE_BYTES = 2 * 2**20
_SMALL_BYTES = 16 * 2**10
_ZEROS = bytes(128 * 2**10)
"""Written ahead of appends of up to _SMALL_BYTES."""
_PIECE_BYTES = 2**20
"""Of more than _LARGE_BYTES, so many at a time are copied and sent to the disk."""


class LocalLogFile:
    """One file open for appending; made by `LocalLogFiles.create`."""

    def __init__(self, file: FileIO, name: str, directory: str, note: Callable[[int], None] | None = None) -> None:
        """`note` is told the size after each sync."""
        self._file = file
        self._fd = file.fileno()
        self._note = note
        self._name = name
        self._directory = directory
        self._size_bytes = 0
        self._taken_bytes = 0
        self._zeros_end = 0
        """Up to here the blocks that are ahead have been written."""
        self._takes_ahead = hasattr(os, "posix_fallocate")
        self._sends_ahead = hasattr(os, "posix_fadvise")
        self._name_durable = False
        # Closing must not cut off what is being appended, nor let another file have the descriptor that is synced.
        self._lock = Lock()

    @property
    def name(self) -> str:
        return self._name

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def is_closed(self) -> bool:
        return self._file.closed

    def append(self, *data: Buffer) -> int:
        with self._lock:
            fd = self._checked_fd()
            offset = self._size_bytes
            parts = [part if type(part) is bytes else memoryview(part).cast("B") for part in data]
            more_bytes = len(parts[0]) if len(parts) == 1 else sum([len(part) for part in parts])
            if self._takes_ahead and offset + more_bytes > self._zeros_end:
                self._prepare(fd, more_bytes)
            try:
                for part in parts:
                    if len(part) <= _LARGE_BYTES:
                        self._write(fd, part)
                    else:
                        self._write_large(fd, memoryview(part))
            except OSError as error:
                raise stelae_error(error, self._name) from error
            return offset

    def _write(self, fd: int, part: bytes | memoryview) -> None:
        """Every byte, however few the system takes at a time."""
        written = os.pwrite(fd, part, self._size_bytes)
        self._size_bytes += written
        while written < len(part):
            part = memoryview(part)[written:]
            written = os.pwrite(fd, part, self._size_bytes)
            self._size_bytes += written

    def _write_large(self, fd: int, part: memoryview) -> None:
        """In pieces that end where those of the file do. The system begins to write out a piece that is said not to be
        needed any more, so the disk works while the next one is copied."""
        while part:
            begin = self._size_bytes
            length = _PIECE_BYTES - begin % _PIECE_BYTES
            self._write(fd, part[:length])
            part = part[length:]
            if self._sends_ahead:
                try:
                    os.posix_fadvise(fd, begin, self._size_bytes - begin, os.POSIX_FADV_DONTNEED)
                except OSError:
                    self._sends_ahead = False  # advice only: the sync writes it all the same

    def _prepare(self, fd: int, more_bytes: int) -> None:
        """Room for these bytes; and if they are few, zeros where they and the next ones will stand."""
        begin = self._size_bytes
        if begin + more_bytes > self._taken_bytes:
            self._take_ahead(fd, more_bytes)
        room_bytes = self._taken_bytes - begin
        if self._takes_ahead and more_bytes <= _SMALL_BYTES:
            with suppress(OSError):  # then the next small append tries again
                self._zeros_end = begin + os.pwrite(fd, _ZEROS[:room_bytes], begin)

    def _take_ahead(self, fd: int, more_bytes: int) -> None:
        """For these bytes, and some of those that follow."""
        room_bytes = -(-more_bytes // _AHEAD_BYTES) * _AHEAD_BYTES
        try:
            os.posix_fallocate(fd, self._size_bytes, room_bytes)
            self._taken_bytes = self._size_bytes + room_bytes
        except OSError:
            # Not on this file system, or the disk is nearly full: then what was taken of it is given back.
            self._takes_ahead = False
            with suppress(OSError):
                os.ftruncate(fd, max(self._size_bytes, self._taken_bytes))

    def sync(self) -> None:
        with self._lock:
            fd = self._checked_fd()
            try:
                _sync_data(fd)
                if not self._name_durable:
                    sync_directory(self._directory)
                    self._name_durable = True
            except OSError as error:
                raise stelae_error(error, self._name) from error
            if self._note is not None:
                self._note(self._size_bytes)

    def close(self) -> None:
        with self._lock, os_errors(self._name):
            if not self._file.closed:
                try:
                    if self._taken_bytes > self._size_bytes:
                        os.ftruncate(self._file.fileno(), self._size_bytes)
                finally:
                    self._fd = -1
                    self._file.close()

    def _checked_fd(self) -> int:
        if self._fd < 0:
            raise Closed(f"log file {self._name} is closed")
        return self._fd


def _sync_data(fd: int) -> None:
    """The bytes, and as much about the file as it takes to find them again."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        sync_file(fd)


class LocalLogFiles:
    """A directory, made if it is not there. Other files in it, whose names break the rule, are left alone."""

    def __init__(self, directory: str | os.PathLike[str], suffix: str = "", marks: LogMarks | None = None) -> None:
        """`suffix`: only files with such names are listed; others in the directory are somebody else's. `marks`: where
        it is remembered what there must be; names must then be those of log segments."""
        self._marks = marks
        self._directory = os.path.abspath(directory)
        self._suffix = suffix
        self._written: WeakValueDictionary[str, LocalLogFile] = WeakValueDictionary()
        with os_errors(self._directory):
            make_directories(self._directory)

    def create(self, name: str) -> LocalLogFile:
        path = self._path(name)
        with os_errors(path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        note = None if self._marks is None else self._marks.noting(name)
        file = self._written[name] = LocalLogFile(FileIO(fd, "w"), name, self._directory, note)
        return file

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self._path(name)
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument(f"{path}: cannot read {length} bytes at {offset}")
        with os_errors(path), FileIO(path) as file:
            size_bytes = self._size_bytes(name, os.fstat(file.fileno()).st_size)
            here = max(size_bytes - offset, 0)
            if not here:
                return b""
            return read_all(file.fileno(), offset, here if length is None else min(length, here))

    def truncate(self, name: str, size_bytes: int) -> None:
        path = self._path(name)
        with os_errors(path), FileIO(path, "r+") as file:
            now_bytes = os.fstat(file.fileno()).st_size
            if not 0 <= size_bytes <= now_bytes:
                raise InvalidArgument(f"{path} has {now_bytes} bytes; cannot cut it to {size_bytes}")
            os.ftruncate(file.fileno(), size_bytes)
            sync_file(file.fileno())
            sync_directory(self._directory)

    def list(self) -> list[LogFileInfo]:
        found = []
        with os_errors(self._directory):
            for name in sorted(os.listdir(self._directory)):
                try:
                    check_log_name(name)
                    status = os.stat(os.path.join(self._directory, name), follow_symlinks=False)
                except (InvalidArgument, FileNotFoundError):
                    continue
                if S_ISREG(status.st_mode) and name.endswith(self._suffix):
                    found.append(LogFileInfo(name, self._size_bytes(name, status.st_size)))
        return found

    def delete(self, name: str) -> None:
        path = self._path(name)
        with os_errors(path):
            if self._marks is not None:
                self._keep_others(name, self._marks)
            with suppress(FileNotFoundError):
                os.unlink(path)
            sync_directory(self._directory)

    def _keep_others(self, name: str, marks: LogMarks) -> None:
        """Before the oldest file goes: the next one is the oldest that must be there, and it will be."""
        names = [info.name for info in self.list()]
        if names[:1] == [name]:
            sync_directory(self._directory)
            marks.keep_from(names[1] if len(names) > 1 else None)

    def synced(self) -> LogFileInfo | None:
        return None if self._marks is None else self._marks.synced()

    def lost(self) -> str | None:
        oldest = None if self._marks is None else self._marks.oldest()
        return None if oldest is None or os.path.exists(self._path(oldest)) else oldest

    def _size_bytes(self, name: str, on_disk_bytes: int) -> int:
        """Without the room that is taken ahead."""
        file = self._written.get(name)
        return on_disk_bytes if file is None or file.is_closed else min(on_disk_bytes, file.size_bytes)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, check_log_name(name))
