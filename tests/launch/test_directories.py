"""Directories as users find them: shared, forked, read-only, full, of another release, with something missing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

import stelae
from stelae.adapters.sqlite.metastore import SqliteMetastore
from stelae.launch.checking import check_store
from stelae.launch.embedded import Opener
from stelae.launch.local import LocalStore
from stelae.launch.metastores import InDirectory, open_metastore
from stelae.ports.clock import Clock
from stelae.ports.metastore import PutKey
from stelae.registry.store_mark import STORE_KEY
from tests.effort import HANG_S

OWNER = """
import sys
import stelae
db = stelae.open(sys.argv[1])
table = db.create_table("t", key={"id": "string"}, groups=[stelae.columns("a", {"n": "int64"})])
db.table("t").put({"id": "first", "n": 1})
print("ready", flush=True)
sys.stdin.read()
db.close()
"""


def made(path: Path, rows: int = 100) -> None:
    with stelae.open(path) as db:
        db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})])
        db.table("t").put_many([{"id": number, "n": number} for number in range(rows)])
        db.table("t").flush()


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "kind", [stelae.DiskFull, stelae.DiskFailed, stelae.Unavailable], ids=lambda kind: kind.__name__
)
def test_what_keeps_this_process_from_opening_a_store_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[stelae.StelaeError]
) -> None:
    """Nobody else has the store: no other process is to be named."""

    def fail(*_: object, **__: object) -> None:
        raise kind("the log cannot be read")

    monkeypatch.setattr("stelae.launch.embedded._serve", fail)
    with pytest.raises(kind, match="the log cannot be read") as caught:
        stelae.open(tmp_path, timeout_s=0)
    assert type(caught.value) is kind
    assert "open in" not in str(caught.value)


def test_a_second_process_attaches_and_takes_over_when_the_first_ends(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    assert owner.stdout.readline() == "ready\n"
    with stelae.open(tmp_path / "data") as db:
        table = db.table("t")
        assert table.get("first") == {"id": "first", "n": 1}
        table.put({"id": "second", "n": 2})
        db.create_table("u", key={"id": "string"}, groups=[stelae.columns("a", {"n": "int64"})])
        owner.stdin.close()
        assert owner.wait() == 0
        owner.stdout.close()
        assert [row["id"] for row in table.scan()] == ["first", "second"]
        table.put({"id": "third", "n": 3})
        assert list(db.tables()) == ["t", "u"]
        assert db.check().problems == ()


def test_one_process_opens_a_directory_twice(tmp_path: Path) -> None:
    first = stelae.open(tmp_path / "data")
    second = stelae.open(tmp_path / "data")
    first.create_table("t", key={"id": "string"}, groups=[stelae.columns("a", {"n": "int64"})])
    second.table("t").put({"id": "a", "n": 1})
    first.close()
    assert dict(second.table("t").get("a") or {})["n"] == 1
    with pytest.raises(stelae.Closed):
        first.tables()
    second.close()
    with stelae.open(tmp_path / "data") as third:
        assert dict(third.table("t").get("a") or {})["n"] == 1


def test_a_forked_child_is_told_to_open_the_store_again_and_then_attaches(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "data") as db:
        db.create_table("t", key={"id": "string"}, groups=[stelae.columns("a", {"n": "int64"})])
        table = db.table("t")
        table.put({"id": "a", "n": 1})
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said: list[object] = []
            try:
                table.get("a")
            except stelae.Closed as error:
                said.append("forked" in str(error))
            with stelae.open(tmp_path / "data") as again:
                said.append(dict(again.table("t").get("a") or {})["n"])
                again.table("t").put({"id": "b", "n": 2})
            os.write(writing, json.dumps(said).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert json.loads(pipe.read()) == [True, 1]
        os.waitpid(child, 0)
        assert dict(table.get("b") or {})["n"] == 2


def test_nothing_is_changed_in_a_directory_that_is_only_read(tmp_path: Path) -> None:
    made(tmp_path / "data")
    before = contents(tmp_path / "data")
    with stelae.open(tmp_path / "data", read_only=True) as db:
        assert db.table("t").count() == 100
        with pytest.raises(stelae.PermissionDenied, match="read-only"):
            db.table("t").put({"id": 1, "n": 2})
        with pytest.raises(stelae.PermissionDenied, match="read-only"):
            db.drop_table("t")
        assert db.check().problems == ()
    assert contents(tmp_path / "data") == before


def test_a_directory_without_a_store_cannot_be_only_read(tmp_path: Path) -> None:
    with pytest.raises(stelae.NotFound, match="no store"):
        stelae.open(tmp_path / "nothing", read_only=True)
    assert not (tmp_path / "nothing").exists()


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a store")
    with pytest.raises(stelae.InvalidArgument, match="is a file"):
        stelae.open(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "not a store"


def test_a_store_of_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    made(tmp_path / "data")

    async def from_the_future() -> None:
        async with open_metastore(InDirectory(tmp_path / "data")) as metastore:
            await metastore.txn([], [PutKey(STORE_KEY, b'{"format": 99, "token": "x"}')])

    asyncio.run(from_the_future())
    before = contents(tmp_path / "data" / "fragments")
    for read_only in (False, True):
        with pytest.raises(stelae.StelaeError, match="format 99"):
            stelae.open(tmp_path / "data", read_only=read_only)
    assert contents(tmp_path / "data" / "fragments") == before


@pytest.mark.parametrize("damage", ["PRAGMA user_version = 99", "DROP TABLE store"])
def test_an_error_names_the_directory_and_not_the_copy_that_was_read(tmp_path: Path, damage: str) -> None:
    made(tmp_path / "data")
    with closing(sqlite3.connect(tmp_path / "data" / "metastore.db")) as metastore:
        metastore.execute(damage)
        metastore.commit()
    said = []
    for read_only in (False, True):
        with pytest.raises(stelae.StelaeError, match=re.escape(str(tmp_path / "data" / "metastore.db"))) as caught:
            stelae.open(tmp_path / "data", read_only=read_only)
        said.append((type(caught.value), str(caught.value), vars(caught.value)))
    assert said[0] == said[1]


def test_a_metastore_is_read_where_nobody_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only mount, where SQLite cannot make the files it needs beside its own."""
    made(tmp_path / "data", rows=1)
    before, places = contents(tmp_path / "data"), []
    plain = SqliteMetastore.open

    async def refusing(path: Path, clock: Clock, *, read_only: bool = False) -> SqliteMetastore:
        places.append(path.parent)
        if path.parent == tmp_path / "data":
            raise stelae.PermissionDenied(f"{path}: unable to open database file")
        return await plain(path, clock, read_only=read_only)

    monkeypatch.setattr(SqliteMetastore, "open", refusing)

    async def read() -> list[str]:
        async with open_metastore(InDirectory(tmp_path / "data"), read_only=True) as metastore:
            return [entry.key for entry in (await metastore.range("")).entries]

    assert STORE_KEY in asyncio.run(read())
    assert contents(tmp_path / "data") == before
    (tmp_path / "data" / "metastore.db").write_bytes(b"no database, by far" * 100)
    with pytest.raises(stelae.Corruption, match=re.escape(str(tmp_path / "data" / "metastore.db"))):
        asyncio.run(read())
    assert [place.exists() for place in places] == [True, False, True, False]


