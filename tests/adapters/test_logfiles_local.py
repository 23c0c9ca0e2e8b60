from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from io import FileIO
from pathlib import Path

import pytest

from stelae.adapters.files import stelae_error
from stelae.adapters.logfiles.local import LocalLogFile, LocalLogFiles
from stelae.adapters.logfiles.marks import LogMarks
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
from stelae.ports.logfiles import LogFileInfo

LIMITED = """
import resource, sys
from stelae.adapters.logfiles.local import LocalLogFiles
from stelae.model.errors import DiskFull

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
logs = LocalLogFiles(sys.argv[1])
file = logs.create("log")
file.append(b"a" * 900)
try:
    file.append(b"b" * 200)
except DiskFull:
    print("full at", file.size_bytes)
file.sync()
file.close()
logs.truncate("log", 900)
print("kept", logs.read("log") == b"a" * 900)
"""


@pytest.mark.parametrize(
    "number, meaning",
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EFBIG, DiskFull),
        (errno.EACCES, PermissionDenied),
        (errno.EPERM, PermissionDenied),
        (errno.EROFS, PermissionDenied),
        (errno.ENOENT, NotFound),
        (errno.EEXIST, AlreadyExists),
        (errno.ENOTDIR, InvalidArgument),
        (errno.EIO, DiskFailed),
        (errno.EMFILE, Overloaded),
    ],
)
def test_system_errors_mean_errors_of_the_contract(number: int, meaning: type[StelaeError]) -> None:
    error = stelae_error(OSError(number, os.strerror(number)), "the/place")
    assert type(error) is meaning
    assert str(error).startswith(f"the/place: {os.strerror(number)}")


def test_full_disk_keeps_a_part_and_says_where_the_file_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "full at 1000\nkept True\n"


def test_device_without_room_is_full() -> None:
    file = LocalLogFile(FileIO("/dev/full", "w"), "full", "/dev")
    with pytest.raises(DiskFull, match="full"):
        file.append(b"bytes")
    assert file.size_bytes == 0
    file.close()


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = LocalLogFiles(tmp_path)
    file = logs.create("log")
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:3], offset))
    assert file.append(b"0123456789") == 0
    assert file.append(b"abcd") == 10
    file.close()
    assert logs.read("log") == b"0123456789abcd"


def test_short_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = LocalLogFiles(tmp_path)
    (tmp_path / "log").write_bytes(b"0123456789")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 3), offset))
    assert logs.read("log", 1, 8) == b"12345678"


