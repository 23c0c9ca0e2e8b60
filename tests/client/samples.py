"""Tables that the tests of the client write to, and values for them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal as PyDecimal
from typing import Any

from stelae.model.declare import cells, columns, declare

MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
READING = datetime(2024, 5, 6, 7, 8, 9, 123456)  # noqa: DTZ001 - a reading of a wall clock has no zone
DAY = date(2024, 5, 6)

USERS = declare(
    {"id": "string"},
    [
        columns("profile", {"name": "string", "age": "int32 not null default 0", "score": "float64"}),
        cells("events", ["click", "view"]),
    ],
)
PAIR = declare({"area": "string", "place": "int64"}, [columns("g", {"number": "int64", "note": "string"})])
WILD = declare({"id": "int64"}, [cells("events", ["click"]), cells("rest")])
FLOATING = declare({"x": "float64"}, [columns("g", {"number": "int64"})])
HASHED = declare({"id": "int64"}, [columns("g", {"number": "int64", "note": "string"}), cells("rest")], hashed=True)
STRICT = declare(
    {"id": "string"},
    [
        columns("must", {"name": "string not null", "note": "string"}),
        columns("may", {"age": "int32"}),
        cells("c", ["f"]),
    ],
)

ALL_TYPES: dict[str, tuple[str, Any, Any]] = {
    "bool": ("bool", True, False),
    "int8": ("int8", 127, -128),
    "int16": ("int16", 2**15 - 1, -(2**15)),
    "int32": ("int32", 2**31 - 1, -(2**31)),
    "int64": ("int64", 2**63 - 1, -(2**63)),
    "float32": ("float32", 0.5, float("-inf")),
    "float64": ("float64", 0.1, -1e300),
    "decimal": ("decimal(38, 10)", PyDecimal("1.0000000000"), PyDecimal("-9999999999999999999999999999.9999999999")),
    "string": ("string", "größe \U0001f600", ""),
    "binary": ("binary", b"\x00\xff", b""),
    "date": ("date", DAY, date(1, 1, 1)),
    "timestamp": ("timestamp", MOMENT, datetime(1, 1, 1, tzinfo=UTC)),
    "ntz": ("timestamp_ntz", READING, datetime(9999, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001 - as above
    "ints": ("array<int64>", [1, None, 2**60 + 1], []),
    "times": ("array<timestamp>", [MOMENT, None], []),
    "texts": ("array<array<string>>", [["a", None], None], [[]]),
    "spot": ("struct<x: int32, y: timestamp_ntz>", {"x": 1, "y": READING}, {"x": None, "y": None}),
    "counts": ("map<string, int32>", {"a": 1, "b": None}, {}),
    "stays": ("map<date, decimal(5, 2)>", {DAY: PyDecimal("1.50")}, {}),
    "place": ("vector(float32, 3)", [1.0, 2.0, 3.5], [0.0, -0.0, float("inf")]),
}
EVERYTHING = declare({"id": "int64"}, [columns("g", {name: text for name, (text, _, _) in ALL_TYPES.items()})])


def every_type() -> list[dict[str, Any]]:
    """Three rows: one value of each type, another, and NULL."""
    return [
        {"id": 1} | {name: one for name, (_, one, _) in ALL_TYPES.items()},
        {"id": 2} | {name: other for name, (_, _, other) in ALL_TYPES.items()},
        {"id": 3} | dict.fromkeys(ALL_TYPES),
    ]