def test_a_missing_fragment_is_named(tmp_path: Path) -> None:
    made(tmp_path / "data")
    (lost,) = [
        file for file in (tmp_path / "data" / "fragments").rglob("*.parquet") if not file.parent.name.startswith("4000")
    ]
    lost.unlink()
    with stelae.open(tmp_path / "data") as db:
        (problem,) = db.check().problems
        assert lost.name in problem.where
        assert "missing" in problem.words
        with pytest.raises(stelae.StelaeError, match=lost.name):
            list(db.table("t").scan())
        assert db.tables() is not None


def test_a_damaged_fragment_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    made(tmp_path / "data", rows=5_000)
    (file,) = [
        file for file in (tmp_path / "data" / "fragments").rglob("*.parquet") if not file.parent.name.startswith("4000")
    ]
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0x40
    file.write_bytes(data)
    with stelae.open(tmp_path / "data") as db:
        (problem,) = db.check().problems
        assert file.name in problem.where
        with pytest.raises(stelae.Corruption, match=file.name):
            list(db.table("t").scan())
    assert file.read_bytes() == bytes(data)


def test_stray_files_are_left_alone(tmp_path: Path) -> None:
    made(tmp_path / "data")
    for name in ("notes.txt", "log/notes.txt", "fragments/notes.txt"):
        (tmp_path / "data" / name).write_text("mine")
    with stelae.open(tmp_path / "data") as db:
        db.table("t").compact()
        assert db.table("t").count() == 100
        assert db.check().problems == ()
    for name in ("notes.txt", "log/notes.txt", "fragments/notes.txt"):
        assert (tmp_path / "data" / name).read_text() == "mine"