def test_device_error_is_disk_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = LocalLogFiles(tmp_path)
    file = logs.create("log")
    file.append(b"bytes")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(DiskFailed, match="log"):
            file.sync()
        patch.setattr(os, "fsync", fail)
        with pytest.raises(DiskFailed):
            logs.delete("log")
    file.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was synced, in order."""
    names: list[str] = []

    def recorded(real: Callable[[int], None]) -> Callable[[int], None]:
        def record(fd: int) -> None:
            names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
            real(fd)

        return record

    monkeypatch.setattr(os, "fsync", recorded(os.fsync))
    monkeypatch.setattr(os, "fdatasync", recorded(os.fdatasync))
    return names


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="/proc tells which file a descriptor is")
def test_every_promise_is_synced(tmp_path: Path, synced: list[str]) -> None:
    logs = LocalLogFiles(tmp_path / "new" / "logs")
    assert synced == [tmp_path.name, "new"]
    synced.clear()
    file = logs.create("log")
    file.append(b"bytes")
    assert synced == []
    file.sync()
    assert synced == ["log", "logs"]
    file.append(b"more")
    file.sync()
    assert synced == ["log", "logs", "log"]
    file.close()
    synced.clear()
    logs.truncate("log", 9)
    assert synced == ["log", "logs"]
    logs.delete("log")
    assert synced == ["log", "logs", "logs"]
    logs.delete("log")
    assert synced == ["log", "logs", "logs", "logs"]


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="Not a directory"):
        LocalLogFiles(tmp_path / "file")
    with pytest.raises(InvalidArgument, match="Not a directory"):
        LocalLogFiles(tmp_path / "file" / "logs")


def test_directory_that_went_away_is_not_found(tmp_path: Path) -> None:
    logs = LocalLogFiles(tmp_path / "logs")
    (tmp_path / "logs").rmdir()
    with pytest.raises(NotFound):
        logs.create("log")
    with pytest.raises(NotFound):
        logs.list()


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_directory_without_permission_is_denied(tmp_path: Path) -> None:
    logs = LocalLogFiles(tmp_path / "logs")
    (tmp_path / "logs").chmod(0o500)
    with pytest.raises(PermissionDenied):
        logs.create("log")
    (tmp_path / "logs").chmod(0o700)


def test_strange_files_are_left_alone(tmp_path: Path) -> None:
    logs = LocalLogFiles(tmp_path)
    (tmp_path / ".hidden").write_bytes(b"1")
    (tmp_path / "with space").write_bytes(b"1")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("log")
    (tmp_path / "log").write_bytes(b"1")
    assert logs.list() == [LogFileInfo("log", 1)]


def test_room_is_taken_ahead_and_given_back(tmp_path: Path) -> None:
    logs = LocalLogFiles(tmp_path)
    file = logs.create("log")
    file.append(b"0123")
    file.append(b"4567")
    taken_bytes = (tmp_path / "log").stat().st_size
    assert taken_bytes > 8
    assert LocalLogFiles(tmp_path).read("log") == b"01234567".ljust(taken_bytes, b"\0")
    assert logs.list() == [LogFileInfo("log", 8)]
    assert logs.read("log") == b"01234567"
    file.append(bytes(taken_bytes))
    assert (tmp_path / "log").stat().st_size == file.size_bytes == 8 + taken_bytes
    file.append(b"!")
    assert (tmp_path / "log").stat().st_size > file.size_bytes
    file.close()
    assert (tmp_path / "log").stat().st_size == file.size_bytes == 9 + taken_bytes


def test_a_file_system_without_room_ahead_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    file = LocalLogFiles(tmp_path).create("log")
    file.append(b"0123")
    file.append(b"4567")
    file.sync()
    assert (tmp_path / "log").read_bytes() == b"01234567"
    file.close()


@pytest.mark.parametrize("room", ["taken", "refused"])
@pytest.mark.parametrize("advice", ["taken", "refused"])
def test_appends_of_all_sizes_stand_behind_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str, advice: str
) -> None:
    def refuse_call(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    if room == "refused":
        monkeypatch.setattr(os, "posix_fallocate", refuse_call)
    if advice == "refused":
        monkeypatch.setattr(os, "posix_fadvise", refuse_call)
    file, expected = LocalLogFiles(tmp_path).create("log"), b""
    for size_bytes in (1, 1_000, 20_000, 3, 140_000, 5, 2**21, 7, 2**21 + 1, 11, 9 * 2**20 + 13, 17):
        data = [os.urandom(size_bytes), b"-"]
        assert file.append(*data) == len(expected)
        expected += b"".join(data)
    file.sync()
    file.close()
    assert (tmp_path / "log").read_bytes() == expected


def test_room_that_is_refused_half_way_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def take_some(fd: int, offset: int, _: int) -> None:
        os.ftruncate(fd, offset + 4_096)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = LocalLogFiles(tmp_path).create("log")
    monkeypatch.setattr(os, "posix_fallocate", take_some)
    file.append(b"0123")
    assert (tmp_path / "log").read_bytes() == b"0123"
    file.close()


def test_the_mark_says_up_to_where_the_log_was_synced(tmp_path: Path) -> None:
    def opened(marks: LogMarks | None = None) -> LocalLogFiles:
        return LocalLogFiles(tmp_path / "log", ".log", marks or LogMarks(tmp_path, ".log"))

    marks = LogMarks(tmp_path, ".log")
    files = opened(marks)
    assert files.synced() is None
    for number in (1, 2):
        with closing(files.create(f"{number:016x}.log")) as file:
            for size in (3, 6, 9):
                file.append(b"abc")
                file.sync()
                assert opened().synced() == LogFileInfo(f"{number:016x}.log", size)
            file.append(b"not synced")
    marks.close()
    data = bytearray((tmp_path / "log.mark").read_bytes())
    for at in range(len(data)):
        data[at] ^= 1
        (tmp_path / "log.mark").write_bytes(data)
        assert opened().synced() in [LogFileInfo(f"{2:016x}.log", size) for size in (6, 9)]
        data[at] ^= 1
    (tmp_path / "log.mark").write_bytes(b"")
    assert opened().synced() is None


def test_the_oldest_file_is_missed_unless_it_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number:016x}.log" for number in range(4)]
    marks = LogMarks(tmp_path, ".log")
    files = LocalLogFiles(tmp_path / "log", ".log", marks)

    def missed() -> str | None:
        return LocalLogFiles(tmp_path / "log", ".log", LogMarks(tmp_path, ".log")).lost()

    def hidden(name: str) -> str | None:
        """What is missed while a file is away."""
        (tmp_path / "log" / name).rename(tmp_path / "aside")
        found = missed()
        (tmp_path / "aside").rename(tmp_path / "log" / name)
        return found

    for name in names:
        with closing(files.create(name)) as file:
            file.append(b"abc")
            assert hidden(name) == (None if name == names[0] else missed())  # not synced: it may go
            file.sync()
    assert [hidden(name) for name in names] == [names[0], None, None, None]
    files.delete(names[2])
    assert hidden(names[0]) == names[0]
    files.delete(names[0])
    files.delete(names[0])
    assert missed() is None
    assert [hidden(name) for name in (names[1], names[3])] == [names[1], None]
    with monkeypatch.context() as patch:
        patch.setattr("stelae.adapters.marks.sync_file", refuse)
        files.delete(names[1])
    assert missed() is hidden(names[3]) is None  # what cannot be noted is not said
    files.delete(names[3])
    assert missed() is None
    marks.close()


def refuse(_: int) -> None:
    raise OSError(errno.EIO, "refused")
