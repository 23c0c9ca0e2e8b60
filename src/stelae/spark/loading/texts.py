"""Fields of CSV and JSON as values, in Spark SQL: exactly what `stelae import` reads, or NULL and a misfit.

Everything is text first, also inside arrays, structs and maps: Spark's own reading takes much for a value that is none
(half a date, digits that are not kept), so a text must look like one. Bytes are `{"$binary": BASE64}`, or the UTF-8 of
any other text; floats may be `{"$float": "NaN"}`; a map whose keys are no strings is an object of their texts, or a
list of [key, value].

`shape_of` is the type that Spark is to read JSON as, `value` makes the column's type of it, `is_misfit` says that
something in it is no value. Lambdas nest, so each has variables of its own depth.
"""

from __future__ import annotations

from stelae.model import types as t
from stelae.spark.reading.conditions import quoted
from stelae.spark.types import spark_type

_DAY = "[0-9]{4,6}-[0-9]{2}-[0-9]{2}"
_CLOCK = "[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6}0*)?"
_ZONE = " ?(Z|UTC|[+-][0-9]{2}(:?[0-9]{2})?)"
ZONED = f"{_CLOCK}{_ZONE} *$"
_INT = "[+-]?[0-9]+"
_FLOAT = "[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?"
_SCALED = "[+-]?[0-9]+([.][0-9]+)?[eE][+-]?[0-9]{1,4}"
_ENDLESS = "[+-]?([iI]nf(inity)?|[nN]a[nN]|INF|INFINITY)"
_SAID_FLOAT = r'[{]\s*"[$]float"\s*:\s*"(NaN|-?Infinity)"\s*[}]'
_SAID_BYTES = r'[{]\s*"[$]binary"\s*:\s*"([A-Za-z0-9+/=]*)"\s*[}]'
_BEGUN_BYTES = r'^[{]\s*"[$]binary"'
_NESTED = t.Array | t.Struct | t.Map | t.Vector


def literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def shape_of(type_: t.ColumnType, *, in_text: bool = False) -> str:
    """What JSON of a type is read as: text in the place of every value. `in_text`: by `from_json`, which makes floats
    of numbers on the way to text; so decimals are read as decimals there."""
    match type_:
        case t.Array(element):
            return f"array<{shape_of(element, in_text=in_text)}>"
        case t.Vector():
            return "array<string>"
        case t.Struct(fields):
            parts = [f"{quoted(name)}: {shape_of(field, in_text=in_text)}" for name, field in fields]
            return f"struct<{', '.join(parts)}>"
        case t.Map(t.String(), value):
            return f"map<string, {shape_of(value, in_text=in_text)}>"
        case t.Decimal(precision, scale) if in_text:
            return f"decimal({precision}, {scale})"
        case _:
            return "string"


class FieldText:
    """SQL about JSON that was read in the shape of a type; `in_text` as in `shape_of`."""

    def __init__(self, *, in_text: bool) -> None:
        self._in_text = in_text

    def value(self, given: str, type_: t.ColumnType, depth: int = 0) -> str:
        """What it is as a value of the type; NULL where it is none."""
        each, key = f"e{depth}", f"k{depth}"
        match type_:
            case t.Array(element):
                return f"transform({given}, {each} -> {self.value(each, element, depth + 1)})"
            case t.Vector():
                return f"transform({given}, {each} -> {_scalar(each, t.Float(32))})"
            case t.Struct(fields):
                parts = [
                    f"{literal(name)}, {self.value(f'{given}.{quoted(name)}', field, depth + 1)}"
                    for name, field in fields
                ]
                return f"IF({given} IS NULL, NULL, named_struct({', '.join(parts)}))"
            case t.Map(t.String(), value):
                return f"transform_values({given}, ({key}, {each}) -> {self.value(each, value, depth + 1)})"
            case t.Map(of_key, value):
                entry = f"struct({_scalar(f'{each}.key', of_key)}, {text_value(f'{each}.value', value, depth + 1)})"
                entries = f"transform({_entries(given, depth)}, {each} -> {entry})"
                return f"IF({self.is_misfit(given, type_, depth)}, NULL, map_from_entries({entries}))"
            case t.Decimal() if self._in_text and depth:
                return given
            case _:
                return _scalar(given, type_)

    def is_misfit(self, given: str, type_: t.ColumnType, depth: int = 0) -> str:
        """Whether something in it is no value of the type; never NULL."""
        each = f"e{depth}"
        match type_:
            case t.Array() | t.Vector():
                element = type_.element if isinstance(type_, t.Array) else t.Float(32)
                return f"coalesce(exists({given}, {each} -> {self.is_misfit(each, element, depth + 1)}), FALSE)"
            case t.Struct(fields):
                parts = [self.is_misfit(f"{given}.{quoted(name)}", field, depth + 1) for name, field in fields]
                return f"({' OR '.join(parts)})"
            case t.Map(t.String(), value):
                wrong = self.is_misfit(each, value, depth + 1)
                return f"coalesce(exists(map_values({given}), {each} -> {wrong}), FALSE)"
            case t.Map(of_key, value):
                no_key = f"{_scalar(f'{each}.key', of_key)} IS NULL"
                wrong = f"({no_key} OR {is_text_misfit(f'{each}.value', value, depth + 1)})"
                return f"({given} IS NOT NULL AND coalesce(exists({_entries(given, depth)}, {each} -> {wrong}), TRUE))"
            case t.Decimal() if self._in_text and depth:
                return "FALSE"
            case _:
                return f"({given} IS NOT NULL AND {_scalar(given, type_)} IS NULL)"


