"""A table that is backed up, and what it shows: for the tests of backups and of what is restored of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import stelae
from stelae.spark.jobs.backups import BackupResult, backup

GROUPS = [
    stelae.columns(
        "profile", {"name": "string", "score": "float64", "at": "vector(float32, 2)"}, purge="max-history=3"
    ),
    stelae.cells("events", families=["click", "view"]),
]


def made_users(db: stelae.Database) -> stelae.Table:
    """Three tablets, columns of all sorts, cells, and a policy."""
    users = db.create_table("users", key={"id": "int64"}, groups=GROUPS, splits=[40, 80], comment="of the shop")
    users.put_many(
        [
            {"id": i, "name": f"u{i}", "score": float("nan") if i % 9 == 0 else -0.0, "at": [i, 0.5], "click:a": b"1"}
            for i in range(100)
        ]
    )
    return users


def shown(table: stelae.Table, at: int | None = None) -> str:
    """All rows, with NaN equal to itself."""
    return repr(table.scan(at=at).to_arrow().to_pylist())


def versions(table: stelae.Table, at: int | None = None) -> str:
    """All that a table has, with its times: txns are given anew when it is restored."""
    return repr(_without_txns(table.scan("history = 10", at=at).to_arrow().to_pylist()))


def _without_txns(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_txns(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_txns(each) for name, each in value.items() if name != "txn"}
    return value


class Taken(NamedTuple):
    result: BackupResult
    rows: str
    versions: str


def take(spark: Any, db: stelae.Database, name: str, directory: Path, **options: Any) -> Taken:
    result = backup(spark, db, name, directory, **options)
    table = db.table(name)
    return Taken(result, shown(table, result.txn), versions(table, result.txn))
