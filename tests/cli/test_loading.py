"""`stelae load`: each kind of file, a table that is made, and what is wrong in a file or on the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.running import Cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CSV = '''id,name,age,paid,seen,tags,click:home
x1,"a, ""b""",3,1.5,2026-01-31T12:00:00Z,"[""t""]",c
x2,"",4,,,,d
'''


def found(cli: Cli, *columns: str) -> list[dict[str, Any]]:
    return cli.lines("scan", "users", "--prefix", "x", "--columns", ",".join(columns))


@pytest.mark.usefixtures("spark", "screen")
def test_csv_by_the_types_of_the_table(users: Cli) -> None:
    Path("x.csv").write_text(CSV)
    said = users.done("load", "x.csv", "--table", "users", "--job", "j")
    assert said.startswith("loaded table")
    assert "rows        2" in said
    assert found(users, "name", "age", "paid", "seen", "tags", "click:") == [
        {
            "id": "x1",
            "name": 'a, "b"',
            "age": 3,
            "paid": "1.50",
            "seen": "2026-01-31T12:00:00Z",
            "tags": ["t"],
            "click:home": {"$binary": "Yw=="},
        },
        {"id": "x2", "name": "", "age": 4, "paid": None, "seen": None, "tags": None, "click:home": {"$binary": "ZA=="}},
    ]
    assert users.json("load", "x.csv", "--table", "users", "--job", "j")["was_done"] is True


BAD = "id,age,paid,seen\nx1,3,1.25,2026-01-31T12:00:00Z\nx2,many,,\nx3,3,1.234,\nx4,3,,2026-01-31\nx5,3\n"


@pytest.mark.usefixtures("spark")
def test_text_that_does_not_fit(users: Cli) -> None:
    Path("x.csv").write_text(BAD)
    words = users.refused("load", "x.csv", "--table", "users")
    assert "4 rows cannot be loaded, so nothing was" in words
    assert "column 'age': 'many' is not a int32" in words
    assert "column 'paid': '1.234' is not a decimal(6, 2)" in words
    assert "column 'seen': '2026-01-31' is not a timestamp with its zone" in words
    assert "'x5,3' is no line of as many fields as the header" in words
    assert found(users, "age") == []
    done = users.json("load", "x.csv", "--table", "users", "--on-bad", "skip", "--quarantine", "aside")
    assert (done["rows"], done["skipped"]) == (1, 4)
    kept = pq.read_table(done["quarantine"]).to_pylist()
    assert sorted(row["id"] for row in kept) == ["x2", "x3", "x4", "x5"]
    assert found(users, "paid") == [{"id": "x1", "paid": "1.25"}]


@pytest.mark.usefixtures("spark")
def test_json_and_parquet(users: Cli) -> None:
    lines = [{"id": "x1", "age": 5, "seen": "2026-01-31T12:00:00Z", "tags": ["a"]}, {"id": "x2", "age": 6}]
    Path("x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    users.done("load", "x.jsonl", "--table", "users")
    assert found(users, "age", "tags") == [{"id": "x1", "age": 5, "tags": ["a"]}, {"id": "x2", "age": 6, "tags": None}]
    Path("z.json").write_text('{"id": "x5", "seen": "2026-01-31T12:00:00"}\n')
    said = users.refused("load", "z.json", "--table", "users")
    assert "column 'seen': '2026-01-31T12:00:00' is not a timestamp with its zone" in said
    Path("y.json").write_text('{"id": "x3", "age": 1}\n{"id": "x4", "age": "many"}\n{oh no\n')
    words = users.refused("load", "y.json", "--table", "users")
    assert "2 rows cannot be loaded" in words
    assert "cannot be read as the columns' types say" in words
    Path("parts").mkdir()
    pq.write_table(pa.table({"id": ["x1"], "age": pa.array([9], pa.int64())}), "parts/a.parquet")
    pq.write_table(pa.table({"id": ["x5"], "age": pa.array([9], pa.int64())}), "parts/b.parquet")
    assert users.json("load", "parts", "--table", "users", "--mode", "overwrite")["rows"] == 2
    assert found(users, "age") == [{"id": "x1", "age": 9}, {"id": "x5", "age": 9}]


@pytest.mark.usefixtures("spark")
def test_a_table_is_made(cli: Cli) -> None:
    Path("x.csv").write_text("id,name\n" + "".join(f"{id_},n{id_}\n" for id_ in range(100)))
    done = cli.json("load", "x.csv", "--table", "made", "--create", "--key", "id", "--tablets", "4")
    assert done["rows"] == 100
    assert len(cli.lines("tablet", "list", "made")) == 4
    assert cli.json("table", "describe", "made")["key"] == {"id": "int32"}
    schema = "id decimal(9, 0), name string"
    cli.done("load", "x.csv", "--table", "typed", "--create", "--key", "id", "--schema", schema)
    assert cli.json("table", "describe", "typed")["key"] == {"id": "decimal(9, 0)"}
    assert "there is no column 'nam' in the files; they have id, name" in cli.refused(
        *("load", "x.csv", "--table", "other", "--create", "--key", "id", "--schema", "id int64, nam string")
    )
    Path("y.parquet").write_text("no parquet")
    assert "y.parquet" in cli.refused("load", "y.parquet", "--table", "made")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gone.csv"], "gone.csv: there is no such file"),
        (["x.csv", "x.parquet"], "files of several formats, csv and parquet"),
        (["x.dat"], "x.dat: say --format parquet, csv, tsv or json"),
        (["x.csv", "--format", "xml"], "--format 'xml': parquet, csv, tsv or json"),
        (["x.csv", "--delimiter", "::"], "--delimiter '::': one character, or tab"),
        (["x.csv", "--key", "id"], "--key and --tablets are for a table that is made: say --create"),
        (["x.csv", "--schema", "id"], "--schema 'id': column 'id' has no type"),
        (["x.csv", "--table", "user"], "did you mean"),
        (["x.csv", "--table", "user", "--create"], "--create needs --key"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refused_before_spark_starts(users: Cli, words: list[str], said: str) -> None:
    for name in ("x.csv", "x.parquet", "x.dat"):
        Path(name).touch()
    table = [] if "--table" in words else ["--table", "users"]
    assert said in users.refused("load", *words, *table)


def test_columns_that_do_not_fit(users: Cli, spark: SparkSession) -> None:
    Path("x.csv").write_text("id,nam\nx1,y\n")
    assert "no column 'nam'; did you mean 'name'?" in users.refused("load", "x.csv", "--table", "users")
    assert spark.sparkContext is not None
