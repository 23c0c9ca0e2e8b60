from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from io import FileIO
from pathlib import Path
from threading import Event

import pytest

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.model.errors import (
    AlreadyExists,
    Closed,
    Corruption,
    DiskFailed,
    DiskFull,
    InvalidArgument,
    PermissionDenied,
)
from stelae.ports.blobs import BlobInfo

WRITER = """
import sys
from stelae.adapters.blobs.local import LocalBlobStore

writer = LocalBlobStore(sys.argv[1]).create(sys.argv[2])
writer.write(b"bytes")
print("ready", flush=True)
sys.stdin.readline()
writer.commit()
"""

DIES_AFTER_LINK = """
import os, sys
from stelae.adapters.blobs.local import LocalBlobStore

link = os.link
def link_and_die(*args, **kwargs):
    link(*args, **kwargs)
    os.kill(os.getpid(), 9)
os.link = link_and_die
writer = LocalBlobStore(sys.argv[1]).create("a")
writer.write(b"bytes")
writer.commit()
"""

FORKS = """
import os, sys
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.model.errors import Closed

def closed(call, *args):
    try:
        call(*args)
    except Closed:
        return "closed"

def put(name):
    writer = store.create(name)
    writer.commit()

store = LocalBlobStore(sys.argv[1])
writer = store.create("before")
writer.write(b"bytes")
writer.commit()
blob = store.open("before")
writer = store.create("of-parent")
child = os.fork()
if child == 0:
    print(closed(writer.write, b"of the child"), closed(writer.commit), blob.read(0, 5), flush=True)
    writer.abort()
    LocalBlobStore(sys.argv[1])
    put("of-child")
    os._exit(0)
if os.waitpid(child, 0)[1]:
    sys.exit("the child failed")
writer.commit()
"""

LIMITED = """
import os, resource, sys
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.model.errors import Closed, DiskFull

store = LocalBlobStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
writer = store.create("a")
try:
    writer.write(b"x" * 2000)
except DiskFull:
    print("full")
try:
    writer.commit()
except Closed:
    print("closed")
print(os.listdir(sys.argv[1]), os.listdir(sys.argv[1] + "/.tmp"))
"""


def put(store: LocalBlobStore, name: str, data: bytes = b"bytes") -> None:
    writer = store.create(name)
    writer.write(data)
    writer.commit()


def temps(root: Path) -> set[str]:
    return set(os.listdir(root / ".tmp"))


