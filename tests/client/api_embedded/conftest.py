"""A store in a directory of its own, and a table with everything in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stelae


@pytest.fixture
def db(tmp_path: Path) -> Iterator[stelae.Database]:
    with stelae.open(tmp_path / "store", timeout_s=10) as database:
        yield database


@pytest.fixture
def users(db: stelae.Database) -> stelae.Table:
    return db.create_table(
        "users",
        key={"id": "string"},
        groups=[
            stelae.columns(
                "profile",
                {"name": "string", "age": "int32 not null default 0", "score": "float64", "tags": "array<string>"},
                purge="max-history=5",
            ),
            stelae.cells("events", families=["click", "view"]),
        ],
        splits=["g", "p"],
    )


@pytest.fixture
def points(db: stelae.Database) -> stelae.Table:
    """A key of two columns."""
    groups = [stelae.columns("data", {"value": "int64"})]
    return db.create_table("points", key={"place": "string", "at": "int32"}, groups=groups)
