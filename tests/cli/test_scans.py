"""`stelae scan`, to the screen and into files."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import stelae
from tests.cli.running import Cli
from tests.effort import examples


def ids(cli: Cli, *words: str) -> list[str]:
    return [row["id"] for row in cli.lines("scan", "users", *words)]


def test_what_is_chosen(users: Cli) -> None:
    assert ids(users) == ["ann", "bob", "cay"]
    assert ids(users, "age > 5") == ["ann", "cay"]
    assert ids(users, "--start", "b", "--stop", "c") == ["bob"]
    assert ids(users, "--prefix", "c") == ["cay"]
    assert ids(users, "--limit", "2") == ["ann", "bob"]
    assert ids(users, "--reverse", "-n", "1") == ["cay"]
    assert ids(users, "--limit", "0") == []
    assert users.lines("scan", "users", "age > 30", "--columns", "age", "--columns", "name") == [
        {"id": "ann", "name": "Ann", "age": 31}
    ]
    assert users.done("scan", "users", "age > 5", "--count") == "2\n"


def test_at_a_time(users: Cli) -> None:
    txn = users.json("put", "users", "dan")["txn"]
    assert ids(users, "--at", str(txn - 1)) == ["ann", "bob", "cay"]
    assert ids(users, "--at", str(txn)) == ["ann", "bob", "cay", "dan"]


@pytest.mark.usefixtures("screen")
def test_the_screen(users: Cli) -> None:
    lines = users.done("scan", "users", "--columns", "name,age,click:").splitlines()
    assert lines[0].split() == ["id", "name", "age", "click:"]
    assert lines[2].split() == ["ann", "Ann", "31", "home=1"]
    assert lines[3].split() == ["bob", "Bob", "0"]
    assert lines[4].split() == ["cay", "NULL", "9"]
    empty = users.run("scan", "users", "--prefix", "zzz")
    assert (empty.stdout, empty.stderr) == ("", "0 rows\n")


@pytest.mark.usefixtures("screen")
def test_many_rows_come_in_pages(users: Cli) -> None:
    many = "".join(f'{{"id": "n{n:05d}"}}\n' for n in range(1_500))
    users.done("put", "users", given=many)
    shown = users.done("scan", "users", "--prefix", "n", "--columns", "age").splitlines()
    assert [line.split()[0] for line in shown if line.startswith("n")] == [f"n{n:05d}" for n in range(1_500)]
    assert sum(line.startswith("id") for line in shown) == 2


@pytest.mark.usefixtures("screen")
def test_versions(users: Cli) -> None:
    users.done("put", "users", "ann", "age=32", "click:home=2")
    where = 'history = 2 and column ~= "click:"'
    assert len(users.lines("scan", "users", where)) == len(users.lines("scan", "users"))
    (found,) = users.lines("scan", "users", where, "--rows", "having")
    assert [version["value"]["$binary"] for version in found["click:home"]] == ["Mg==", "MQ=="]
    found = users.lines("scan", "users", "history = 2", "--columns", "age", "--prefix", "a")
    assert [version["value"] for version in found[0]["age"]] == [32, 31]
    assert found[0]["id"] == "ann"
    shown = users.done("scan", "users", "history = 2", "--columns", "age", "--prefix", "a").splitlines()
    assert [line.split() for line in shown[2:]] == [["ann", "32"], ["31"]]
    assert "CSV has no place for versions" in users.refused("scan", "users", "history = 2", "-o", "x.csv")


@pytest.mark.usefixtures("screen")
def test_the_wildcard_is_shown(cli: Cli) -> None:
    cli.done("table", "create", "t", "--key", "id string", "--cells", "e: click", "--cells", "rest")
    cli.done("put", "t", "a", "click:x=1", "other:y=2")
    lines = cli.done("scan", "t").splitlines()
    assert lines[0].split() == ["id", "click:", "*"]
    assert lines[2].split() == ["a", "x=1", "other:y=2"]
    assert cli.lines("scan", "t") == [{"id": "a", "click:x": {"$binary": "MQ=="}, "other:y": {"$binary": "Mg=="}}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["age >"], "expected a literal after >"),
        (["agee > 3"], "no column 'agee'; did you mean 'age'?"),
        (["age"], "age"),
        (["--columns", "nam"], "did you mean 'name'?"),
        (["--at", "yesterday"], "--at 'yesterday': not a time"),
        (["-o", "x.txt"], "the name ends in none of .parquet, .csv"),
        (["-o", "nowhere/x.json"], "nowhere"),
        (["-o", "x.csv", "--count"], "give --count or --output"),
        (["-o", "x.csv"], "CSV has no place for the cells of family 'click'"),
    ],
)
def test_refusals(users: Cli, words: list[str], message: str) -> None:
    before = sorted(Path().iterdir())
    assert message in users.refused("scan", "users", *words)
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("name", ["x.parquet", "x.json", "x.csv"])
def test_files_come_back(users: Cli, name: str) -> None:
    chosen = [] if name != "x.csv" else ["--columns", "name,age,score,paid,seen,tags,click:home"]
    said = users.json("scan", "users", *chosen, "-o", name)
    assert (said["rows"], said["file"], said["size_bytes"]) == (3, name, Path(name).stat().st_size)
    create = (
        "table",
        "create",
        "copy",
        "--key",
        "id string",
        "--columns",
        "profile: name string, age int32, score float64",
    )
    users.done(
        *(*create, "--columns", "more: paid decimal(6, 2), seen timestamp, tags array<string>, photo binary"),
        *("--cells", "events: click, view"),
    )
    users.done("import", "copy", name, "--nulls", "skip")
    chosen = ["--columns", "name,age,score,paid,seen,tags,click:home"]
    assert users.lines("scan", "copy", *chosen) == users.lines("scan", "users", *chosen)


def test_a_parquet_file_is_plain_parquet(users: Cli) -> None:
    users.done("scan", "users", "-o", "x.parquet")
    table = pq.read_table("x.parquet")
    assert table.column("id").to_pylist() == ["ann", "bob", "cay"]
    assert table.column("click").to_pylist()[0] == [("home", b"1")]


def test_a_file_is_replaced_whole(users: Cli) -> None:
    Path("x.json").write_text("before")
    users.refused("scan", "users", "agee > 1", "-o", "x.json")
    assert Path("x.json").read_text() == "before"
    assert users.done("scan", "users", "-o", "x.json") == "written 3 rows to x.json\n"
    assert [json.loads(line)["id"] for line in Path("x.json").read_text().splitlines()] == ["ann", "bob", "cay"]
    assert [path.name for path in Path().iterdir() if "part" in path.name] == []


def test_hashed_tables_in_order(cli: Cli) -> None:
    cli.done("table", "create", "h", "--key", "n int64", "--columns", "p: v string", "--hash", "--tablets", "3")
    cli.done("put", "h", given="".join(f'{{"n": {n}}}\n' for n in range(50)))
    found = [row["n"] for row in cli.lines("scan", "h")]
    assert found != sorted(found)
    assert sorted(found) == list(range(50))
    assert [row["n"] for row in cli.lines("scan", "h", "--ordered", "--limit", "3")] == [0, 1, 2]


def test_a_program_gets_lines_with_tabs(users: Cli) -> None:
    users.done("put", "users", "ann", "age=1234567", "click:two=2")
    lines = users.done("scan", "users", "--columns", "name,age,click:").splitlines()
    assert lines[:2] == ["id\tname\tage\tclick:", "ann\tAnn\t1234567\thome=1; two=2"]
    many = "".join(f'{{"id": "n{n:05d}"}}\n' for n in range(1_500))
    users.done("put", "users", given=many)
    lines = users.done("scan", "users", "--prefix", "n", "--columns", "age").splitlines()
    assert (len(lines), lines[0]) == (1_501, "id\tage")  # one head, however many pages
    assert users.done("scan", "users", "--prefix", "n", "--count") == "1500\n"
    assert users.done("get", "users", "ann", "--columns", "name,age") == "id\tann\nname\tAnn\nage\t1234567\n"
    assert users.done("table", "list").splitlines()[0] == "table\tkey\tgroups\ttablets\tsize"
    history = [line.split("\t") for line in users.done("get", "users", "ann", "--history", "2").splitlines()[2:]]
    assert [line[0] for line in history if line[0] == "age"] == ["age", "age"]
    assert all(line[2].endswith("Z") for line in history)


@pytest.mark.usefixtures("screen")
def test_no_column_is_left_out_on_a_narrow_terminal(users: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = users.done("scan", "users")
    for name in ("id", "name", "age", "score", "paid", "seen", "tags", "photo", "click:"):
        assert sum(line.split()[:1] == [name] for line in shown.splitlines()) == 3, name
    assert max(map(len, shown.splitlines())) <= 40
    monkeypatch.setenv("COLUMNS", "200")
    assert users.done("scan", "users").splitlines()[0].split()[:3] == ["id", "name", "age"]
    assert users.done("scan", "users", "--count") == "3\n"


ODD_NAMES = st.text(
    st.sampled_from('\n\r\t\v\f\x1b\x00\x85\u2028\u202e\\[]/;=: "ab') | st.characters(codec="utf-8"),
    min_size=1,
    max_size=12,
)


def written_out(name: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


@settings(max_examples=examples(10))
@given(st.lists(ODD_NAMES, min_size=1, max_size=20, unique=True))
@example(["a\nfake\t1"])
@example(["ends in \\", "in \\\\", "[red]", "\\[red]", "a\r\nb"])
def test_names_of_cells_are_no_other_lines_or_columns(qualifiers: list[str]) -> None:
    with TemporaryDirectory() as directory:
        cli = Cli(Path(directory) / "data")
        names = sorted(f"click:{each}" for each in qualifiers)
        with stelae.open(cli.path) as db:
            table = db.create_table("w", {"id": "string"}, [stelae.cells("events", families=["click"])])
            table.put({"id": "nl", **dict.fromkeys(names, b"x")})
        told = [f"{written_out(name)}\tx" for name in names]
        assert cli.done("get", "w", "nl").split("\n") == ["id\tnl", *told, ""]
        head, columns, *lines, end = cli.done("get", "w", "nl", "--history", "2").split("\n")
        assert (head, columns, end) == ("id\tnl", "column\tvalue\ttime\ttxn", "")
        assert ["\t".join(line.split("\t")[:2]) for line in lines] == told
        assert {line.count("\t") for line in lines} == {3}
        cells = "; ".join(f"{written_out(name.removeprefix('click:'))}=x" for name in names)
        assert cli.done("scan", "w").split("\n") == ["id\tclick:", f"nl\t{cells}", ""]
