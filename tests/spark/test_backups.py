"""Backups: what they copy, share, keep and remove, and what is left of those that did not end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stelae
from stelae.model.hybrid import COUNTER_BITS
from stelae.model.ids import Txn
from stelae.spark.jobs.backups import LEFT_ALONE_MS, backup, backups
from stelae.spark.jobs.manifests import FoundBackup, covering, decode_manifest, encode_manifest
from stelae.spark.jobs.restoring import restore
from stelae.spark.jobs.verifying import verify
from tests.spark.backed import made_users, shown
from tests.spark.tickets import Tickets, interrupting


@pytest.fixture
def db(tmp_path: Path) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def users(db: stelae.Database) -> stelae.Table:
    return made_users(db)


def test_an_interrupted_backup_is_used(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    tickets, directory = Tickets(db), tmp_path / "b"
    with pytest.raises(KeyboardInterrupt):
        backup(spark, db, "users", directory, progress=interrupting(2))
    assert tickets.out == set()
    assert backups(directory) == []
    left = {path.name for path in directory.rglob("*.parquet")}
    assert left
    (damaged,) = list(directory.rglob("*.parquet"))[:1]
    data = bytearray(damaged.read_bytes())
    data[9] ^= 1
    damaged.write_bytes(data)
    result = backup(spark, db, "users", directory)
    assert result.reused == len(left) - 1
    assert result.incremental_to is None
    assert verify(spark, db, "users", directory).is_same
    assert db.check().problems == ()


def test_the_store_s_own_damage_is_not_backed_up(
    spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path
) -> None:
    users.flush()
    for file in (tmp_path / "data").rglob("*.parquet"):
        data = bytearray(file.read_bytes())
        data[30] ^= 1
        file.write_bytes(data)
    with pytest.raises(stelae.Corruption, match="does not have its checksum"):
        backup(spark, db, "users", tmp_path / "b")
    assert backups(tmp_path / "b") == []


def test_full_keep_and_what_is_left_over(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    directory = tmp_path / "b"
    with pytest.raises(stelae.NotFound, match="no backup of table 'users'"):
        backup(spark, db, "users", directory, incremental=True)
    first = backup(spark, db, "users", directory)
    with pytest.raises(stelae.AlreadyExists, match=f"txn {first.txn}"):
        backup(spark, db, "users", directory, at=first.txn)
    full = backup(spark, db, "users", directory, incremental=False)
    assert (full.reused, full.incremental_to) == (0, None)
    assert full.copied_bytes == full.size_bytes
    users.put({"id": 1, "name": "later"})
    result = backup(spark, db, "users", directory, incremental=True, keep=2)
    assert (result.pruned, result.incremental_to) == (1, full.txn)
    assert "pruned  1 older" in str(result)
    key = backups(directory)[0].key
    assert not list((directory / key / f"{first.txn:016x}").iterdir())
    assert [each.txn for each in backups(directory)] == [full.txn, result.txn]
    # What a backup left that never ended goes once it is old; what may be under way stays.
    file = next(directory.rglob("*.parquet"))
    old = Txn(result.txn - (LEFT_ALONE_MS + 10_000 << COUNTER_BITS))
    for txn in (old, Txn(result.txn - 1)):
        (directory / key / f"{txn:016x}").mkdir()
        (directory / key / f"{txn:016x}" / f"{txn:016x}-00.parquet").write_bytes(file.read_bytes())
    last = backup(spark, db, "users", directory)
    assert not (directory / key / f"{old:016x}" / f"{old:016x}-00.parquet").exists()
    assert (directory / key / f"{result.txn - 1:016x}" / f"{result.txn - 1:016x}-00.parquet").exists()
    assert verify(spark, db, "users", directory, at=last.txn).is_same
    before = backup(spark, db, "users", directory, at=last.txn - 1, keep=1)
    assert [each.txn for each in backups(directory)] == [before.txn, last.txn]
    users.put({"id": 2, "name": "last of all"})
    only = backup(spark, db, "users", directory, keep=1)
    assert only.reused > 0
    assert [each.txn for each in backups(directory)] == [only.txn]
    assert verify(spark, db, "users", directory).is_same
    with pytest.raises(stelae.InvalidArgument, match="at least 1, not 0"):
        backup(spark, db, "users", directory, keep=0)


def test_a_file_that_somebody_removes_meanwhile(
    spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path
) -> None:
    directory = tmp_path / "b"
    backup(spark, db, "users", directory)
    users.put({"id": 1, "name": "later"})

    def remove(_done: int, _total: int) -> None:
        for file in directory.rglob("*.parquet"):
            file.unlink()

    with pytest.raises(stelae.Conflict, match="was removed from the backup directory meanwhile"):
        backup(spark, db, "users", directory, progress=remove)
    assert len(backups(directory)) == 1
    result = backup(spark, db, "users", directory)
    assert (result.reused, result.incremental_to) == (0, None)
    assert verify(spark, db, "users", directory).is_same


def test_several_tables_and_stores(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    directory = tmp_path / "b"
    backup(spark, db, "users", directory)
    first = {each.good().store for each in backups(directory)}
    db.create_table("empty", key={"id": "string"}, groups=[stelae.columns("p", {"v": "string"})])
    backup(spark, db, "empty", directory)
    with pytest.raises(stelae.InvalidArgument, match=r"say which table of .* is meant"):
        restore(spark, db, directory, name="x")
    with pytest.raises(stelae.NotFound, match=r"no backup of table 'user' in .*; did you mean 'users'"):
        restore(spark, db, directory, "user", name="x")
    with pytest.raises(stelae.NotFound, match="there is no backup in"):
        restore(spark, db, tmp_path / "nowhere", name="x")
    assert restore(spark, db, directory, "empty", name="still_empty").records == 0
    assert db.table("still_empty").count() == 0
    with stelae.open(tmp_path / "other") as other:
        restore(spark, other, directory, "users", name="users")
        assert shown(other.table("users")) == shown(users)
        backup(spark, other, "users", directory)
        with pytest.raises(stelae.InvalidArgument, match="say which"):
            restore(spark, other, directory, "users", name="x")
        keys = {each.good().store: each.key for each in backups(directory) if each.good().table == "users"}
        assert len(keys) == 2
        with pytest.raises(stelae.StelaeError, match=r"is of another store|is not there"):
            restore(spark, other, directory, next(key for store, key in keys.items() if store in first), in_place=True)
        restore(spark, other, directory, next(key for store, key in keys.items() if store not in first), in_place=True)
        assert shown(other.table("users")) == shown(users)


def test_manifests(spark: Any, db: stelae.Database, users: stelae.Table, tmp_path: Path) -> None:
    backup(spark, db, "users", tmp_path / "b")
    manifest = backups(tmp_path / "b")[0].good()
    text = encode_manifest(manifest)
    assert decode_manifest(text, "m") == manifest
    assert manifest.columns == {
        "id": "int64 key",
        "name": "string",
        "score": "float64",
        "at": "vector(float32, 2)",
        "click:": "cells",
        "view:": "cells",
    }
    with pytest.raises(stelae.StelaeError, match="m: a manifest of version 2; this release reads version 1"):
        decode_manifest(text.replace(b'"version":1,"crc32c"', b'"version":2,"crc32c"'), "m")
    for damaged in (b"", b"{", b"[]", text[: len(text) // 2], text.replace(b"int64", b"int32")):
        with pytest.raises(stelae.Corruption, match=r"^m: the manifest"):
            decode_manifest(damaged, "m")
    chain = [
        FoundBackup("k", Txn(txn), msgspec.structs.replace(manifest, txn=Txn(txn), horizon=Txn(horizon)))
        for horizon, txn in ((0, 10), (8, 20), (25, 30))
    ]
    assert [covering(chain, Txn(at)).txn for at in (0, 9, 10, 11, 20, 25, 30)] == [10, 10, 10, 20, 20, 30, 30]
    assert covering(chain, None).txn == 30
    for at in (21, 24, 31):
        with pytest.raises(stelae.NotFound, match=f"no backup of users covers txn {at}; there are: 0 to 10 "):
            covering(chain, Txn(at))