IN_FILES = FieldText(in_text=False)
IN_TEXT = FieldText(in_text=True)


def text_value(text: str, type_: t.ColumnType, depth: int = 0) -> str:
    """The value of a field that is text: nested values are JSON in it."""
    if not isinstance(type_, _NESTED):
        return _scalar(text, type_)
    return IN_TEXT.value(_read(text, type_), type_, depth)


def is_text_misfit(text: str, type_: t.ColumnType, depth: int = 0) -> str:
    if not isinstance(type_, _NESTED):
        return f"({text} IS NOT NULL AND {_scalar(text, type_)} IS NULL)"
    read = _read(text, type_)
    return f"({text} IS NOT NULL AND ({read} IS NULL OR {IN_TEXT.is_misfit(read, type_, depth)}))"


def _read(text: str, type_: t.ColumnType) -> str:
    """A struct stands in a list: of what is no JSON, Spark makes a struct of NULLs, and a list of nothing."""
    shape = shape_of(type_, in_text=True)
    return text if shape == "string" else f"from_json(concat('[', {text}, ']'), {literal(f'array<{shape}>')})[0]"


def _entries(given: str, depth: int) -> str:
    """Of a map as JSON, its keys and values as text."""
    pair = f"p{depth}"
    pairs = f"from_json({given}, 'array<array<string>>')"
    listed = f"transform({pairs}, {pair} -> struct({pair}[0] AS key, {pair}[1] AS value))"
    return f"IF({given} RLIKE '^ *[\\\\[]', {listed}, map_entries(from_json({given}, 'map<string, string>')))"


def _scalar(text: str, type_: t.ColumnType) -> str:
    match type_:
        case t.String():
            return text
        case t.Binary():
            said = f"IF({text} RLIKE {literal(f'^{_SAID_BYTES}$')}, {_base64(text)}, NULL)"
            return f"IF({text} RLIKE {literal(_BEGUN_BYTES)}, {said}, CAST({text} AS BINARY))"
        case t.Timestamp():
            return _looking_like(f"{_DAY}{_CLOCK}{_ZONE}", text, f"TRY_CAST({text} AS TIMESTAMP)")
        case t.TimestampNtz():
            return _looking_like(f"{_DAY}{_CLOCK}", text, f"TRY_CAST({text} AS TIMESTAMP_NTZ)")
        case t.Date():
            return _looking_like(_DAY, text, f"TRY_CAST({text} AS DATE)")
        case t.Int():
            return _looking_like(_INT, text, f"TRY_CAST({text} AS {spark_type(type_).simpleString()})")
        case t.Decimal(precision, scale):
            kept = f"TRY_CAST({text} AS DECIMAL({precision}, {scale}))"
            plain = _looking_like(f"[+-]?[0-9]*([.][0-9]{{0,{scale}}}0*)?", text, kept)
            behind = f"length(rtrim('0', regexp_extract({text}, '[.]([0-9]+)', 1)))"
            power = f"TRY_CAST(regexp_extract({text}, '[eE]([+-]?[0-9]+)', 1) AS INT)"
            scaled = f"IF({behind} - {power} <= {scale}, {kept}, NULL)"
            return f"coalesce({plain}, {_looking_like(_SCALED, text, scaled)})"
        case t.Float(bits):
            name = "FLOAT" if bits == 32 else "DOUBLE"
            cast = f"TRY_CAST({text} AS {name})"
            finite = f"IF(abs({cast}) < double('Infinity'), {cast}, NULL)"
            said = f"TRY_CAST(regexp_extract({text}, {literal(_SAID_FLOAT)}, 1) AS {name})"
            return (
                f"coalesce({_looking_like(_FLOAT, text, finite)}, {_looking_like(_ENDLESS, text, cast)}, "
                f"{_looking_like(_SAID_FLOAT, text, said)})"
            )
        case _:
            return f"TRY_CAST({text} AS BOOLEAN)"


def _base64(text: str) -> str:
    return f"try_to_binary(regexp_extract({text}, {literal(_SAID_BYTES)}, 1), 'base64')"


def _looking_like(pattern: str, text: str, value: str) -> str:
    return f"IF({text} RLIKE {literal(f'^ *{pattern} *$')}, {value}, NULL)"
