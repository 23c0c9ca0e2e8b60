"""Stores that older releases made are opened, read and written, however they were left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

import stelae
from stelae.format.log.reader import read_segment
from tests.golden import samples

LOG_1 = samples.HERE / "stores" / "log1"

KILLED_AFTER_A_PUT = """
import os, signal, sys
import stelae
db = stelae.open(sys.argv[1])
db.table("users").put({"id": 1_001, "name": "killed"})
os.kill(os.getpid(), signal.SIGKILL)
"""


def expected() -> dict[int, str]:
    """The names that `made_by` left, by id."""
    flushed = {n: f"flushed {n}" for n in range(0, 300, 10)}
    logged = {n: f"logged {n}" for n in range(5, 300, 50)}
    found = {**flushed, 10: "changed", **logged, 299: "the last"}
    del found[20]
    return found


def names(db: stelae.Database) -> dict[int, str]:
    return {row["id"]: row["name"] for row in db.table("users").scan()}


def versions(store: Path) -> list[int]:
    """Of the log's segments, oldest first."""
    return [read_segment(file.name, file.read_bytes()).version for file in sorted((store / "log").iterdir())]


@pytest.fixture(params=["closed", "killed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(copytree(LOG_1 / request.param, tmp_path / "data"))


def check(db: stelae.Database, wanted: dict[int, str]) -> None:
    assert db.check().problems == ()
    assert names(db) == wanted
    assert [(row["id"], row["v"]) for row in db.table("old").scan()] == [(7, 70)]
    assert db.table("users").get({"id": 0}) == {"id": 0, "name": "flushed 0", "age": 0, "seen:first": b"0"}


def test_a_store_with_a_log_of_version_1_goes_on_in_version_2(store: Path) -> None:
    wanted = expected()
    assert versions(store) == [1]
    with stelae.open(store) as db:
        check(db, wanted)
        db.table("users").put({"id": 1_000, "name": "new"})
        assert versions(store) == [1, 2]
    wanted[1_000] = "new"
    killed = subprocess.run([sys.executable, "-c", KILLED_AFTER_A_PUT, str(store)], check=False, timeout=600)
    assert killed.returncode == -9
    wanted[1_001] = "killed"
    assert set(versions(store)) == {1, 2}
    with stelae.open(store) as db:
        check(db, wanted)
        db.table("users").flush()
        db.table("old").flush()
        check(db, wanted)
    with stelae.open(store) as db:
        check(db, wanted)
        db.table("users").put({"id": 1_002, "name": "and on"})
    with stelae.open(store) as db:
        check(db, {**wanted, 1_002: "and on"})


def test_damage_in_a_log_of_version_1_is_named(store: Path) -> None:
    (log,) = (store / "log").iterdir()
    data = bytearray(log.read_bytes())
    data[data.index(b"logged 5")] ^= 1
    log.write_bytes(data)
    with pytest.raises(stelae.Corruption, match=log.name):
        stelae.open(store)
