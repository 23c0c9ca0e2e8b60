"""Column types as Spark has them, and back.

| Stelae | Spark |
|---|---|
| bool, int8 .. int64, float32, float64 | boolean, byte .. long, float, double |
| decimal, string, binary, date | the same |
| timestamp | timestamp (a moment; shown in the session's time zone) |
| timestamp_ntz | timestamp_ntz |
| array, struct, map | the same |
| vector(float32, n) | array<float> |

Every column of a frame is nullable: a key is none for Spark, and a column's NOT NULL is the store's own affair. Arrow
batches that go to Spark must have exactly the types of `arrow_schema_of`: moments in UTC, plain layouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stelae.model import types as t
from stelae.model.arrow import from_arrow
from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.model.words import how_to_install

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_SIMPLE: dict[str, t.ColumnType] = {
    "BooleanType": t.Bool(),
    "ByteType": t.Int(8),
    "ShortType": t.Int(16),
    "IntegerType": t.Int(32),
    "LongType": t.Int(64),
    "FloatType": t.Float(32),
    "DoubleType": t.Float(64),
    "VarcharType": t.String(),
    "CharType": t.String(),
    "BinaryType": t.Binary(),
    "DateType": t.Date(),
    "TimestampType": t.Timestamp(),
    "TimestampNTZType": t.TimestampNtz(),
}


def spark_types() -> Any:
    """pyspark's module of types; InvalidArgument says what to install."""
    try:
        from pyspark.sql import types
    except ImportError as error:
        raise InvalidArgument(f"pyspark is not installed; {how_to_install('spark')}") from error
    return types


def spark_type(type_: t.ColumnType) -> DataType:
    s = spark_types()
    match type_:
        case t.Bool():
            return s.BooleanType()
        case t.Int(bits):
            return {8: s.ByteType, 16: s.ShortType, 32: s.IntegerType, 64: s.LongType}[bits]()
        case t.Float(bits):
            return {32: s.FloatType, 64: s.DoubleType}[bits]()
        case t.Decimal(precision, scale):
            return s.DecimalType(precision, scale)
        case t.String():
            return s.StringType()
        case t.Binary():
            return s.BinaryType()
        case t.Date():
            return s.DateType()
        case t.Timestamp():
            return s.TimestampType()
        case t.TimestampNtz():
            return s.TimestampNTZType()
        case t.Array(element):
            return s.ArrayType(spark_type(element))
        case t.Vector():
            return s.ArrayType(s.FloatType())
        case t.Struct(fields):
            return s.StructType([s.StructField(name, spark_type(field)) for name, field in fields])
        case t.Map(key, value):
            return s.MapType(spark_type(key), spark_type(value))


def spark_schema(arrow: pa.Schema) -> StructType:
    """Of a scan's Arrow schema, or a frame's: all columns nullable, at every depth.

    spark_schema(pa.schema([("id", pa.string())]))   # StructType([StructField('id', StringType(), True)])
    """
    s = spark_types()
    return s.StructType([s.StructField(field.name, spark_type(from_arrow(field.type, field.name))) for field in arrow])


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The Arrow schema that batches of a Spark schema have, to and from Python: moments in UTC. What no column type
    holds (intervals, variants, void) is refused with the column's name."""
    from pyspark.sql.pandas.types import to_arrow_schema

    for field in schema.fields:
        column_type(field.dataType, field.name)
    return to_arrow_schema(schema, timezone="UTC")


def column_type(type_: DataType, where: str) -> t.ColumnType:
    """The column type that holds a Spark type's values; InvalidSchema names the column if there is none."""
    s = spark_types()
    match type_:
        case s.DecimalType() if type_.scale < 0 or type_.scale > type_.precision:
            raise InvalidSchema(f"column {where!r}: {type_.simpleString()} does not fit decimal(p, s) with 0 <= s <= p")
        case s.DecimalType():
            return t.Decimal(type_.precision, type_.scale)
        case s.StringType():
            return t.String()
        case s.ArrayType():
            return t.Array(column_type(type_.elementType, where))
        case s.StructType():
            return t.Struct(tuple((f.name, column_type(f.dataType, f"{where}.{f.name}")) for f in type_.fields))
        case s.MapType():
            key = column_type(type_.keyType, where)
            if not isinstance(key, t.KeyType):
                raise InvalidSchema(f"column {where!r}: the key of a map cannot be {key}")
            return t.Map(key, column_type(type_.valueType, where))
        case _:
            simple = _SIMPLE.get(type(type_).__name__)
            if simple is None:
                raise InvalidSchema(f"column {where!r}: no column type holds Spark's {type_.simpleString()}")
            return simple
