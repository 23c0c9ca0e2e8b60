"""What one command writes every other reads back exactly, or it is refused in words: formats x commands x types."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import stelae
from tests.cli.running import Cli

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)
OLD = datetime(1, 1, 1, tzinfo=UTC)
BYTES = (b"", b"plain", b"\x00\xff\xfe", b'{"$binary":"aGk="}', b"aGk=", "é\n".encode(), b" ")
TEXTS = (
    "",
    "a",
    ' "quoted", ',
    "line\nend",
    "cr\r\nlf\r",
    "NULL",
    "\x01",
    "\\",
    "é\u2028",
    "#",
    '{"$binary":"aGk="}',
    "NaN",
)
VALUES: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "int8": (-128, 127),
    "int16": (-(2**15),),
    "int32": (2**31 - 1,),
    "int64": (2**63 - 1, -(2**63)),
    "float32": (0.1, math.nan, math.inf, -0.0, 3.4028234663852886e38),
    "float64": (0.1, math.nan, -math.inf, 5e-324, 1.7976931348623157e308),
    "decimal(38, 18)": (Decimal("12345678901234567890.123456789012345678"), Decimal("-0.000000000000000001")),
    "decimal(6, 2)": (Decimal("1.20"),),
    "string": TEXTS,
    "binary": BYTES,
    "date": (date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10)),
    "timestamp": (MOMENT, OLD, datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    "timestamp_ntz": (MOMENT.replace(tzinfo=None), OLD.replace(tzinfo=None)),
    "array<string>": ([], ["a", None, ""], list(TEXTS)),
    "array<binary>": ([None, *BYTES], []),
    "array<float64>": ([1.5, math.nan, -math.inf, None],),
    "array<int64>": ([2**63 - 1, None],),
    "array<decimal(38, 18)>": ([Decimal("12345678901234567890.123456789012345678")],),
    "array<timestamp>": ([MOMENT, None],),
    "struct<a: binary, b: timestamp, c: timestamp_ntz, d: date>": (
        {"a": b"\xff", "b": MOMENT, "c": MOMENT.replace(tzinfo=None), "d": date(2026, 1, 31)},
        {"a": None, "b": None, "c": None, "d": None},
    ),
    "array<struct<x: array<binary>, y: map<string, binary>>>": (
        [{"x": [b"\xff"], "y": {"k": b"\x00", "n": None}}, None],
    ),
    "map<string, binary>": ({}, {"": b"\xff", "k": None}),
    "map<string, decimal(6, 2)>": ({"a": Decimal("1.20")},),
    "map<int64, string>": ({2**63 - 1: "x", 0: None},),
    "map<date, string>": ({date(2026, 1, 31): "x"},),
    "map<timestamp, int32>": ({MOMENT: 1},),
    "map<bool, float64>": ({True: math.nan},),
    "map<binary, binary>": ({b"\xff\x00": b"\xfe", b"text": None},),
    "map<decimal(6, 2), bool>": ({Decimal("1.20"): True},),
    "vector(float32, 2)": ([0.5, -1.0],),
}
NAMES = {f"c{number}": type_ for number, type_ in enumerate(VALUES)}
COUNT = max(map(len, VALUES.values()))


def create(db: stelae.Database, name: str, *, cells: bool = True) -> stelae.Table:
    groups = [stelae.columns("g", NAMES), *([stelae.cells("e", families=["click"])] if cells else [])]
    return db.create_table(name, key={"id": "int64"}, groups=groups)


def fill(table: stelae.Table, *, cells: bool = True) -> None:
    rows: list[dict[str, Any]] = [{"id": -1, **dict.fromkeys(NAMES)}]
    for at in range(COUNT):
        rows.append(
            {"id": at, **{name: some[at % len(some)] for name, some in zip(NAMES, VALUES.values(), strict=True)}}
        )
        if cells:
            rows[-1][f"click:{at}"] = BYTES[at % len(BYTES)]
    table.put_many(rows)


def shown(table: stelae.Table) -> list[str]:
    """Whatever can be told apart is."""
    return [repr(dict(row)) for row in table.scan()]


def scan_to(suffix: str) -> Callable[[Cli, Any, str], str]:
    def write(cli: Cli, _: Any, name: str) -> str:
        cli.done("scan", name, "--output", f"out{suffix}")
        return f"out{suffix}"

    return write


def export_to(form: str) -> Callable[[Cli, Any, str], str]:
    def write(cli: Cli, _: Any, name: str) -> str:
        cli.done("export", name, "out", "--format", form)
        return "out"

    return write


WRITERS = {
    **{f"scan{suffix}": scan_to(suffix) for suffix in (".csv", ".json", ".parquet")},
    **{f"export-{form}": export_to(form) for form in ("csv", "json", "parquet")},
}


def import_(cli: Cli, place: str, name: str) -> None:
    files = sorted(Path(place).glob("part-*")) if Path(place).is_dir() else [Path(place)]
    cli.done("import", name, *files)


def load(cli: Cli, place: str, name: str) -> None:
    cli.done("load", place, "--table", name, "--nulls", "skip" if "json" in place else "write")


READERS = {"import": import_, "load": load}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_reads_back(cli: Cli, spark: Any, writer: str, reader: str) -> None:
    has_cells = writer != "scan.csv"  # cells without fixed names have no place in it
    with stelae.open(cli.path) as db:
        fill(create(db, "t", cells=has_cells), cells=has_cells)
        create(db, "back", cells=has_cells)
    place = WRITERS[writer](cli, spark, "t")
    READERS[reader](cli, place, "back")
    with stelae.open(cli.path) as db:
        here, there = shown(db.table("t")), shown(db.table("back"))
    assert here == there
