"""`stelae compact|export|backup|restore|verify|stats`: words in, jobs done, answers for people and programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import stelae
from stelae.model.hybrid import show_moment, show_txn
from tests.cli.running import Cli, run


@pytest.fixture
def busy(users: Cli) -> Cli:
    """With two tablets, and files that are worth merging."""
    users.done("tablet", "split", "users", "b")
    for turn in range(2):
        users.done("put", "users", "ann", f"age={turn}")
        with stelae.open(users.path) as database:
            database.table("users").flush()
    return users


def test_compact(spark: Any, busy: Cli) -> None:
    before = busy.done("scan", "users", "--json")
    shown = busy.done("compact", "users")
    assert shown.splitlines()[0] == "compacted table users"
    assert busy.done("scan", "users", "--json") == before
    told = busy.json("compact", "users", "--erase-now")
    assert told["table"] == "users"
    assert busy.json("compact", "users", "--worth-it")["works"] == 0
    assert "did you mean 'users'" in busy.refused("compact", "user")


def test_export(spark: Any, busy: Cli, tmp_path: Path) -> None:
    told = busy.json("export", "users", "out", "--columns", "name,age", "--where", "age > 5")
    assert (told["rows"], told["path"]) == (1, str(tmp_path / "out"))
    assert pq.read_table(tmp_path / "out").to_pylist() == [{"id": "cay", "name": None, "age": 9}]
    assert "is there already: say --mode overwrite or --mode append" in busy.refused("export", "users", "out")
    shown = busy.done("export", "users", "out", "--mode", "overwrite", "--format", "json")
    assert shown.startswith(f"exported table users to {tmp_path}/out\n")
    assert "format= is one of" in busy.refused("export", "users", "x", "--format", "xml")


def test_backup_restore_and_verify(spark: Any, busy: Cli, tmp_path: Path) -> None:
    first = busy.json("backup", "users", "backups")
    assert (first["reused"], first["incremental_to"]) == (0, None)
    busy.done("put", "users", "dan", "age=7")
    shown = busy.done("backup", "users", "backups")
    assert shown.startswith(f"backed up table users to {tmp_path}/backups\n")
    assert f"incremental to {show_txn(first['txn'])}" in shown
    assert busy.json("backup", "users", "backups", "--full", "--keep", "2")["pruned"] == 1

    listed = [json.loads(line) for line in run("backup", "--list", "backups", "--json").stdout.splitlines()]
    assert [each["table"] for each in listed] == ["users", "users"]
    assert listed[0]["columns"]["age"] == "int32 not null default 0"
    table = run("backup", "--list", tmp_path / "backups").stdout
    assert f"incremental to {show_moment(first['txn'])}" in table
    assert run("backup", "--list", "nowhere").stdout == "no backups in nowhere\n"

    assert busy.done("verify", "users", "backups").startswith("the same\n")
    restored = busy.json("restore", "backups", "--name", "then", "--at", str(listed[0]["txn"]))
    assert (restored["table"], restored["is_new"]) == ("then", True)
    assert busy.json("verify", "users", "then")["same"] is True

    busy.done("put", "users", "bob", "name=Bobby")
    busy.done("erase", "users", "ann")
    differing = busy.run("verify", "users", "then", "--samples", "1")
    assert differing.exit_code == 1
    assert differing.stdout.startswith("NOT the same\n")
    assert "1 (name: 1)" in differing.stdout
    told = json.loads(busy.run("verify", "users", "then", "--json").stdout)
    assert (told["same"], told["only_there"], told["different"]) == (False, 1, 1)
    assert told["samples"][1]["here"] == {"name": "Bobby"}
    assert busy.run("verify", "users", "then", "--columns", "name").exit_code == 1
    told = json.loads(busy.run("verify", "users", "then", "--columns", "score", "--json").stdout)
    assert (told["same"], told["only_there"], told["different"]) == (False, 1, 0)

    assert "--yes does it without asking" in busy.refused("restore", "backups", "--in-place")
    assert busy.done("restore", "backups", "--in-place", "--yes").startswith("restored table users, in place\n")
    assert busy.json("verify", "users", "then")["same"] is True
    assert busy.done("check").startswith("whole (")

    other = Cli(tmp_path / "elsewhere")
    assert other.json("restore", "backups", "--table", "users", "--name", "users")["records"] > 0
    assert other.json("get", "users", "dan")["age"] == 7


def test_wrong_words(spark: Any, busy: Cli) -> None:
    assert "stelae backup TABLE DIR" in busy.refused("backup", "users")
    assert "say one of them" in busy.refused("restore", "backups")
    assert "there is no backup in" in busy.refused("restore", "backups", "--name", "x")
    assert "there is no directory 'nothing' with backups" in busy.refused("verify", "users", "nothing")
    assert "no store in" in Cli(busy.path / "none").refused("compact", "users")
    assert "has no time zone" in busy.refused("stats", "users", "--at", "2026-01-31")


def test_a_damaged_backup_is_listed(spark: Any, busy: Cli, tmp_path: Path) -> None:
    busy.done("backup", "users", "backups")
    (manifest,) = (tmp_path / "backups").rglob("manifest.json")
    manifest.write_text("{}")
    assert "damaged: " in run("backup", "--list", "backups").stdout
    told = json.loads(run("backup", "--list", "backups", "--json").stdout)
    assert "manifest.json" in told["problem"]
    assert "manifest.json" in busy.refused("restore", "backups", "--name", "x")


@pytest.mark.usefixtures("screen")
def test_stats(spark: Any, busy: Cli, tmp_path: Path) -> None:
    shown = busy.done("stats", "users", "--plot", "users.html")
    assert shown.splitlines()[0].startswith("table users at ")
    assert "skew: rows 1.33" in shown
    assert (tmp_path / "users.html").read_text("utf-8").startswith("<!doctype html>")
    told = busy.json("stats", "users")
    assert (told["rows"], [each["rows"] for each in told["tablets"]]) == (3, [1, 2])
    assert sum(each["share"] for each in told["tablets"]) == pytest.approx(1)
    assert told["tablets"][1]["start"] == b"b".hex()
    assert "ends in .svg or .html" in busy.refused("stats", "users", "--plot", "users.png")
