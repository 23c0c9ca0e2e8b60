"""Spark's read of a table and the client's, made comparable: rows in the order of their keys, values as Python has
them, and NaN equal to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stelae.client.api.table import Table
from stelae.spark.types import arrow_schema_of, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plain_rows(table: pa.Table) -> list[Any]:
    """Rows as tuples that can be compared, sorted."""
    exact = table.cast(arrow_schema_of(spark_schema(table.schema)))
    columns = [[_plain(value) for value in column.to_pylist()] for column in exact.columns]
    return sorted(zip(*columns, strict=True), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value


def assert_same(frame: DataFrame, table: Table, at: int, **asked: Any) -> int:
    """The frame has the rows and columns that a scan at the txn has; how many rows."""
    scan = {name: value for name, value in asked.items() if name != "history"}
    if "history" in asked:
        said = f"history = {asked['history']}"
        scan["where"] = f"{scan['where']} and {said}" if "where" in scan else said
    expected = table.scan(at=at, **scan).to_arrow()
    found = frame.toArrow()
    assert found.column_names == expected.column_names
    assert plain_rows(found) == plain_rows(expected)
    return int(expected.num_rows)
