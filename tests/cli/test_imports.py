"""`stelae import`: each kind of file, and what is wrong in one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stelae.cli import files
from tests.cli.running import Cli

CSV = 'id,name,age,paid,seen,tags,click:home\nx1,"a\nb",3,1.5,2026-01-31T12:00:00Z,"[""t""]",c\n\nx2,"",4,,,,d\n'


def found(cli: Cli, *columns: str) -> list[dict[str, object]]:
    return cli.lines("scan", "users", "--prefix", "x", "--columns", ",".join(columns))


def test_csv(users: Cli) -> None:
    Path("x.csv").write_text(CSV)
    assert users.done("import", "users", "x.csv").startswith("imported 2 rows of 1 file into users (")
    assert found(users, "name", "age", "paid", "seen", "tags", "click:") == [
        {
            "id": "x1",
            "name": "a\nb",
            "age": 3,
            "paid": "1.50",
            "seen": "2026-01-31T12:00:00Z",
            "tags": ["t"],
            "click:home": {"$binary": "Yw=="},
        },
        {"id": "x2", "name": "", "age": 4, "paid": None, "seen": None, "tags": None, "click:home": {"$binary": "ZA=="}},
    ]


def test_nulls(users: Cli) -> None:
    users.done("put", "users", "x1", "name=before", "age=7")
    Path("x.csv").write_text("id,name,age\nx1,,\n")
    assert "x.csv, line 2: column 'age' is NOT NULL" in users.refused("import", "users", "x.csv")
    users.done("import", "users", "x.csv", "--nulls", "skip")
    assert found(users, "name", "age") == [{"id": "x1", "name": "before", "age": 7}]
    Path("x.csv").write_text("id,name\nx1,\n")
    users.done("import", "users", "x.csv")
    assert found(users, "name", "age") == [{"id": "x1", "name": None, "age": 7}]
    Path("x.csv").write_text("id,name,score\nx1,,NULL\n")
    users.done("import", "users", "x.csv", "--null-text", "NULL")
    assert found(users, "name", "score") == [{"id": "x1", "name": "", "score": None}]


def test_other_csv(users: Cli) -> None:
    Path("x.tsv").write_text("id\tage\nx1\t1\n")
    Path("semi.csv").write_text("id;age\nx2;2\n")
    Path("data").mkdir(exist_ok=True)
    with gzip.open("z.csv.gz", "wt") as stream:
        stream.write("\ufeffid,age\nx3,3\n")
    assert users.json("import", "users", "x.tsv", "z.csv.gz")["rows"] == 2
    users.done("import", "users", "semi.csv", "--delimiter", ";")
    assert users.json("import", "users", "-", "--format", "csv", given="id,age\nx4,4\n")["rows"] == 1
    assert found(users, "age") == [{"id": f"x{n}", "age": n} for n in (1, 2, 3, 4)]


def test_line_ends_inside_fields_where_a_block_ends(users: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BLOCK_BYTES", 100)
    names = ["\n".join("abc"[: n % 4]) for n in range(100)]
    Path("x.csv").write_text("id,name\n" + "".join(f'x{n:03d},"{name}"\n' for n, name in enumerate(names)))
    assert users.json("import", "users", "x.csv")["rows"] == 100
    assert [row["name"] for row in found(users, "name")] == names


def test_json_lines(users: Cli) -> None:
    Path("x.jsonl").write_text('{"id": "x1", "age": 3}\n\n{"id": "x2", "click:home": "c", "score": {"$float": "NaN"}}')
    users.done("import", "users", "x.jsonl")
    assert found(users, "age", "score", "click:") == [
        {"id": "x1", "age": 3, "score": None},
        {"id": "x2", "age": 0, "score": {"$float": "NaN"}, "click:home": {"$binary": "Yw=="}},
    ]


def test_parquet(users: Cli) -> None:
    cells = pa.array([[("home", b"c")], None], pa.map_(pa.string(), pa.binary()))
    pq.write_table(pa.table({"id": ["x1", "x2"], "age": pa.array([3, 4], pa.int64()), "click": cells}), "x.parquet")
    assert users.json("import", "users", "x.parquet")["rows"] == 2
    assert found(users, "age", "click:") == [
        {"id": "x1", "age": 3, "click:home": {"$binary": "Yw=="}},
        {"id": "x2", "age": 4},
    ]
    pq.write_table(pa.table({"id": ["x1", "x2"], "age": pa.array([3, 2**40], pa.int64())}), "y.parquet")
    assert "y.parquet, row 2: column 'age'" in users.refused("import", "users", "y.parquet")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", 'id,name,age\nx1,"a\nb",1\n\nx2,,2\nx3,,abc\n', "x.csv, line 6: column 'age': 'abc' is not a int32"),
        ("x.csv", 'id,name,age\nx1,"a\nb",1\n\nx2,,2\nx3,3\n', "x.csv, line 6: has 2 fields, the header has 3"),
        ("x.csv", "", "x.csv: is empty; the first line of a CSV file names its columns"),
        ("x.csv", "id,id\nx1,x1\n", "x.csv, line 1: column 'id' is there twice"),
        ("x.csv", "id,\nx1,x1\n", "x.csv, line 1: column 2 has no name"),
        ("x.csv", "id,nam\nx1,x1\n", "x.csv: no column 'nam'; did you mean 'name'?"),
        ("x.csv", "name\nx1\n", "x.csv"),
        ("x.csv", "id,seen\nx1,2026-01-31\n", "x.csv, line 2: column 'seen': '2026-01-31' has no time zone"),
        ("x.csv", "id,paid\nx1,1.234\n", "x.csv, line 2: column 'paid'"),
        ("x.csv", "id,tags\nx1,[1\n", "x.csv, line 2: column 'tags': '[1' is not JSON"),
        ("x.csv", "id,click:a\nx1,\n", "leave it untouched with --nulls skip"),
        ("x.csv", "id\n" + "x" * 5000 + "\n", "has 5000 bytes; at most 4096"),
        ("x.jsonl", '{"id": "x1"}\n{"id": "x2", "age": 4.5}\n', "x.jsonl, line 2: column 'age': 4.5 is not a int32"),
        ("x.jsonl", '{"id": "x1"}\n\n{"id"\n', "x.jsonl, line 3: '{\"id\"\\n' is not JSON"),
        ("x.jsonl", '{"id": "x1"}\n{"age": 3}\n', "x.jsonl, line 2: no value for key column 'id'"),
        ("x.json", '[{"id": "x1"}]', "x.json is one JSON list; JSON lines have one object a line"),
        ("x.parquet", "nope", "x.parquet: cannot be read as parquet"),
        ("x.gz", "nope", "the name ends in none of"),
        ("x.csv.gz", "nope", "x.csv.gz: "),
    ],
)
def test_wrong_files(users: Cli, name: str, text: str, message: str) -> None:
    Path(name).write_text(text)
    assert message in users.refused("import", "users", name)
    assert found(users, "age") == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.csv"], "no file none.csv"),
        (["."], ". is a directory"),
        (["-"], "say what standard input is with --format"),
        (["x.csv", "--nulls", "maybe"], "--nulls 'maybe': write, or skip"),
        (["x.csv", "--format", "xml"], "--format 'xml': csv, tsv, json or parquet"),
        (["x.csv", "--delimiter", "ab"], "--delimiter 'ab': one character, or tab"),
        (["x.csv", "--create"], "--create needs --key"),
        (["x.csv", "none.csv"], "no file none.csv"),
    ],
)
def test_wrong_options(users: Cli, words: list[str], message: str) -> None:
    Path("x.csv").write_text("id\nx1\n")
    assert message in users.refused("import", "users", *words)
    assert users.json("scan", "users", "--count") == {"rows": 3}


def test_after_a_failure_it_says_what_is_durable_and_can_be_run_again(users: Cli) -> None:
    rows = [f"x{n:03d},{n}" for n in range(100)]
    Path("x.csv").write_text("\n".join(["id,age", *rows[:75], "x075,?", *rows[76:]]))
    result = users.run("import", "users", "x.csv", "--batch-rows", "10")
    assert result.exit_code == 1
    assert "70 rows are durable; to go on run it again" in result.stderr
    assert "error: x.csv, line 77: column 'age': '?'" in result.stderr
    assert users.json("scan", "users", "--prefix", "x", "--count") == {"rows": 70}
    Path("x.csv").write_text("\n".join(["id,age", *rows]))
    assert users.json("import", "users", "x.csv", "--batch-rows", "10")["rows"] == 100
    assert users.json("scan", "users", "--prefix", "x", "--count") == {"rows": 100}


def test_nothing_is_written_of_a_part_with_a_mistake(users: Cli) -> None:
    Path("x.csv").write_text("id,age\nx1,1\nx2,?\n")
    result = users.run("import", "users", "x.csv")
    assert "nothing of it was written" in result.stderr
    assert found(users, "age") == []


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_create(cli: Cli, kind: str) -> None:
    rows = [
        {"id": "a", "n": 1, "v": 1.5, "day": "2026-01-31", "seen": "2026-01-31T12:00:00Z", "none": None},
        {"id": "b", "n": 2, "v": None, "day": "2026-02-01", "seen": "2026-01-31T12:00:00Z", "none": None},
    ]
    file = Path(f"x.{kind}")
    match kind:
        case "csv":
            lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
            file.write_text("\n".join([",".join(rows[0]), *lines]))
        case "json":
            file.write_text("\n".join(json.dumps(row) for row in rows))
        case _:
            pq.write_table(pa.Table.from_pylist(rows), file)
    assert "--create --key NAME makes it" in run_first(cli, file)
    cli.done("import", "t", file, "--create", "--key", "id, n")
    described = cli.json("table", "describe", "t")
    assert described["key"] == {"id": "string", "n": "int64"}
    assert described["groups"]["data"]["columns"]["v"] == "float64"
    if kind != "parquet":
        assert described["groups"]["data"]["columns"]["seen"] == "timestamp"
    assert [(row["id"], row["n"], row["v"]) for row in cli.lines("scan", "t")] == [("a", 1, 1.5), ("b", 2, None)]
    assert cli.json("import", "t", file, "--create", "--key", "id, n")["rows"] == 2
    assert cli.json("scan", "t", "--count") == {"rows": 2}


def run_first(cli: Cli, file: Path) -> str:
    """Into a table that is not there, in a store that is."""
    cli.done("table", "create", "other", "--key", "id string", "--cells", "e")
    return cli.refused("import", "t", file)


def test_create_with_cells_and_bytes(cli: Cli) -> None:
    Path("x.jsonl").write_text('{"id": "a", "photo": {"$binary": "AP8="}, "click:x": {"$binary": "AP8="}}\n')
    cli.done("import", "t", "x.jsonl", "--create", "--key", "id")
    described = cli.json("table", "describe", "t")
    assert described["groups"]["data"]["columns"] == {"photo": "binary"}
    assert described["groups"]["cells"]["families"] == ["click"]
    assert cli.lines("get", "t", "a") == [{"id": "a", "photo": {"$binary": "AP8="}, "click:x": {"$binary": "AP8="}}]
    assert "there is no such column" in cli.refused("import", "u", "x.jsonl", "--create", "--key", "idd")
