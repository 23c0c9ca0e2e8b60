"""What both local adapters ask of the operating system, and what its refusals mean."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from typing_extensions import Buffer

from stelae.model.errors import (
    AlreadyExists,
    DiskFailed,
    DiskFull,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    StelaeError,
)

_MEANING: dict[int, type[StelaeError]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EFBIG: DiskFull,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EROFS: PermissionDenied,
    errno.ENOENT: NotFound,
    errno.EEXIST: AlreadyExists,
    errno.ENOTDIR: InvalidArgument,
    errno.EISDIR: InvalidArgument,
    errno.ENAMETOOLONG: InvalidArgument,
    errno.EMFILE: Overloaded,
    errno.ENFILE: Overloaded,
}


def stelae_error(error: OSError, place: str) -> StelaeError:
    """The error of the contract for one of the system; what has no meaning of its own is a failing device."""
    meaning = _MEANING.get(error.errno or 0, DiskFailed)
    if meaning is Overloaded:
        return Overloaded(f"{place}: {error.strerror}: close some, or raise the limit of the process (ulimit -n)")
    return meaning(f"{place}: {error.strerror or error}")


@contextmanager
def os_errors(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise stelae_error(error, place) from error


def write_all(fd: int, *data: Buffer) -> int:
    """Write every byte, however little the system takes at a time; how many there were."""
    size_bytes = 0
    for part in data:
        rest = memoryview(part).cast("B")
        size_bytes += len(rest)
        while rest:
            rest = rest[os.write(fd, rest) :]
    return size_bytes


def read_all(fd: int, offset: int, length: int) -> bytes:
    """The bytes at offset, fewer only where the file ends; the descriptor's own position stays where it is."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    read_bytes = len(data)
    while read_bytes < length and (data := os.pread(fd, length - read_bytes, offset + read_bytes)):
        parts.append(data)
        read_bytes += len(data)
    return b"".join(parts)


def sync_file(fd: int) -> None:
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: its fsync stops at the drive's cache
    if full_sync is None:
        os.fsync(fd)
    else:
        fcntl.fcntl(fd, full_sync)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def make_directories(path: str) -> None:
    """The directory and those above it, each durable in the one that holds it."""
    missing = []
    current = os.path.abspath(path)
    while not os.path.isdir(current):
        missing.append(current)
        current = os.path.dirname(current)
    for directory in reversed(missing):
        try:
            os.mkdir(directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None
        sync_directory(os.path.dirname(directory))


def write_new_file(path: str, data: bytes) -> bool:
    """A file with these bytes, whole and durable; whether it was made: one that is there already stays as it is."""
    draft = f"{path}.{os.getpid()}.new"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data)
        sync_file(fd)
    finally:
        os.close(fd)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    sync_directory(os.path.dirname(path) or ".")
    return True


def replace_file(path: str, data: bytes) -> None:
    """The file with these bytes, durable; whoever reads it meanwhile finds it as it was before, or as it is now."""
    draft = f"{path}.{os.getpid()}.new"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
            sync_file(fd)
        finally:
            os.close(fd)
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise
    sync_directory(os.path.dirname(path) or ".")


def memory_of_machine() -> int:
    """In bytes; 0 if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
