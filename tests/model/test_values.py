"""Values are kept in one form or refused; nothing is changed in silence."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal as PyDecimal
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, TS_MIN
from stelae.model.types import ColumnType, parse_type
from stelae.model.values import check_ts, coerce
from tests.strategies import column_types, values

HUGE = pytest.param(10**5000, id="huge")


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[ColumnType, Any]:
    type_ = draw(column_types)
    return type_, draw(values(type_))


@given(typed_values())
def test_canonical_values_are_kept_as_they_are(case: tuple[ColumnType, Any]) -> None:
    type_, value = case
    assert coerce(type_, value, "c") == value


@given(typed_values())
def test_canonical_values_fit_the_arrow_type_and_come_back(case: tuple[ColumnType, Any]) -> None:
    type_, value = case
    back = pa.array([value], to_arrow(type_))[0].as_py()
    assert coerce(type_, back, "c") == value


BERLIN = timezone(timedelta(hours=2))


class Colour(str, Enum):  # noqa: UP042 - its str() is not its text, and that is the point
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Ratio(float, Enum):
    HALF = 0.5


class Blob(bytes):
    def __bytes__(self) -> bytes:
        return b"other"


class Price(PyDecimal):
    pass


class Day(date):
    pass


class Moment(datetime):
    pass


def _released() -> memoryview:
    view = memoryview(b"x")
    view.release()
    return view


@pytest.mark.parametrize(
    ("type_", "given_", "kept"),
    [
        ("float64", 3, 3.0),
        ("float32", 0.1, 0.10000000149011612),
        ("decimal(5, 2)", 3, PyDecimal("3.00")),
        ("decimal(5, 2)", PyDecimal("1.5"), PyDecimal("1.50")),
        ("decimal(5, 2)", PyDecimal("-0"), PyDecimal("0.00")),
        ("binary", bytearray(b"x"), b"x"),
        ("timestamp", datetime(2024, 1, 1, 2, tzinfo=BERLIN), datetime(2024, 1, 1, tzinfo=UTC)),
        ("int32", np.int64(7), 7),
        ("float64", np.float32(0.5), 0.5),
        ("bool", np.bool_(True), True),
        ("array<int8>", (1, None), [1, None]),
        ("array<int8>", np.array([1, 2]), [1, 2]),
        ("vector(float32, 2)", np.array([1.0, 2.0], np.float32), [1.0, 2.0]),
        ("struct<a: int8, b: string>", {"b": "x"}, {"a": None, "b": "x"}),
        ("map<string, int8>", [("a", 1)], {"a": 1}),
        ("timestamp_ntz", np.datetime64("2024-01-01T00:00:00.5"), datetime(2024, 1, 1, 0, 0, 0, 500_000)),  # noqa: DTZ001
        ("timestamp", pd.Timestamp("2024-01-01", tz="UTC"), datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp_ntz", np.datetime64("2024-01-01"), datetime(2024, 1, 1)),  # noqa: DTZ001
        ("timestamp_ntz", np.datetime64(1_000, "ns"), datetime(1970, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
        ("timestamp_ntz", np.datetime64("9999-12-31T23", "h"), datetime(9999, 12, 31, 23)),  # noqa: DTZ001
        ("timestamp_ntz", np.array("2024-01-01T01", "datetime64[h]"), datetime(2024, 1, 1, 1)),  # noqa: DTZ001
        ("date", np.datetime64("2024-01-31"), date(2024, 1, 31)),
        ("array<date>", np.array(["2024-01-31"], "datetime64[D]"), [date(2024, 1, 31)]),
        ("string", Colour.RED, "red"),
        ("string", np.str_("x"), "x"),
        ("int32", Level.LOW, 1),
        ("float64", Level.LOW, 1.0),
        ("decimal(5, 2)", Level.LOW, PyDecimal("1.00")),
        ("float64", Ratio.HALF, 0.5),
        ("float32", Ratio.HALF, 0.5),
        ("binary", Blob(b"x"), b"x"),
        ("binary", memoryview(b"xyz")[::2], b"xz"),
        ("decimal(5, 2)", Price("1.5"), PyDecimal("1.50")),
        ("date", Day(2024, 1, 31), date(2024, 1, 31)),
        ("timestamp", Moment(2024, 1, 1, 2, tzinfo=BERLIN), datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp_ntz", Moment(2024, 1, 1, fold=1), datetime(2024, 1, 1)),  # noqa: DTZ001
    ],
)
def test_accepted(type_: str, given_: object, kept: object) -> None:
    result = coerce(parse_type(type_), given_, "c")
    assert result == kept
    assert repr(result) == repr(kept)
    assert type(result) is type(kept)


@pytest.mark.parametrize(
    ("type_", "bad", "message"),
    [
        ("bool", 1, "c: 1 (int) is not a bool"),
        ("int32", True, "True (bool) is not a int32"),
        ("int32", 1.0, "1.0 (float) is not a int32"),
        ("int32", 2**31, "out of range"),
        ("int8", -129, "out of range"),
        ("float64", 2**53 + 1, "would be rounded"),
        ("float64", 10**400, "out of range"),
        ("float32", 1e39, "out of range"),
        ("float32", 2**25 + 1, "would be rounded"),
        ("float64", "1", "is not a float64"),
        ("decimal(5, 2)", PyDecimal("1.234"), "would be rounded to 2 digits"),
        ("decimal(5, 2)", PyDecimal(1000), "out of range"),
        ("decimal(5, 2)", 10**4000, "out of range"),
        ("decimal(5, 2)", PyDecimal("NaN"), "is not a decimal(5, 2)"),
        ("decimal(5, 2)", 1.5, "(float) is not a decimal(5, 2)"),
        ("string", b"x", "(bytes) is not a string"),
        ("string", "\ud800", "lone surrogate"),
        ("binary", "x", "(str) is not a binary"),
        ("date", datetime(2024, 1, 1), "is not a date"),  # noqa: DTZ001
        ("timestamp", datetime(2024, 1, 1), "has no time zone"),  # noqa: DTZ001
        ("timestamp", datetime(1, 1, 1, tzinfo=BERLIN), "outside the years"),
        ("timestamp", date(2024, 1, 1), "is not a timestamp"),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC), "has a time zone"),
        ("timestamp", pd.Timestamp(1, unit="ns", tz="UTC"), "nanoseconds would be lost"),
        ("timestamp_ntz", np.datetime64(1, "ns"), "nanoseconds would be lost"),
        ("timestamp_ntz", np.datetime64(2**62, "s"), "outside the years 1 to 9999"),
        ("timestamp_ntz", np.datetime64(10_000, "Y"), "outside the years 1 to 9999"),
        ("timestamp_ntz", pd.Timestamp(np.datetime64(10**12, "s")), "outside the years 1 to 9999"),
        ("timestamp", np.datetime64("2024-01-01"), "has no time zone"),
        ("date", np.datetime64("2024-01-01T00"), "is not a date"),
        ("int64", np.datetime64(5, "ns"), "its nanoseconds would be lost"),
        ("int64", np.datetime64(5_000, "ns"), "(datetime) is not a int64"),
        ("int64", np.datetime64(2**62, "s"), "outside the years 1 to 9999"),
        ("int64", np.timedelta64(5, "ns"), "(timedelta64) is not a int64"),
        ("int64", np.timedelta64(5, "s"), "(timedelta64) is not a int64"),
        ("float64", np.timedelta64(5, "Y"), "(timedelta64) is not a float64"),
        ("timestamp_ntz", np.datetime64("NaT", "us"), "it stands for no value; NULL is None"),
        ("date", np.datetime64("NaT", "D"), "it stands for no value; NULL is None"),
        ("timestamp_ntz", pd.NaT, "NaT (NaTType) is not a timestamp_ntz: it stands for no value; NULL is None"),
        ("timestamp", pd.NaT, "NULL is None"),
        ("date", pd.NaT, "NULL is None"),
        ("int64", pd.NA, "<NA> (NAType) is not a int64: it stands for no value; NULL is None"),
        ("string", pd.NA, "NULL is None"),
        ("map<string, int8>", {pd.NA: 1}, "NULL is None"),
        ("map<decimal(3, 1), int8>", [(PyDecimal("sNaN"), 1)], "is not a decimal(3, 1)"),
        pytest.param("int64", 10**5000, "c: <int of 16610 bits> (int) is not a int64: out of range", id="huge-int"),
        pytest.param("float64", 10**5000, "<int of 16610 bits>", id="huge-flo"),
        pytest.param("decimal(5, 2)", 10**5000, "<int of 16610 bits>", id="huge-dec"),
        pytest.param("string", 10**5000, "<int of 16610 bits>", id="huge-str"),
        pytest.param("string", [10**5000], "<list that cannot be shown>", id="huge-in-list"),
        ("decimal(5, 2)", True, "True (bool) is not a decimal(5, 2)"),
        ("float64", True, "True (bool) is not a float64"),
        ("binary", _released(), "released memoryview"),
        ("array<int8>", [1, "x"], "c[1]: 'x' (str) is not a int8"),
        ("array<int8>", "ab", "is not a array<int8>"),
        ("vector(float32, 2)", [1.0], "it has 1 elements"),
        ("vector(float32, 2)", [1.0, None], "c[1]: None"),
        ("struct<a: int8>", {"a": "x"}, "c.a: 'x' (str) is not a int8"),
        ("struct<a: int8>", {"z": 1}, "no field 'z'"),
        ("map<string, int8>", {None: 1}, "None cannot be a key"),
        ("map<float64, int8>", {math.nan: 1}, "nan cannot be a key"),
        ("map<string, int8>", [("a", 1), ("a", 2)], "key 'a' stands twice"),
        ("map<string, int8>", {"a": 300}, "c['a']: 300 (int) is not a int8: out of range"),
        ("string", 1j, "is not a string"),
    ],
)
def test_refused(type_: str, bad: object, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        coerce(parse_type(type_), bad, "c")
    assert message in str(caught.value)


def test_long_values_are_shown_short() -> None:
    with pytest.raises(InvalidArgument) as caught:
        coerce(parse_type("int8"), "x" * 1_000_000, "c")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("bad", [TS_MIN - 1, TS_MAX + 1, 1.5, True, "1", None, HUGE])
def test_a_time_is_whole_microseconds_in_range(bad: object) -> None:
    assert check_ts(TS_MIN) == TS_MIN
    with pytest.raises(InvalidArgument, match=r"ts: .* is not a time"):
        check_ts(bad)


_ELEMENTS = st.sampled_from(
    [t.Bool(), *(t.Int(bits) for bits in t.INT_BITS), t.Float(32), t.Float(64), t.String(), t.Binary(), t.Date()]
)
_ITEMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(-130, 130),
    st.floats(),
    st.text(st.characters(), max_size=3),
    st.binary(max_size=3),
)


@given(_ELEMENTS, st.one_of(st.lists(_ITEMS, max_size=4), st.lists(st.floats(), max_size=4), st.lists(st.integers())))
def test_arrays_are_kept_as_their_items_are(element: t.ColumnType, items: list[Any]) -> None:
    try:
        expected = [None if item is None else coerce(element, item, "it") for item in items]
    except InvalidArgument:
        with pytest.raises(InvalidArgument, match=r"it\[\d+\]"):
            coerce(t.Array(element), items, "it")
        return
    kept = coerce(t.Array(element), items, "it")
    assert kept is not items
    assert repr(kept) == repr(expected)


@pytest.mark.parametrize("dtype", ["?", "i1", "i8", "u1", "u8", "f2", "f4", "f8", "g", "M8[us]", "O"])
@pytest.mark.parametrize(
    "element", [t.Bool(), t.Int(8), t.Int(64), t.Float(32), t.Float(64), t.TimestampNtz()], ids=str
)
def test_numpys_arrays_are_kept_as_their_items_are(dtype: str, element: t.ColumnType) -> None:
    for numbers in ([0, 1, 1], [0, 100, 250], []):
        given = np.array(numbers).astype(dtype)
        try:
            expected = [coerce(element, item, "it") for item in given]
        except InvalidArgument:
            with pytest.raises(InvalidArgument):
                coerce(t.Array(element), given, "it")
        else:
            assert repr(coerce(t.Array(element), given, "it")) == repr(expected)
