"""Every column type goes to Spark and back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidSchema
from stelae.model.types import Array, Vector, parse_type
from stelae.spark.types import arrow_schema_of, column_type, spark_schema, spark_type, spark_types

_TYPES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "decimal(38, 4)": "decimal(38,4)",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "array<int32>": "array<int>",
    "struct<a: int32, b: array<string>>": "struct<a:int,b:array<string>>",
    "map<string, binary>": "map<string,binary>",
}


@pytest.mark.parametrize("text", list(_TYPES))
def test_there_and_back(text: str) -> None:
    type_ = parse_type(text)
    schema = spark_schema(pa.schema({"x": to_arrow(type_)}))
    assert schema[0].dataType.simpleString() == _TYPES[text]
    assert schema[0].nullable
    assert column_type(schema[0].dataType, "x") == type_
    assert arrow_schema_of(schema) == pa.schema({"x": to_arrow(type_)})


def test_a_vector_is_an_array_of_floats() -> None:
    assert spark_type(Vector(3)).simpleString() == "array<float>"
    assert column_type(spark_type(Vector(3)), "v") == Array(parse_type("float32"))


def test_all_is_nullable_at_every_depth() -> None:
    deep = pa.struct([pa.field("a", pa.list_(pa.field("i", pa.int32(), nullable=False)), nullable=False)])
    (field,) = spark_schema(pa.schema([pa.field("x", deep, nullable=False)])).fields
    assert field.nullable
    assert field.dataType[0].nullable
    assert field.dataType[0].dataType.containsNull


def test_text_of_a_length_is_text() -> None:
    s = spark_types()
    assert column_type(s.VarcharType(5), "x") == parse_type("string")
    assert column_type(s.CharType(5), "x") == parse_type("string")


def test_what_no_column_holds_is_refused_by_name() -> None:
    s = spark_types()
    for type_ in (s.NullType(), s.DayTimeIntervalType(), s.VariantType(), s.CalendarIntervalType()):
        with pytest.raises(InvalidSchema, match=r"'x\.y': no column type holds"):
            column_type(s.StructType([s.StructField("y", type_)]), "x")
    with pytest.raises(InvalidSchema, match="'x': the key of a map cannot be"):
        column_type(s.MapType(s.ArrayType(s.LongType()), s.LongType()), "x")
    with pytest.raises(InvalidSchema, match="'x'"):
        arrow_schema_of(s.StructType([s.StructField("x", s.NullType())]))
    with pytest.raises(InvalidSchema, match=r"'x'.*0 <= s <= p"):
        column_type(s.DecimalType(5, -2), "x")
