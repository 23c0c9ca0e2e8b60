"""An array of numbers that a plan carries as one constant.

Spark's API makes such arrays element by element, or by a subquery, which is planned and run anew in every query. So it
is made by what is behind the API, out of bytes. Plans show it by its hash alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_WORD_BYTES = 8


def words_column(spark: SparkSession, words: bytes) -> Column:
    """Numbers of eight bytes each, the lowest byte first, as an array of BIGINT."""
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm = _classes(spark._jvm)
    data = jvm.arrays.fromPrimitiveArray(words, jvm.bytes_start, len(words) // _WORD_BYTES, _WORD_BYTES)
    return ClassicColumn(jvm.columns.column(jvm.literal(data, jvm.type)))


class _Classes(NamedTuple):
    """Of the JVM. `bytes_start`: where the first element of an array of bytes lies in it."""

    arrays: Any
    literal: Any
    columns: Any
    type: Any
    bytes_start: int


@lru_cache(maxsize=1)
def _classes(jvm: Any) -> _Classes:
    """Kept, since the way to a class through the JVM's packages asks the JVM at every step."""
    expressions, types = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.types.DataTypes
    return _Classes(
        arrays=expressions.UnsafeArrayData,
        literal=expressions.Literal,
        columns=jvm.org.apache.spark.sql.classic.ExpressionUtils,
        type=types.createArrayType(types.LongType, False),
        bytes_start=jvm.org.apache.spark.unsafe.Platform.BYTE_ARRAY_OFFSET,
    )