FULL = """
import resource, signal, sys
import stelae
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
db = stelae.open(sys.argv[1], timeout_s=0)  # nothing is tried again
table = db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"text": "string"})])
table = db.table("t")
table.put({"id": 0, "text": "first"})
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
said, number = "", 1
while not said and number < 1_000:
    try:
        table.put({"id": number, "text": "x" * 1_000})
        number += 1
    except stelae.StelaeError as error:
        said = f"{type(error).__name__}: {error}"
print(said)
print(number, sum(1 for _ in table.scan()), table.get(0)["text"])
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
table.put({"id": number, "text": "again"})
print(table.get(number)["text"], table.count())
db.close()
"""


def test_a_full_disk_is_said_and_writing_goes_on_once_there_is_room(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY:
        pytest.skip("the size of files is limited here already")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, counts, after = done.stdout.splitlines()
    assert said.startswith("DiskFull:"), said
    number, seen, first = counts.split()
    assert (seen, first) == (number, "first")
    assert after == f"again {int(number) + 1}"


@pytest.mark.parametrize("lost", ["metastore.db", "log"])
def test_a_store_that_has_lost_a_part_is_not_taken_for_a_new_one(tmp_path: Path, lost: str) -> None:
    made(tmp_path / "data")
    with stelae.open(tmp_path / "data") as db:
        db.table("t").put({"id": -1, "n": 1})
    place = tmp_path / "data" / lost
    aside = place.rename(tmp_path / "aside")
    before = contents(tmp_path / "data" / "fragments")
    with pytest.raises(stelae.Corruption, match="left as it is"):
        stelae.open(tmp_path / "data")
    assert contents(tmp_path / "data" / "fragments") == before
    if place.is_dir():
        shutil.rmtree(place)
    aside.replace(place)
    with stelae.open(tmp_path / "data") as db:
        assert db.table("t").count() == 101
        assert db.check().problems == ()


def test_what_is_erased_for_good_is_in_no_file(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "data") as db:
        db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"text": "string"}, compression="none")])
        table = db.table("t")
        table.put({"id": 1, "text": "a-very-secret-word"})
        table.put({"id": 2, "text": "kept-word"})
        table.erase(1)
        table.compact(erase_now=True)
        files = contents(tmp_path / "data")
        assert not [name for name, data in files.items() if b"a-very-secret-word" in data]
        assert [name for name, data in files.items() if b"kept-word" in data]


def test_a_read_far_ahead_is_refused_and_moves_no_clock(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "data") as db:
        db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})])
        table = db.table("t")
        before = table.put({"id": 1, "n": 1})
        with pytest.raises(stelae.InvalidArgument, match="in the future"):
            table.get(1, at=datetime.now(UTC) + timedelta(hours=1))
        assert table.put({"id": 1, "n": 2}) - before < 60_000 << 16


def test_the_log_does_not_fall_to_pieces(tmp_path: Path) -> None:
    for number in range(30):
        with stelae.open(tmp_path / "data") as db:
            db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})], if_not_exists=True)
            db.table("t").put({"id": number, "n": number})
    assert len(list((tmp_path / "data" / "log").iterdir())) < 15
    with stelae.open(tmp_path / "data") as db:
        assert db.table("t").count() == 30


def test_a_table_makes_its_namespace(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "data") as db:
        db.create_table("sales.t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})])
        db.create_table("sales.u", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})])
        db.table("sales.t").put({"id": 1, "n": 1})
    with stelae.open(tmp_path / "data") as db:
        assert list(db.tables()) == ["sales.t", "sales.u"]
        assert db.table("sales.t").count() == 1


def test_older_schemas_are_known_as_long_as_the_log_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stelae.registry.catalog.following.VERSIONS_MAX", 2)
    for number in range(3):
        with stelae.open(tmp_path / "data") as db:
            db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})], if_not_exists=True)
            table = db.table("t")
            table.put({"id": number, "n": number})
            db.alter_table("t", add={"a": {f"more{number}": "int64"}})
            table.put({"id": 10 + number, "n": number, f"more{number}": 1})
    with stelae.open(tmp_path / "data") as db:
        rows = {row["id"]: row for row in db.table("t").scan()}
    assert sorted(rows) == [0, 1, 2, 10, 11, 12]
    assert [rows[10 + number][f"more{number}"] for number in range(3)] == [1, 1, 1]


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    made(tmp_path / "data")
    stray = tmp_path / "data" / "fragments" / "00000010" / "0000000000000001-aabbccddeeff.parquet"
    stray.write_bytes(b"what a crash left")
    before = contents(tmp_path / "data")
    report = check_store(tmp_path / "data")
    assert report.problems == ()
    assert report.counts["unneeded fragments"] == 1
    assert contents(tmp_path / "data") == before


