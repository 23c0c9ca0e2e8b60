"""Log files in a directory of a local disk, with fsync.

A name becomes durable with the file's first `sync`, which syncs the directory too. `truncate` and `delete` sync even
when there is nothing left to cut or to remove, because a process may have died between such a change and its sync.
"""

from __future__ import annotations

import os
from contextlib import suppress
from io import FileIO
from stat import S_ISREG

from typing_extensions import Buffer

from stelae.adapters.files import (
    make_directories,
    os_errors,
    read_all,
    stelae_error,
    sync_directory,
    sync_file,
    write_all,
)
from stelae.model.errors import Closed, InvalidArgument
from stelae.ports.logfiles import LogFileInfo
from stelae.ports.names import check_log_name


class LocalLogFile:
    """One file open for appending; made by `LocalLogFiles.create`."""

    def __init__(self, file: FileIO, name: str, directory: str) -> None:
        self._file = file
        self._name = name
        self._directory = directory
        self._size_bytes = 0
        self._name_durable = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, *data: Buffer) -> int:
        fd = self._fd()
        offset = self._size_bytes
        try:
            self._size_bytes += write_all(fd, *data)
        except OSError as error:
            self._size_bytes = os.fstat(fd).st_size
            raise stelae_error(error, self._name) from error
        return offset

    def sync(self) -> None:
        fd = self._fd()
        with os_errors(self._name):
            sync_file(fd)
            if not self._name_durable:
                sync_directory(self._directory)
                self._name_durable = True

    def close(self) -> None:
        with os_errors(self._name):
            self._file.close()

    def _fd(self) -> int:
        if self._file.closed:
            raise Closed(f"log file {self._name} is closed")
        return self._file.fileno()


class LocalLogFiles:
    """A directory, made if it is not there. Other files in it, whose names break the rule, are left alone."""

    def __init__(self, directory: str | os.PathLike[str], suffix: str = "") -> None:
        """`suffix`: only files with such names are listed; others in the directory are somebody else's."""
        self._directory = os.path.abspath(directory)
        self._suffix = suffix
        with os_errors(self._directory):
            make_directories(self._directory)

    def create(self, name: str) -> LocalLogFile:
        path = self._path(name)
        with os_errors(path):
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        return LocalLogFile(FileIO(fd, "w"), name, self._directory)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self._path(name)
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument(f"{path}: cannot read {length} bytes at {offset}")
        with os_errors(path), FileIO(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
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
                    found.append(LogFileInfo(name, status.st_size))
        return found

    def delete(self, name: str) -> None:
        path = self._path(name)
        with os_errors(path):
            with suppress(FileNotFoundError):
                os.unlink(path)
            sync_directory(self._directory)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, check_log_name(name))
