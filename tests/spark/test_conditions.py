"""Conditions as SQL say of every row what the plain model says."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from stelae.model import types as t
from stelae.model.arrow_values import array_of
from stelae.model.keys.scalar import KeyCodec
from stelae.model.predicate.binding import check_types
from stelae.model.predicate.build import col
from stelae.model.predicate.expr import Expr
from stelae.model.predicate.parser import parse
from stelae.model.ranges import RowRange
from stelae.spark.reading.conditions import SqlColumn, quoted, row_condition, sql_condition
from tests.effort import tries
from tests.model.evaluate import evaluate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

import pyarrow as pa

_NAN, _INF = float("nan"), float("inf")
_POOLS: dict[t.KeyType, list[Any]] = {
    t.Bool(): [True, False],
    t.Int(8): [-128, -1, 0, 1, 127],
    t.Int(32): [-(2**31), -1, 0, 7, 2**31 - 1],
    t.Int(64): [-(2**63), -1, 0, 7, 2**63 - 1],
    t.Float(32): [-_INF, -1.5, -0.0, 0.0, 0.10000000149011612, _INF, _NAN],
    t.Float(64): [-_INF, -1.5, -0.0, 0.0, 0.1, 1e300, _INF, _NAN],
    t.Decimal(5, 2): [Decimal("-999.99"), Decimal("0.00"), Decimal("0.10"), Decimal("999.99")],
    t.Decimal(38, 10): [Decimal("-1.0000000001"), Decimal("0E-10"), Decimal(f"{10**27}.0000000001")],
    t.String(): ["", "a", "a'\\b", "ab\x00", "z", "ä", "\U0001f600"],
    t.Binary(): [b"", b"\x00", b"a", b"a\xff", b"\xff"],
    t.Date(): [date(1, 1, 1), date(1582, 10, 10), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
    t.Timestamp(): [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1500, 3, 1, 1, 2, 3, 4, UTC),
        datetime(2024, 3, 31, 1, 30, 0, 1, UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
    ],
    t.TimestampNtz(): [
        datetime(1, 1, 1),  # noqa: DTZ001
        datetime(2024, 3, 31, 2, 30, 0, 1),  # noqa: DTZ001
        datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    ],
}
_TYPES = {f"c{number}": type_ for number, type_ in enumerate(_POOLS)}


def _rows(rng: random.Random, count: int) -> list[dict[str, Any]]:
    return [{name: rng.choice([*_POOLS[type_], None]) for name, type_ in _TYPES.items()} for _ in range(count)]


def _leaf(rng: random.Random) -> Expr:
    name, type_ = rng.choice(list(_TYPES.items()))
    term, pool = col(name), _POOLS[type_]
    if isinstance(type_, t.Float | t.Int | t.Decimal):
        pool = [*pool, 0, 3, 0.1, 1.5, 300]
    value = rng.choice(pool)
    choices: list[Expr] = [
        term.is_null(),
        term.is_not_null(),
        term.isin(rng.choices(pool, k=rng.randint(0, 3))),
        term == value,
        term != value,
        term < value,
        term <= value,
        term > value,
        term >= value,
    ]
    if isinstance(type_, t.String | t.Binary):
        choices += [term.startswith(value), term.startswith(value[:1])]
    return rng.choice(choices)


def _expression(rng: random.Random, depth: int = 2) -> Expr:
    if depth == 0 or rng.random() < 0.3:
        return _leaf(rng)
    left, right = _expression(rng, depth - 1), _expression(rng, depth - 1)
    return rng.choice([~left, left & right, left | right])


def test_sql_says_what_the_model_says(spark: SparkSession) -> None:
    rng = random.Random(4)
    rows = _rows(rng, 60)
    columns = {name: SqlColumn(quoted(name), type_) for name, type_ in _TYPES.items()}
    said: list[tuple[Expr, str]] = []
    while len(said) < tries(150):
        expr = check_types(_expression(rng), _TYPES)
        sql = sql_condition(expr, columns)
        if sql is not None:
            said.append((expr, sql))
    arrays = {name: array_of(type_, [row[name] for row in rows]) for name, type_ in _TYPES.items()}
    frame = spark.createDataFrame(pa.table(arrays))
    found = frame.selectExpr(*(f"({sql}) AS r{number}" for number, (_, sql) in enumerate(said))).toArrow()
    for number, (expr, sql) in enumerate(said):
        expected = [evaluate(expr, row.__getitem__) for row in rows]
        got = found.column(number).to_pylist()
        # What stands beside a float for the sake of statistics may be false where the whole is unknown.
        assert [bool(each) for each in got] == [bool(each) for each in expected], sql


@pytest.mark.parametrize(
    "text", ["c1 > 1.5", "c1 = 300", "c6 = 0.123", "c4 < 100000000000000000000000000000000000001", "row = 'a'"]
)
def test_what_has_no_exact_equal_is_not_said(text: str) -> None:
    columns = {name: SqlColumn(quoted(name), type_) for name, type_ in _TYPES.items()}
    assert sql_condition(check_types(parse(text), _TYPES), columns) is None


_BOUNDS = [b"\x7f", b"\x7f\xff\xff\xff\xff", b"\x80\x00\x00\x07", b"\x80\x00\x00\x07\x00", b"a", b"\xc3", b"\xff" * 9]


def test_row_ranges_as_sql(spark: SparkSession) -> None:
    """Bounds are any bytes, whatever the key's rows look like."""
    types = [type_ for type_ in _POOLS if not isinstance(type_, t.Float | t.Decimal | t.Bool | t.TimestampNtz)]
    ranges = [RowRange(low, None) for low in _BOUNDS] + [RowRange(b"", high) for high in _BOUNDS]
    ranges += [RowRange(b"\x7f\xff", b"\xc3")]
    count = max(len(_POOLS[type_]) for type_ in types)
    padded = {f"k{at}": (_POOLS[type_] * count)[:count] for at, type_ in enumerate(types)}
    frame = spark.createDataFrame(
        pa.table({name: array_of(type_, padded[name]) for name, type_ in zip(padded, types, strict=True)})
    )
    said = [
        (type_, each, name, row_condition([each], SqlColumn(name, type_)))
        for name, type_ in zip(padded, types, strict=True)
        for each in ranges
    ]
    found = frame.selectExpr(*(f"({sql}) AS r{at}" for at, (_, _, _, sql) in enumerate(said))).toArrow()
    for at, (type_, each, name, sql) in enumerate(said):
        rows = [KeyCodec({"k": type_}).encode((value,)) for value in padded[name]]
        assert found.column(at).to_pylist() == [row in each for row in rows], (type_, sql)


def test_keys_that_do_not_order_as_their_rows_have_no_ranges() -> None:
    assert row_condition([RowRange(b"a")], SqlColumn("`k`", t.TimestampNtz())) is None
    assert row_condition([RowRange()], SqlColumn("`k`", t.TimestampNtz())) == "(TRUE)"
    assert row_condition([], SqlColumn("`k`", t.String())) == "FALSE"