@pytest.mark.parametrize("place", ["s3://bucket/data", "hdfs://host/data", "https://example.org/data", "s3:/bucket"])
def test_a_scheme_that_is_not_served_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (place, Path(place)):
        with pytest.raises(stelae.InvalidArgument, match="a store is opened by a directory of this machine"):
            stelae.open(given)
    assert list(tmp_path.iterdir()) == []


def test_home_and_file_urls_are_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    stelae.open("~/data").close()
    stelae.open(Path("~") / "more", store="~/fragments").close()
    stelae.open(f"file://{tmp_path}/with%20space").close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["home", "with space"]
    assert sorted(each.name for each in (tmp_path / "home").iterdir()) == ["data", "fragments", "more"]
    with pytest.raises(stelae.InvalidArgument, match="no such user"):
        stelae.open("~nobody-of-that-name/data")


def test_a_store_that_must_be_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(stelae.NotFound, match=r"no store in .*create=True"):
        stelae.open(tmp_path / "data", create=False)
    assert list(tmp_path.iterdir()) == []
    stelae.open(tmp_path / "data").close()
    with stelae.open(tmp_path / "data", create=False) as db:
        assert db.tables() == []


def test_opening_waits_for_another_opening_no_longer_than_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not get on, with a stopped owner say, holds up others only until their own time is over."""
    begun, go_on, plain = Event(), Event(), Opener.own

    def slowly(self: Opener) -> LocalStore | None:
        if self.directory.name == "slow":
            begun.set()
            assert go_on.wait(HANG_S)
        return plain(self)

    monkeypatch.setattr(Opener, "own", slowly)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(stelae.open, tmp_path / "slow")
        assert begun.wait(HANG_S)
        try:
            with pytest.raises(stelae.DeadlineExceeded, match="another one was being opened"):
                stelae.open(tmp_path / "other", timeout_s=0.01)
        finally:
            go_on.set()
        slow.result().close()
    stelae.open(tmp_path / "other", timeout_s=0.01).close()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("\0x", "it has a zero byte in it"),
        ("x" * 5_000, "a name in one has at most 255 bytes"),
        ("a/" + "y" * 300, "a name in one has at most 255 bytes"),
        ("file:x", "or by file:///DIR"),
        ("mem:", "or by file:///DIR"),
        (" s3://b/x", "not under s3:"),
        (Path("s3://b/x"), "^s3://b/x: "),
        ("localhost:7100", "a cluster, .*stelae.connect"),
        ("10.0.0.1:7100", "a cluster, .*stelae.connect"),
    ],
)
def test_what_is_no_directory_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | Path, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for read_only in (False, True):
        with pytest.raises(stelae.InvalidArgument, match=words):
            stelae.open(place, read_only=read_only)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_a_colon_in_its_name_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("a:b", tmp_path / "host:80", "./mem:"):
        stelae.open(place).close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a:b", "host:80", "mem:"]


def test_a_dropped_table_whose_files_are_gone_is_told_of_and_not_recalled(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "data") as db:
        table = db.create_table("gone", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})])
        table.put({"id": 1, "n": 1})
        db.drop_table("gone")
        assert db.check().problems == ()
        (file,) = (tmp_path / "data" / "fragments" / f"{table._info.id:08x}").iterdir()
        file.rename(tmp_path / "aside")
        (problem,) = db.check().problems
        assert (problem.words, "gone (dropped)" in problem.where) == ("is missing", True)
    with stelae.open(tmp_path / "data") as db:
        assert [each.words for each in db.check().problems] == ["is missing"]
        with pytest.raises(stelae.Corruption, match="is missing, and the dropped table needs it"):
            db.recall_table("gone")
        assert db.tables() == []
        (tmp_path / "aside").rename(file)
        assert db.recall_table("gone").get(1) == {"id": 1, "n": 1}
        assert db.check().problems == ()
