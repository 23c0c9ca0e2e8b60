"""What is restored of backups: each txn of a chain, in place, and nothing where there is damage."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import stelae
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.format.fragment.footer import FragmentFile
from stelae.model.hybrid import micros_of, to_datetime
from stelae.model.ids import ColumnId, GroupId, Row, SchemaVersion, TabletId, Txn
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import RangeSet, RowRange
from stelae.model.schema import Column, ColumnsGroup
from stelae.model.types import parse_type
from stelae.service.tickets import LoadTicket
from stelae.spark.jobs.backups import backup, backups
from stelae.spark.jobs.compacting import compact
from stelae.spark.jobs.manifests import MANIFEST_FILE
from stelae.spark.jobs.restoring import RestoreWork, restore, restore_files
from stelae.spark.jobs.verifying import verify
from stelae.spark.stores import fragments_of
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.rows import RowScan, ScanRequest
from stelae.storage.tablet.state import new_tablet, with_load, with_prepared
from tests.effort import tries
from tests.spark.backed import made_users, shown, take, versions
from tests.spark.tickets import Tickets, interrupting


@pytest.fixture
def db(tmp_path: Path) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def users(db: stelae.Database) -> stelae.Table:
    return made_users(db)


def test_a_chain_restored_at_each_of_its_txns(
    spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path
) -> None:
    directory, chain = tmp_path / "backups", []

    def taken() -> None:
        chain.append(take(spark, db, "users", directory))

    users.put({"id": 200})
    users.put({"id": 3, "name": "of old"}, ts=5)
    taken()
    users.put_many([{"id": i, "name": f"new{i}"} for i in range(0, 100, 3)])
    users.erase_many([5, 6, 7])
    users.erase(8, columns=["score", "click:"])
    taken()
    db.alter_table("users", rename_columns={"name": "full_name"}, add={"profile": {"age": "int8 not null default 7"}})
    users = db.table("users")
    users.put({"id": 1, "full_name": "renamed", "view:b": b"2"})
    taken()
    users.split(20)
    users.erase_range(30, 50)
    taken()
    compact(spark, db, "users")
    users.put({"id": 5, "full_name": "again"})
    db.alter_table("users", rename="people")
    chain.append(take(spark, db, "people", directory))
    chain.append(take(spark, db, "people", directory))

    results = [each.result for each in chain]
    assert [each.incremental_to for each in results] == [None, *(each.txn for each in results[:-1])]
    assert [each.reused > 0 for each in results] == [False, True, True, True, True, True]
    assert results[-1].copied_bytes == 0
    assert [each.txn for each in backups(directory)] == [each.txn for each in results]
    assert db.check().problems == ()
    for number, each in enumerate(chain):
        name = f"restored{number}"
        restored = restore(spark, db, directory, name=name, at=each.result.txn)
        table = db.table(name)
        assert (restored.at, restored.table, restored.is_new) == (each.result.txn, name, True)
        assert shown(table) == each.rows
        assert versions(table) == each.versions
        assert verify(spark, db, name, directory, other_at=each.result.txn).is_same
        assert [t.start for t in table.tablets()] == [t.start for t in users.tablets()][
            : 3 + (number > 2)
        ] or number < 3
        assert db.describe(name)["comment"] == "of the shop"
        assert db.describe(name)["groups"]["profile"]["purge"] == "max-history=3"
    assert verify(spark, db, "restored5", "people", other_at=results[-1].txn).is_same
    assert not verify(spark, db, "restored0", "restored1").is_same
    assert db.check().problems == ()


def test_between_two_backups(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    backup(spark, db, "users", tmp_path / "b")
    users.erase(1)
    between = db.now()
    rows = shown(users)
    users.put({"id": 1, "name": "back", "click:z": b"1"})
    users.erase_range(50, 60)
    last = backup(spark, db, "users", tmp_path / "b")
    restore(spark, db, tmp_path / "b", "users", name="then", at=between)
    assert shown(db.table("then")) == rows
    moment = to_datetime(last.txn)
    restore(spark, db, tmp_path / "b", "users", name="last", at=moment)
    assert shown(db.table("last")) == shown(users)
    with pytest.raises(stelae.NotFound, match=f"no backup of users covers txn .*; there are: .* to {last.txn}"):
        restore(spark, db, tmp_path / "b", "users", name="x", at=moment + timedelta(seconds=1))
    assert "x" not in db.tables()


def test_in_place(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    first = take(spark, db, "users", tmp_path / "b")
    users.put_many([{"id": i, "name": "bad"} for i in range(60, 300)])
    db.alter_table(
        "users",
        rename_columns={"name": "full_name"},
        drop=["score"],
        add={"profile": {"age": "int32"}},
        rename="people",
    )
    people = db.table("people")
    people.split(70)
    before, then = shown(people), db.now()
    told: list[tuple[int, int]] = []
    result = restore(spark, db, tmp_path / "b", in_place=True, progress=lambda *each: told.append(each))
    assert (result.table, result.is_new, result.at) == ("people", False, first.result.txn)
    assert told[-1][0] == told[-1][1] > 0
    rows = {row["id"]: row for row in people.scan()}
    assert sorted(rows) == list(range(100))
    assert dict(rows[99]) == {"id": 99, "full_name": "u99", "at": [99.0, 0.5], "age": None, "click:a": b"1"}
    assert shown(people, then) == before
    assert verify(spark, db, "people", tmp_path / "b", at=db.now(), other_at=first.result.txn).is_same
    people.put({"id": 99, "full_name": "after"})
    assert [row["full_name"] for row in people.scan(start=99)] == ["after"]
    assert db.check().problems == ()


@pytest.mark.parametrize("seed", range(tries(1)))
def test_restored_is_what_was_there(
    spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path, seed: int
) -> None:
    """Random writes, erasures, old times, splits and compactions."""
    chance, chain = random.Random(seed), []
    for ts in range(1, 4):
        for turn in range(40):
            key, when = chance.randrange(110), 1_000 * (40 * ts + turn) * chance.choice((1, -1))
            match chance.randrange(8):
                case 0:
                    users.erase(key, ts=chance.choice((None, abs(when))))
                case 1:
                    users.erase(key, columns=[chance.choice(("name", "score", "click:", "view:x"))])
                case 2:
                    users.put({"id": key})
                case 3:
                    users.put({"id": key, "view:x": bytes([turn])}, ts=when)
                case _:
                    users.put({"id": key, "name": f"{turn}", "score": chance.choice((None, turn))}, ts=when)
        if ts == 2:
            users.split(chance.randrange(1, 39))
            compact(spark, db, "users")
        chain.append(take(spark, db, "users", tmp_path / "b"))
    for number, each in enumerate(chain):
        restore(spark, db, tmp_path / "b", name=f"r{number}", at=each.result.txn)
        assert shown(db.table(f"r{number}")) == each.rows
        assert versions(db.table(f"r{number}")) == each.versions


def test_what_becomes_of_versions(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    """Two of one time differed by their txns alone, and all of a load has one: the later is left."""
    users.put({"id": 500, "name": "first", "score": 1.0, "click:a": b"1"}, ts=7)
    users.put({"id": 500, "name": "second", "click:a": b"2"}, ts=7)
    for ts in range(1, 5):
        users.put({"id": 501, "name": f"v{ts}"}, ts=ts)
    users.erase(501, columns=["name"], versions=[4])
    backup(spark, db, "users", tmp_path / "b")
    restore(spark, db, tmp_path / "b", name="then")
    found = db.table("then").history(500, limit=5)
    assert {name: [(v.value, v.ts) for v in some] for name, some in found.items()} == {
        "name": [("second", 7)],
        "score": [(1.0, 7)],
        "click:a": [(b"2", 7)],
    }
    # The first was pushed out by the fourth, and erasing that does not bring it back.
    assert [v.value for v in db.table("then").history(501, limit=5)["name"]] == ["v3", "v2"]


def test_an_interrupted_restore_leaves_nothing(
    spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path
) -> None:
    backup(spark, db, "users", tmp_path / "b")
    users.erase(1)
    tickets, before = Tickets(db), shown(users)
    for options in ({"name": "then"}, {"in_place": True}):
        with pytest.raises(KeyboardInterrupt):
            restore(spark, db, tmp_path / "b", progress=interrupting(1), **options)
        assert tickets.out == set()
        assert db.tables() == ["users"]
        assert shown(users) == before
        assert db.check().problems == ()
    restore(spark, db, tmp_path / "b", name="then")


def test_damage_is_told_and_nothing_lost(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    directory = tmp_path / "b"
    first = backup(spark, db, "users", directory)
    users.put({"id": 1, "name": "later"})
    second = backup(spark, db, "users", directory)
    before = shown(users)
    file = next(path for path in directory.rglob("*.parquet") if f"{second.txn:016x}" in str(path))
    whole = file.read_bytes()
    for damaged, message in (
        (whole[:50] + bytes([whole[50] ^ 1]) + whole[51:], "does not have its checksum"),
        (whole[:-1], f"has {len(whole) - 1} bytes instead of {len(whole)}"),
        (None, "the file is missing"),
    ):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        for options in ({"name": "then"}, {"in_place": True}):
            with pytest.raises(stelae.Corruption, match=message) as raised:
                restore(spark, db, directory, **options)
            assert file.name in str(raised.value)
            assert db.tables() == ["users"]
            assert shown(users) == before
    file.write_bytes(whole)
    manifest = directory / backups(directory)[-1].key / f"{second.txn:016x}" / MANIFEST_FILE
    text = manifest.read_bytes()
    manifest.write_bytes(text.replace(b'"users"', b'"usurs"'))
    with pytest.raises(stelae.Corruption, match=r"manifest\.json: the manifest does not have its checksum"):
        restore(spark, db, directory, name="then")
    with pytest.raises(stelae.NotFound, match="does not have its checksum"):
        restore(spark, db, directory, name="then", at=first.txn + 1)
    assert [each.problem is None for each in backups(directory)] == [True, False]
    restore(spark, db, directory, name="first", at=first.txn)
    with pytest.raises(stelae.Corruption, match="checksum"):
        backup(spark, db, "users", directory, keep=1)
    files = set(directory.rglob("*.parquet"))
    third = backup(spark, db, "users", directory)
    assert files <= set(directory.rglob("*.parquet"))
    assert third.files == third.reused
    manifest.write_bytes(text)
    assert [each.problem for each in backups(directory)] == [None, None, None]


def test_wrong_words(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    backup(spark, db, "users", tmp_path / "b")
    wrong: list[dict[str, Any]] = [{}, {"name": "x", "in_place": True}]
    for options in wrong:
        with pytest.raises(stelae.InvalidArgument, match="say one of them"):
            restore(spark, db, tmp_path / "b", **options)
    with pytest.raises(stelae.AlreadyExists, match="'users' exists already"):
        restore(spark, db, tmp_path / "b", name="users")
    assert db.tables() == ["users"]
    with pytest.raises(stelae.InvalidArgument, match="7 is no place for blobs: say file:///DIR"):
        backup(spark, db, "users", 7)
    with pytest.raises(stelae.InvalidArgument, match="at= is a txn"):
        backup(spark, db, "users", tmp_path / "b", at="yesterday")
    db.drop_table("users")
    with pytest.raises(stelae.NotFound, match=r"table 'users' \(id \d+\), which was backed up, is not there"):
        restore(spark, db, tmp_path / "b", in_place=True)


def test_rows_that_only_exist_in_files_of_another_kind(db: stelae.Database, tmp_path: Path) -> None:
    """The first group was of cells when they were put; now there is one of columns, which says what exists."""
    table = db.create_table("t", key={"id": "int64"}, groups=[stelae.cells("e", families=["click"])])
    table.put_many([{"id": 1}, {"id": 2}, {"id": 3, "click:a": b"1"}])
    table.erase(2)
    backend: Any = db._session.backend
    held = backend.hold(table._info.id)
    schema = held.schema()
    added = ColumnsGroup(GroupId(50), "p", (Column(ColumnId(51), "v", parse_type("string")),))
    for groups in ((added, *schema.groups), schema.groups):
        later = replace(schema, version=SchemaVersion(schema.version + 1), groups=groups, last_id=60)
        described = CATALOG_SERIALIZERS.encode(replace(held.description(), schema=later))
        prefix = f"fragments/00000001/0000000000000001-{len(groups)}"
        ticket = LoadTicket("load", held.description().id, "t", str(tmp_path / "out"), prefix, described, (Row(b""),))
        files: dict[GroupId, list[FragmentFile]] = {}
        for group in later.groups:
            work = RestoreWork(held.configs[0], RowRange(), group.id, 0)
            for each in restore_files(held, ticket, work).files:
                files.setdefault(each.group, []).append(each.file)
        state = with_load(
            with_prepared(new_tablet(TabletId(1), ticket.table, RowRange(), later), "load", files), "load", held.txn
        )
        fragments = fragments_of(ticket.root)
        request = ScanRequest(RangeSet.of([RowRange()]), ALL_COLUMNS, Asking(held.txn, Txn(0), micros_of(held.txn)))
        rows = [row for found in RowScan(state, fragments, request).batches() for row in found.batch.to_pylist()]
        fragments.close()
        assert [(row["id"], row["click"]) for row in rows] == [(1, []), (3, [("a", b"1")])]
    backend.release(held.ticket)
