"""Text of files as values: what is none is a bad row, and nothing is lost on the way."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.spark.loading.inputs import frame_of_files
from stelae.spark.loading.intake import MISFIT

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NONE = "none"
TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("int8", {"5": 5, " -128": -128, "128": NONE, "1.7": NONE, "": None}),
    ("int64", {"9223372036854775807": 2**63 - 1, "9223372036854775808": NONE, "1e3": NONE}),
    (
        "decimal(6, 2)",
        {"1.2": Decimal("1.20"), "1.230000": Decimal("1.23"), "1.234": NONE, "12345.00": NONE, ".": NONE},
    ),
    ("decimal(38, 0)", {"1234567890123456789012345": Decimal(1234567890123456789012345)}),
    ("float64", {"1.5": 1.5, "1e300": 1e300, "1e400": NONE, "-Infinity": -math.inf, "1d": NONE}),
    ("float32", {"0.5": 0.5, "1e300": NONE}),
    ("bool", {"true": True, "maybe": NONE}),
    ("date", {"2026-01-31": date(2026, 1, 31), "2026": NONE, "2026-01-31T23:00:00": NONE, "2026-02-30": NONE}),
    (
        "timestamp",
        {
            "2026-01-31T12:00:00Z": NOON,
            "2026-01-31 14:00:00.000000000+02:00": NOON,
            "2026-01-31T12:00:00": NONE,
            "2026-01-31": NONE,
            "12:00:00Z": NONE,
            "2026-01-31T12:00:00.0000001Z": NONE,
        },
    ),
    ("timestamp_ntz", {"2026-01-31T12:00:00": NOON.replace(tzinfo=None), "2026-01-31T12:00:00Z": NONE}),
]


@pytest.fixture
def far_away(spark: Any) -> Any:
    """A session whose time zone must not count."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def found(frame: Any) -> dict[int, Any]:
    """By id, the value, or that there is none."""
    rows = frame.toArrow().to_pylist()
    return {row["id"]: NONE if row.get(MISFIT) else row["v"] for row in rows}


@pytest.mark.parametrize(("type_", "texts"), TEXTS, ids=[type_ for type_, _ in TEXTS])
def test_texts(far_away: Any, tmp_path: Path, type_: str, texts: dict[str, Any]) -> None:
    types = {"id": t.Int(64), "v": t.parse_type(type_)}
    file, lines = tmp_path / "x.csv", tmp_path / "x.json"
    file.write_text("id,v\n" + "".join(f"{at},{text}\n" for at, text in enumerate(texts)))
    expected = dict(enumerate(texts.values()))
    assert found(frame_of_files(far_away, [str(file)], "csv", types)) == expected
    spoken = [{"id": at, "v": text or None} for at, text in enumerate(texts)]
    lines.write_text("".join(json.dumps(each) + "\n" for each in spoken))
    assert found(frame_of_files(far_away, [str(lines)], "json", types)) == expected


def test_numbers_in_json_are_as_exact_as_texts(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"id": 1, "v": 1.23}\n{"id": 2, "v": 1.234}\n{"id": 3, "v": [1]}\n')
    types: dict[str, t.ColumnType] = {"id": t.Int(64), "v": t.Decimal(6, 2)}
    assert found(frame_of_files(spark, [str(tmp_path / "x.json")], "json", types)) == {
        1: Decimal("1.23"),
        2: NONE,
        3: NONE,
    }


def test_parquet_of_other_types_and_columns(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "v": [1.0, 1.7]}), tmp_path / "a.parquet")
    types: dict[str, t.ColumnType] = {"id": t.Int(64), "v": t.Int(32)}
    assert found(frame_of_files(spark, [str(tmp_path / "a.parquet")], "parquet", types)) == {1: 1, 2: NONE}
    with pytest.raises(InvalidArgument, match="column 'v' of the files is float64, and cannot be read as timestamp"):
        frame_of_files(spark, [str(tmp_path / "a.parquet")], "parquet", types | {"v": t.Timestamp()})
    pq.write_table(pa.table({"id": [3], "w": ["more"]}), tmp_path / "b.parquet")
    both = frame_of_files(spark, [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")], "parquet", None)
    assert sorted(both.columns) == ["id", "v", "w"]
    assert both.where("w = 'more'").count() == 1


def test_headers_that_differ_are_refused(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x,y\n1,ax,ay\n")
    (tmp_path / "b.csv").write_text("id,y,x\n2,by,bx\n")
    types: dict[str, t.ColumnType] = {"id": t.Int(64), "x": t.String(), "y": t.String()}
    frame = frame_of_files(spark, [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], "csv", types)
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        frame.collect()


def test_moments_without_a_zone_are_inferred_as_such(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,a,b\n1,2026-01-31 12:00:00,2026-01-31 12:00:00Z\n2,2026-01-31,\n")
    frame = frame_of_files(spark, [str(tmp_path / "a.csv")], "csv", None)
    assert [field.dataType.typeName() for field in frame.schema.fields[1:3]] == ["timestamp_ntz", "timestamp"]


def test_files_that_spark_does_not_see(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "_a.csv").write_text("id\n1\n")
    with pytest.raises(InvalidArgument, match="begin with _ or a dot"):
        frame_of_files(spark, [str(tmp_path / "_a.csv")], "csv", None)


def test_files_without_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("")
    types = {"id": t.Int(64)}
    assert frame_of_files(spark, [str(tmp_path / "a.json")], "json", types).count() == 0
    with pytest.raises(InvalidArgument, match="no rows in the files"):
        frame_of_files(spark, [str(tmp_path / "a.json")], "json", None)