@contextmanager
def other_writer(root: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """Another process with an open writer that has written; a line on its input lets it commit."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_opening_sweeps_after_killed_writers_and_spares_live_ones(tmp_path: Path) -> None:
    here = LocalBlobStore(tmp_path)
    mine = here.create("mine")
    mine.write(b"bytes")
    with other_writer(tmp_path, "alive") as alive, other_writer(tmp_path, "dead") as dead:
        assert len(temps(tmp_path)) == 3
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert len(temps(tmp_path)) == 3
        LocalBlobStore(tmp_path)
        assert {name.partition("-")[0] for name in temps(tmp_path)} == {str(os.getpid()), str(alive.pid)}
        alive.communicate("commit\n")
        assert alive.returncode == 0
    mine.commit()
    assert list(here.list()) == [BlobInfo("alive", 5), BlobInfo("mine", 5)]
    assert temps(tmp_path) == set()


def test_object_of_a_writer_killed_while_it_committed_is_whole(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DIES_AFTER_LINK, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(temps(tmp_path)) == 1
    store = LocalBlobStore(tmp_path)
    assert temps(tmp_path) == set()
    blob = store.open("a")
    assert blob.read(0, 5) == b"bytes"
    blob.close()


def test_forked_child_neither_commits_nor_removes_its_parents_object(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "closed closed b'bytes'\n"
    assert [info.name for info in LocalBlobStore(tmp_path).list()] == ["before", "of-child", "of-parent"]


def test_sweep_between_creation_and_lock_costs_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalBlobStore(tmp_path)
    real = fcntl.flock
    swept: list[FileIO] = []

    def sweep_first(file: FileIO, how: int) -> None:
        if not swept:
            swept.append(file)
            LocalBlobStore(tmp_path)
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    put(store, "a")
    assert len(swept) == 1
    assert list(store.list()) == [BlobInfo("a", 5)]


def test_full_disk_ends_the_writer_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "full\nclosed\n['.tmp'] []\n"


@pytest.mark.parametrize(
    "call, number, expected",
    [
        ("fsync", errno.EIO, DiskFailed),
        ("link", errno.ENOSPC, DiskFull),
        ("link", errno.EPERM, PermissionDenied),
        ("mkdir", errno.EROFS, PermissionDenied),
    ],
)
def test_failed_commit_leaves_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, expected: type[Exception]
) -> None:
    store = LocalBlobStore(tmp_path)
    writer = store.create("new/a")
    writer.write(b"bytes")

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(expected, match="new/a"):
            writer.commit()
    assert list(store.list()) == []
    assert temps(tmp_path) == set()
    put(store, "new/a")
    assert list(store.list()) == [BlobInfo("new/a", 5)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced and linked, in order."""
    made: list[str] = []
    fsync, link = os.fsync, os.link

    def record_sync(fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        made.append("sync temp" if name.startswith(f"{os.getpid()}-") else f"sync {name}")
        fsync(fd)

    def record_link(source: str, target: str) -> None:
        made.append(f"link {Path(target).name}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "link", record_link)
    return made


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="/proc tells which file a descriptor is")
def test_commit_is_durable_before_it_returns(tmp_path: Path, calls: list[str]) -> None:
    store = LocalBlobStore(tmp_path / "root")
    assert calls == [f"sync {tmp_path.name}", "sync root"]
    calls.clear()
    put(store, "a/b/one")
    assert calls == ["sync temp", "link one", "sync b", "sync a", "sync root"]
    calls.clear()
    put(store, "a/b/two")
    assert calls == ["sync temp", "link two", "sync b"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="/proc tells which file a descriptor is")
def test_directories_made_by_others_are_not_trusted(tmp_path: Path, calls: list[str]) -> None:
    store = LocalBlobStore(tmp_path / "root")
    (tmp_path / "root" / "a").mkdir()
    calls.clear()
    put(store, "a/one")
    assert calls == ["sync temp", "link one", "sync a", "sync root"]
    other = LocalBlobStore(tmp_path / "root").create("a/one")
    calls.clear()
    with pytest.raises(AlreadyExists):
        other.commit()
    assert calls == ["sync temp", "link one", "sync a", "sync root"]


def test_no_object_is_the_directory_of_another(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path)
    put(store, "a/b")
    for name in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(InvalidArgument, match=name):
            put(store, name)
    assert list(store.list()) == [BlobInfo("a/b", 5)]
    assert temps(tmp_path) == set()


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="Not a directory"):
        LocalBlobStore(tmp_path / "file")


def test_strange_files_are_left_alone(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path)
    put(store, "a/b")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x").write_bytes(b"1")
    (tmp_path / "a" / "with space").write_bytes(b"1")
    (tmp_path / "a" / "link").symlink_to("b")
    (tmp_path / "loop").symlink_to(".")
    assert list(store.list()) == [BlobInfo("a/b", 5)]


def test_file_cut_under_a_reader_is_corruption(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path)
    put(store, "a", b"0123456789")
    blob = store.open("a")
    os.truncate(tmp_path / "a", 4)
    assert blob.read(0, 4) == b"0123"
    with pytest.raises(Corruption, match="a at byte 4"):
        blob.read(2, 8)
    blob.close()


def test_close_under_a_read_does_not_change_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file that takes the number of a closed descriptor must not be read in its place."""
    store = LocalBlobStore(tmp_path)
    put(store, "a", b"right")
    put(store, "b", b"wrong")
    blob = store.open("a")
    reading, closed = Event(), Event()
    real = os.pread

    def wait_and_read(fd: int, length: int, offset: int) -> bytes:
        reading.set()
        closed.wait()
        return real(fd, length, offset)

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(os, "pread", wait_and_read)
        future = pool.submit(blob.read, 0, 5)
        reading.wait()
        blob.close()
        others = [store.open("b") for _ in range(8)]
        closed.set()
        assert future.result() == b"right"
    for other in others:
        other.close()
    with pytest.raises(Closed):
        blob.read(0, 5)


def test_a_read_only_store_changes_nothing(tmp_path: Path) -> None:
    writer = LocalBlobStore(tmp_path).create("a/b")
    writer.write(b"x")
    writer.commit()
    (tmp_path / ".tmp" / "left-behind").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    store = LocalBlobStore(tmp_path, read_only=True)
    with closing(store.open("a/b")) as blob:
        assert blob.read(0, 1) == b"x"
    for change in (lambda: store.create("c"), lambda: store.delete("a/b")):
        with pytest.raises(PermissionDenied, match="read-only"):
            change()
    assert sorted(tmp_path.rglob("*")) == before
