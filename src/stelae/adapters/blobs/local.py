"""Objects as files of a directory tree that several processes of one machine share.

The way of an object: its bytes go to `.tmp/<unique>`, whose writer holds a lock (flock) on it; `commit` syncs the
file, links it to its name, which fails if the name is taken, syncs the directory, and removes the temporary name. So a
name appears with all of its bytes durable, and of several writers one wins.

Opening a store removes temporary files whose lock is free: their writers are dead. The lock belongs to the open file,
so it ends with its process however that dies. (A forked child holds it too: then the file stays until both are gone.)

Needs hard links and flock of the file system. There is no other way for those without (FAT, some FUSE and network
ones): `commit` raises PermissionDenied or DiskFailed there. Directories of deleted objects stay behind, empty, unless
all below one is deleted at once.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from threading import Lock

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
from stelae.model.errors import AlreadyExists, Closed, Corruption, InvalidArgument, NotFound, PermissionDenied
from stelae.ports.blobs import BlobInfo, check_range
from stelae.ports.names import check_blob_name, starts_blob_names

_TEMP = ".tmp"


class LocalBlob:
    """One file open for reading. Positional reads share no state, so threads and forked children may use it at once.

    The descriptor is closed by whoever leaves last, `close` or a read under way: a number closed under a reader could
    by then be another file's.
    """

    def __init__(self, file: FileIO, info: BlobInfo) -> None:
        self._file = file
        self._info = info
        self._lock = Lock()
        self._readers = 0
        self._closed = False

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def size_bytes(self) -> int:
        return self._info.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        check_range(self._info, offset, length)
        with self._lock:
            if self._closed:
                raise Closed(f"object {self._info.name} is closed")
            self._readers += 1
        try:
            with os_errors(self._info.name):
                data = read_all(self._file.fileno(), offset, length)
        finally:
            with self._lock:
                self._readers -= 1
                self._close_if_unused()
        if len(data) != length:
            raise Corruption("the file was cut after its commit", self._info.name, offset + len(data))
        return data

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closed and not self._readers:
            self._file.close()


class LocalBlobWriter:
    """One object in the making. Only the process that made it can write or commit it, not a forked child."""

    def __init__(self, store: LocalBlobStore, name: str) -> None:
        self._store = store
        self._name = name
        self._process = os.getpid()
        self._file, self._temp = store._make_temp()

    def write(self, data: Buffer) -> None:
        self._check_usable()
        try:
            write_all(self._file.fileno(), data)
        except OSError as error:
            self.abort()
            raise stelae_error(error, self._name) from error
        except BaseException:
            self.abort()
            raise

    def commit(self) -> None:
        self._check_usable()
        try:
            with os_errors(self._name):
                sync_file(self._file.fileno())
                self._store._publish(self._temp, self._name)
        finally:
            self.abort()

    def abort(self) -> None:
        if self._file.closed:
            return
        with os_errors(self._name):
            if os.getpid() == self._process:
                _unlink_if_there(self._temp)
            self._file.close()

    def _check_usable(self) -> None:
        if self._file.closed:
            raise Closed(f"the writer of {self._name} was committed or aborted")
        if os.getpid() != self._process:
            raise Closed(f"the writer of {self._name} belongs to process {self._process}; make one in this process")


class LocalBlobStore:
    """A directory, made if it is not there. Safe for threads; a forked child may go on using it. A read-only store
    changes nothing, not even what dead writers left."""

    def __init__(self, directory: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._root = os.path.abspath(directory)
        self._temps = os.path.join(self._root, _TEMP)
        self._durable_directories = {self._root}
        self._read_only = read_only
        if read_only:
            return
        with os_errors(self._root):
            make_directories(self._temps)
            self._sweep()

    @property
    def root(self) -> str:
        """The directory, as everybody on this machine may name it."""
        return self._root

    def _check_writable(self, name: str) -> None:
        if self._read_only:
            raise PermissionDenied(f"{name}: the store in {self._root} was opened read-only")

    def create(self, name: str) -> LocalBlobWriter:
        check_blob_name(name)
        self._check_writable(name)
        with os_errors(name):
            return LocalBlobWriter(self, name)

    def open(self, name: str) -> LocalBlob:
        path = self._path(name)
        with os_errors(name):
            try:
                file = FileIO(path)
            except (NotADirectoryError, IsADirectoryError):
                raise NotFound(f"object {name} does not exist") from None
            return LocalBlob(file, BlobInfo(name, os.fstat(file.fileno()).st_size))

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        if starts_blob_names(prefix):
            with os_errors(self._root):
                yield from self._walk("", prefix)

    def delete(self, name: str) -> None:
        path = self._path(name)
        self._check_writable(name)
        with os_errors(name), suppress(NotADirectoryError, IsADirectoryError):
            _unlink_if_there(path)

    def delete_below(self, directory: str) -> None:
        path = self._path(directory)
        self._check_writable(directory)
        with os_errors(directory):
            for info in list(self._walk(f"{directory}/", f"{directory}/")):
                _unlink_if_there(self._path(info.name))
            _remove_empty(path)
            gone = (path, path + os.sep)
            known = self._durable_directories
            self._durable_directories = {each for each in known if each != gone[0] and not each.startswith(gone[1])}

    def link(self, name: str, to: str) -> None:
        """Give an object a second name; it is gone when both are deleted. It need not survive a crash. That the second
        name is there already is no error."""
        path, new_path = self._path(name), self._path(to)
        self._check_writable(to)
        with os_errors(name), suppress(FileExistsError):
            os.makedirs(os.path.dirname(new_path), exist_ok=True)
            os.link(path, new_path)

    def move(self, name: str, to: str) -> None:
        path, new_path = self._path(name), self._path(to)
        self._check_writable(name)
        with os_errors(name):
            if not os.path.isfile(path):
                raise NotFound(f"object {name} does not exist")
            os.makedirs(os.path.dirname(new_path), exist_ok=True)
            os.rename(path, new_path)

    def _path(self, name: str) -> str:
        return os.path.join(self._root, check_blob_name(name))

    def _walk(self, directory: str, prefix: str) -> Iterator[BlobInfo]:
        """Objects below `directory` (which ends in '/', or is empty) in the order of their whole names."""
        try:
            with os.scandir(os.path.join(self._root, directory)) as entries:
                # A directory sorts with its '/', because 'a-b' and 'a.b' come before 'a/b'.
                found = sorted((entry.name + "/" * entry.is_dir(follow_symlinks=False), entry) for entry in entries)
        except FileNotFoundError:
            return
        for part, entry in found:
            name = directory + part
            if not starts_blob_names(name):
                continue
            if part.endswith("/"):
                if name.startswith(prefix) or prefix.startswith(name):
                    yield from self._walk(name, prefix)
            elif name.startswith(prefix) and entry.is_file(follow_symlinks=False):
                try:
                    size_bytes = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
                yield BlobInfo(name, size_bytes)

    def _make_temp(self) -> tuple[FileIO, str]:
        while True:
            path = os.path.join(self._temps, f"{os.getpid()}-{secrets.token_hex(12)}")
            file = FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w")
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file, path
            file.close()  # a sweep came between creation and lock, and removed it

    def _publish(self, temp: str, name: str) -> None:
        path = os.path.join(self._root, name)
        directory = os.path.dirname(path)
        try:
            os.makedirs(directory, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InvalidArgument(f"{name}: a part of the name before its last is an object") from None
        taken = False
        try:
            os.link(temp, path)
        except FileExistsError:
            if os.path.isdir(path):
                raise InvalidArgument(f"{name} is a directory of other objects") from None
            taken = True
        # Also if the name is taken: then another's commit is seen here, which must not be lost any more.
        self._make_durable(directory)
        if taken:
            raise AlreadyExists(f"object {name} exists")

    def _make_durable(self, directory: str) -> None:
        """The names in `directory`, and of it and those above it: even if another writer made them, who may not have
        synced them yet. Once is enough for each, until it is removed."""
        sync_directory(directory)
        fresh = directory
        while fresh not in self._durable_directories:
            sync_directory(os.path.dirname(fresh))
            fresh = os.path.dirname(fresh)
        while directory != fresh:
            self._durable_directories.add(directory)
            directory = os.path.dirname(directory)

    def _sweep(self) -> None:
        """Remove the temporary files of dead writers."""
        for name in os.listdir(self._temps):
            path = os.path.join(self._temps, name)
            try:
                with FileIO(path, "r") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(file.fileno()).st_nlink > 1:
                        # Its writer died between linking the object and syncing its name, which readers can see.
                        os.sync()
                    _unlink_if_there(path)
            except (BlockingIOError, FileNotFoundError, PermissionError):
                continue  # alive, swept by another, or another user's


def _remove_empty(directory: str) -> None:
    """Remove a directory and those in it, unless there is something in one of them."""
    for place, _, _ in os.walk(directory, topdown=False):
        with suppress(OSError):
            os.rmdir(place)


def _unlink_if_there(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
