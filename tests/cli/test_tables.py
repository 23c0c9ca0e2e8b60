"""`stelae table` and `stelae tablet`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stelae
from tests.cli.running import Cli

CREATE = ("table", "create", "users", "--key", "id string")
SMALL = (*CREATE, "--columns", "profile: name string, age int32 not null default 0")


def test_create_makes_what_is_said(cli: Cli) -> None:
    said = cli.done(
        *SMALL,
        *("--cells", "events: click, view", "--cells", "rest", "--purge", "events: max-age=7d", "--split", "g"),
        *("--split", "p", "--retention", "1h", "--comment", "people"),
    )
    assert said == "created users, 3 tablets\n"
    found = cli.json("table", "describe", "users")
    assert found["key"] == {"id": "string"}
    assert found["groups"]["profile"]["columns"] == {"name": "string", "age": "int32 not null default 0"}
    assert found["groups"]["events"]["families"] == ["click", "view"]
    assert found["groups"]["events"]["purge"] == "max-age=1w"
    assert found["groups"]["rest"]["families"] == ["*"]
    assert (found["retention"], found["comment"], found["partition"]) == ("1h", "people", "range")
    assert [each["start_key"] for each in found["tablet_list"]] == [None, ["g"], ["p"]]
    assert [each["stop_row"] for each in found["tablet_list"]] == ["67", "70", None]


@pytest.mark.usefixtures("screen")
def test_describe_and_list_for_people(users: Cli) -> None:
    shown = users.done("table", "describe", "users")
    for words in (
        "key",
        "id",
        "string",
        "int32 not null default 0",
        "click:",
        "cells",
        "zstd",
        "the first row",
        "active",
    ):
        assert words in shown
    assert "\x1b" not in shown
    users.done("table", "create", "b", "--key", "who string, n int64", "--columns", "p: v string")
    assert [line.split()[0] for line in users.done("table", "list").splitlines()[2:]] == ["b", "users"]
    assert [each["name"] for each in users.lines("table", "list")] == ["b", "users"]


def test_an_empty_list(users: Cli) -> None:
    users.done("table", "drop", "users", "--yes")
    assert "no tables yet" in users.done("table", "list")
    assert users.done("table", "list", "--json") == ""


def test_create_again(users: Cli) -> None:
    assert "exists already" in users.refused(*SMALL)
    assert "stays as it is" in users.done(*SMALL, "--if-not-exists")
    assert users.json(*SMALL, "--if-not-exists")["created"] is False
    assert users.json("table", "create", "new", *SMALL[3:], "--if-not-exists")["created"] is True
    assert "seen" in users.done("table", "describe", "users")


def test_create_hashed(cli: Cli) -> None:
    cli.done("table", "create", "h", "--key", "n int64", "--columns", "p: v string", "--hash", "--tablets", "4")
    found = cli.lines("tablet", "list", "h")
    assert [each["start_row"] for each in found] == ["", "4000000000000000", "8000000000000000", "c000000000000000"]
    assert found[1]["start_key"] is None
    assert "0x4000000000000000" in cli.done("tablet", "list", "h")
    assert cli.done("tablet", "join", "h", "0x8") == "joined at 0x8000000000000000: 3 tablets now\n"
    assert "as `tablet list` shows it" in cli.refused("tablet", "join", "h", "0x3")


def test_create_like_a_file(cli: Cli, tmp_path: Path) -> None:
    table = pa.table({"a": ["x"], "n": pa.array([1], pa.int16()), "v": [1.5], "nothing": pa.nulls(1)})
    pq.write_table(table, tmp_path / "x.parquet")
    cli.done("table", "create", "t", "--like", tmp_path / "x.parquet", "--key", "a, n", "--split", '["k", 5]')
    found = cli.json("table", "describe", "t")
    assert found["key"] == {"a": "string", "n": "int16"}
    assert found["groups"]["data"]["columns"] == {"v": "float64", "nothing": "string"}
    assert found["tablet_list"][1]["start_key"] == ["k", 5]
    assert "is no such column" in cli.refused("table", "create", "u", "--like", tmp_path / "x.parquet", "--key", "b")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--key", "id", "--columns", "p: a string"], "--key 'id': say the type too, as in --key \"id string\""),
        (["--key", "id string"], "a table has at least one group"),
        (["--key", "id string", "--columns", "a string"], "begin with the group"),
        (["--key", "id string", "--columns", "p: a strin"], "'strin' is not a type; types are bool"),
        (["--key", "id string", "--columns", "p: a int8 default x"], "does not fit int8"),
        (["--key", "id string", "--cells", "e", "--purge", "x: max-age=1d"], "--purge: there is no group 'x'"),
        (["--key", "id string", "--cells", "e", "--purge", "e: often"], "purge policy 'often'"),
        (["--key", "id string", "--cells", "e", "--option", "x: bloom=no"], "--option: there is no group 'x'"),
        (["--key", "id string", "--cells", "e", "--option", "e: blom=no"], "no option 'blom'; did you mean 'bloom'?"),
        (["--key", "id string", "--cells", "e", "--tablets", "2"], "--tablets goes with --hash"),
        (["--key", "id string", "--cells", "e", "--split", "b", "--split", "a"], "they must ascend"),
        (["--key", "id int64", "--cells", "e", "--split", "b"], "--split: 'b' is not a int64"),
        (["--key", "id string", "--cells", "e", "--hash", "--split", "b"], "with --hash say --tablets N"),
        (["--key", "id", "--like", "none.parquet"], "no file none.parquet"),
        (["--key", "id", "--like", "x", "--cells", "e"], "--like brings its columns"),
        (["--key", "id string", "--cells", "e", "--zone", "far"], "far"),
        (["--key", "id array<int8>", "--cells", "e"], "cannot be a key"),
    ],
)
def test_create_refuses(cli: Cli, words: list[str], message: str) -> None:
    assert message in cli.refused("table", "create", "t", *words)


def test_alter(users: Cli) -> None:
    said = users.done(
        *("table", "alter", "users", "--add", "profile: email string, rank int8 not null default 3"),
        *("--drop", "score", "--widen", "age int64", "--rename-column", "name=full_name"),
        *("--add-families", "events: buy", "--drop-family", "view", "--rename-family", "click=tap"),
        *("--purge", "events: max-age=30d", "--retention", "2h", "--comment", "c", "--rename", "people"),
    )
    assert said.startswith("altered people, schema version ")
    found = users.json("table", "describe", "people")
    assert found["groups"]["profile"]["columns"] == {
        "full_name": "string",
        "age": "int64 not null default 0",
        "paid": "decimal(6, 2)",
        "email": "string",
        "rank": "int8 not null default 3",
    }
    assert found["groups"]["events"]["families"] == ["tap", "buy"]
    assert (found["groups"]["events"]["purge"], found["retention"], found["comment"]) == ("max-age=30d", "2h", "c")
    assert users.lines("get", "people", "ann", "--columns", "full_name,rank,tap:") == [
        {"id": "ann", "full_name": "Ann", "rank": 3, "tap:home": {"$binary": "MQ=="}}
    ]
    users.done("table", "alter", "people", "--nullable", "age", "--purge", "events: none")
    found = users.json("table", "describe", "people")
    assert found["groups"]["profile"]["columns"]["age"] == "int64 default 0"
    assert found["groups"]["events"]["purge"] == "none"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing is to be altered"),
        (["--add", "email string"], "begin with the group"),
        (["--add", "nowhere: email string"], "nowhere"),
        (["--drop", "nam"], "did you mean 'name'?"),
        (["--widen", "age int8"], "types only widen"),
        (["--rename-column", "name"], "--rename-column old=new"),
        (["--add", "profile: a string", "--add", "profile: b string"], "given twice"),
        (["--add-columns", "notes:"], "group 'notes': has 0 columns"),
        (["--add-columns", "notes: a strin"], "'strin' is not a type"),
        (["--drop-group", "evnts"], "no group 'evnts'; did you mean 'events'?"),
        (["--move", "events: name"], "no family 'name'"),
        (["--move", "name"], "--move 'name': begin with the group"),
        (["--option", "profile: in_memory"], "write --option 'profile: in_memory=yes'"),
        (["--option", "profile: fast=yes"], "no option 'fast'"),
        (["--option", "profile: purge=none"], "a purge policy is said by --purge"),
        (["--option", "profile: block_bytes=5"], "block_bytes 5"),
        (["--option", "profile: in_memory=5"], "in_memory is 5"),
    ],
)
def test_alter_refuses(users: Cli, words: list[str], message: str) -> None:
    before = users.json("table", "describe", "users")["schema_version"]
    assert message in users.refused("table", "alter", "users", *words)
    assert users.json("table", "describe", "users")["schema_version"] == before


def test_groups_come_go_and_are_filled(users: Cli) -> None:
    users.done(
        *("table", "alter", "users", "--add-columns", "notes:", "--move", "notes: name, score"),
        *("--add-cells", "tags: tag", "--purge", "tags: max-history=2", "--drop-group", "more"),
        *("--option", "tags: in_memory=yes, compression=lz4", "--option", "profile: bloom=off, block_bytes=65536"),
    )
    found = users.json("table", "describe", "users")["groups"]
    assert list(found) == ["profile", "events", "notes", "tags"]
    assert list(found["notes"]["columns"]) == ["name", "score"]
    assert (found["tags"]["purge"], found["tags"]["in_memory"], found["tags"]["compression"]) == (
        "max-history=2",
        True,
        "lz4",
    )
    assert (found["profile"]["bloom"], found["profile"]["block_bytes"]) == (False, 65_536)
    assert users.lines("get", "users", "ann", "--columns", "name,age") == [{"id": "ann", "name": "Ann", "age": 31}]


def test_create_with_options(cli: Cli) -> None:
    cli.done(*SMALL, "--cells", "events: click", "--option", "profile: in_memory=true", "--option", "events: bloom=no")
    found = cli.json("table", "describe", "users")["groups"]
    assert (found["profile"]["in_memory"], found["events"]["in_memory"]) == (True, False)
    assert (found["profile"]["bloom"], found["events"]["bloom"]) == (True, False)


def test_drop_and_recall(users: Cli) -> None:
    assert "--yes does it without asking" in users.refused("table", "drop", "users")
    assert users.done("table", "drop", "users", "--yes").startswith("dropped users")
    assert "no table 'users'" in users.refused("get", "users", "ann")
    assert "no table 'users'" in users.refused("table", "drop", "users", "--yes")
    assert users.json("table", "drop", "users", "--yes", "--if-exists") == {"dropped": None}
    assert users.json("table", "recall", "users", "--as", "back") == {"recalled": "back"}
    assert users.lines("get", "back", "bob", "--columns", "name") == [{"id": "bob", "name": "Bob"}]
    users.refused("table", "recall", "users")


def test_truncate(users: Cli) -> None:
    assert "--yes" in users.refused("table", "truncate", "users")
    assert users.json("table", "truncate", "users", "--yes") == {"truncated": "users"}
    assert users.json("scan", "users", "--count") == {"rows": 0}


def test_split_and_join(users: Cli) -> None:
    assert users.done("tablet", "split", "users", "b") == "split at b: 2 tablets now\n"
    assert users.json("tablet", "split", "users", "c") == {"tablets": 3, "cut_rows": ["63"]}
    assert [each["start_key"] for each in users.lines("tablet", "list", "users")] == [None, ["b"], ["c"]]
    assert "no tablet begins at 'bob'; tablets begin at b, c" in users.refused("tablet", "join", "users", "bob")
    assert users.done("tablet", "join", "users", "c") == "joined at c: 2 tablets now\n"
    assert users.json("scan", "users", "--count") == {"rows": 3}


def test_tablets_of_a_compound_key(cli: Cli) -> None:
    create = ("table", "create", "t", "--key", "who string, n int64", "--columns", "p: v string")
    cli.done(*create, "--split", "b", "--split", '["c", 7]')
    assert [each["start_key"] for each in cli.lines("tablet", "list", "t")] == [None, ["b"], ["c", 7]]
    assert "c, 7" in cli.done("tablet", "list", "t")
    assert cli.done("tablet", "split", "t", "d", "1") == "split at d, 1: 4 tablets now\n"
    assert cli.done("tablet", "join", "t", '["c", 7]') == "joined at c, 7: 3 tablets now\n"
    assert cli.done("tablet", "join", "t", "b") == "joined at b: 2 tablets now\n"


def test_names_with_markup(cli: Cli) -> None:
    cli.done(
        "table", "create", "br[/b]t", "--key", "i[d] string", "--columns", "p: `[red]x` string", "--comment", "[b]"
    )
    listed, described = cli.done("table", "list"), cli.done("table", "describe", "br[/b]t")
    for words in ("br[/b]t", "i[d]"):
        assert words in listed
        assert words in described
    assert "[red]x" in described
    assert "[b]" in described


def test_the_python_side_sees_the_same(users: Cli) -> None:
    with stelae.open(users.path) as database:
        row = database.table("users").get("cay")
    assert row is not None
    assert row["photo"] == b"\x00\xff"
