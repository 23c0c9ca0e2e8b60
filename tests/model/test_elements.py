"""Many values judged together are what each of them is by itself, or refused in the same words."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stelae.client.intake.values import array_of_given, fit_value
from stelae.model import values
from stelae.model.arrow_values import array_of
from stelae.model.elements import kept_at_once
from stelae.model.errors import InvalidArgument
from stelae.model.types import Array, ColumnType, Int, Vector, parse_type
from stelae.model.values import coerce


class Colour(enum.IntEnum):
    RED = 1


class Nowhere(tzinfo):
    """A zone that does not know its offset."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


TYPES = [
    *("bool", "int8", "int32", "int64", "float32", "float64", "decimal(5, 2)", "decimal(38, 0)", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz", "array<int8>", "struct<a: int32, b: timestamp>", "map<string, int8>"),
]
ZONES = st.sampled_from(
    [
        *(UTC, UTC, timezone(timedelta(hours=14)), timezone(-timedelta(hours=12, seconds=1))),
        *(ZoneInfo("Europe/Oslo"), ZoneInfo("UTC"), Nowhere()),
    ]
)
INTS = st.integers(-130, 130) | st.integers() | st.sampled_from([2**53, 2**53 + 1, 2**24 + 1, -(2**31), 2**31, 10**400])
DECIMALS = st.decimals(allow_nan=True, allow_infinity=True) | st.decimals(-999, 999, places=2)
MOMENTS = st.datetimes(timezones=st.none() | ZONES) | st.builds(
    lambda moment, fold: moment.replace(fold=fold), st.datetimes(timezones=st.none() | ZONES), st.sampled_from([0, 1])
)
KINDS: list[st.SearchStrategy[Any]] = [
    st.booleans(),
    INTS,
    st.integers(-120, 120),
    st.floats(),
    st.floats(width=32),
    DECIMALS,
    st.sampled_from([Decimal("-0"), Decimal("-0.00"), Decimal("1.10"), Decimal("sNaN"), Decimal("1E+3")]),
    st.text(st.characters(), max_size=3),
    st.just("\ud800"),
    st.binary(max_size=3),
    st.dates(),
    MOMENTS,
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(),
    st.just(Colour.RED),
    st.lists(st.integers(-130, 130), max_size=2),
    st.fixed_dictionaries({}, optional={"a": st.none() | INTS, "b": st.none() | MOMENTS, "c": st.none()}),
    st.fixed_dictionaries({"a": st.integers(-5, 5), "b": st.datetimes(timezones=st.just(UTC))}),
]
LISTS = st.lists(st.sampled_from(range(len(KINDS))), min_size=1, max_size=2).flatmap(
    lambda chosen: st.lists(st.one_of(*(KINDS[at] for at in chosen), st.none()), max_size=6)
)


def outcome(job: Any) -> Any:
    """What comes of it, with all that `==` does not see, or what is said against it."""
    try:
        found = job()
    except InvalidArgument as error:
        return "refused", str(error)
    return "kept", repr(found), [fold_of(each) for each in found]


def fold_of(value: Any) -> Any:
    return (value.fold, value.tzinfo) if isinstance(value, datetime) else None


def one_by_one(element: ColumnType, items: list[Any]) -> list[Any]:
    return [None if item is None else coerce(element, item, f"c[{at}]") for at, item in enumerate(items)]


@pytest.mark.parametrize("text", TYPES)
@given(LISTS)
@example([1, 2**53 + 1])
@example([1, 2, None, 2**31])
@example([1, 2.5, float("nan")])
@example([0.0, -0.0])
@example([Decimal("-0.00"), 1, Decimal("9.999")])
@example([Decimal("1.5"), Decimal("nan")])
@example([datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), datetime.max.replace(tzinfo=UTC)])
@example([datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Oslo"), fold=1)])
@example([datetime(2026, 1, 1, tzinfo=UTC, fold=1), None])
@example([datetime(2026, 1, 1, tzinfo=Nowhere())])
@example([date(2026, 1, 1), None])
@example([{"a": 1}, {}, None, {"b": datetime(2026, 1, 1, tzinfo=UTC)}])
def test_elements_are_kept_as_each_is(text: str, items: list[Any]) -> None:
    element = parse_type(text)
    assert outcome(lambda: coerce(Array(element), items, "c")) == outcome(lambda: one_by_one(element, items))


@given(LISTS.filter(len))
@example([1, None])
@example([2**24 + 1, 1])
def test_numbers_of_a_vector_are_kept_as_each_is(items: list[Any]) -> None:
    number = parse_type("float32")
    expected = outcome(lambda: [coerce(number, item, f"c[{at}]") for at, item in enumerate(items)])
    assert outcome(lambda: coerce(Vector(len(items)), items, "c")) == expected


NUMPY = {"b": st.booleans(), "i": st.integers(-(2**63), 2**63 - 1), "u": st.integers(0, 2**64 - 1), "f": st.floats()}


@st.composite
def numpy_arrays(draw: st.DrawFn) -> Any:
    """Of any width and order of bytes, with many values that are just too large for the next type."""
    kind = draw(st.sampled_from("biuf"))
    dtype = "?" if kind == "b" else draw(st.sampled_from("<>")) + kind + draw(st.sampled_from("248"))
    edges = [0, 127, 128, 2**24 + 1, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1]
    numbers = draw(st.lists(NUMPY[kind] | st.sampled_from(edges if kind in "iu" else [0, 1]), max_size=6))
    with np.errstate(over="ignore", invalid="ignore"):
        wide = np.array(numbers, {"b": "?", "i": "i8", "u": "u8", "f": "f8"}[kind])
        return wide.astype(dtype)[:: draw(st.sampled_from([1, -1, 2]))]


@pytest.mark.parametrize("text", TYPES)
@given(numpy_arrays())
@example(np.array([1.0, 1e39]))
@example(np.array([1.0, np.inf, np.nan, -0.0, 1e-50]))
@example(np.array([2**63], "u8"))
@example(np.array([[1, 2]]))
@example(np.array(5))
def test_arrays_of_numpy_are_kept_as_each_is(text: str, items: Any) -> None:
    element = parse_type(text)
    if items.ndim != 1:
        with pytest.raises(InvalidArgument, match="is not a array"):
            coerce(Array(element), items, "c")
        return
    expected = outcome(lambda: one_by_one(element, items.tolist()))
    assert outcome(lambda: coerce(Array(element), items, "c")) == expected
    if text == "float32" and len(items):
        assert outcome(lambda: coerce(Vector(len(items)), items, "c")) == expected


class Counted:
    """How often values are looked at one by one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        plain = values._COERCE[Int]

        def look(*given: Any) -> Any:
            self.looks += 1
            return plain(*given)

        monkeypatch.setitem(values._COERCE, Int, look)


@pytest.mark.parametrize("bad", ["x", 2**70, np.int32(5)])
def test_one_value_that_does_not_fit_has_only_those_about_it_looked_at(
    bad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, items = Counted(monkeypatch), [1] * 100_000
    items[70_000] = bad
    expected = outcome(lambda: one_by_one(Int(64), items))
    counted.looks = 0
    assert outcome(lambda: coerce(Array(Int(64)), items, "c")) == expected
    assert counted.looks <= 2_000
    array_or_error = outcome(lambda: array_of_given(Int(64), items, "c", 7).to_pylist())
    assert array_or_error[0] == expected[0]
    assert counted.looks <= 4_000


@pytest.mark.parametrize("dtype", ["i1", "u4", "i8", "u8"])
def test_numbers_of_numpy_are_not_looked_at_one_by_one(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    assert coerce(Array(Int(64)), np.arange(100, dtype=dtype), "c") == list(range(100))
    with pytest.raises(InvalidArgument, match=r"c\[1\]: 9223372036854775808 \(int\) is not a int64: out of range"):
        coerce(Array(Int(64)), np.array([1, 2**63, 1], "u8"), "c")
    assert counted.looks <= 3


@pytest.mark.parametrize("text", TYPES)
@given(LISTS)
def test_columns_are_kept_as_each_is(text: str, items: list[Any]) -> None:
    type_ = parse_type(text)

    def each() -> list[Any]:
        kept = []
        for number, item in enumerate(items, 7):
            try:
                kept.append(None if item is None else fit_value(type_, item, "c"))
            except InvalidArgument as error:
                raise InvalidArgument(f"row number {number}: {error}") from None
        return array_of(type_, kept).to_pylist()

    assert outcome(lambda: array_of_given(type_, items, "c", 7).to_pylist()) == outcome(each)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("float64", [1, 2, None]),
        ("float64", [1, 2.5]),
        ("float32", [1, None]),
        ("decimal(5, 2)", [Decimal("1.1"), 2, None]),
        ("timestamp", [datetime(2026, 1, 1, tzinfo=UTC), None]),
        ("timestamp", [datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Oslo"))]),
        ("timestamp_ntz", [datetime(2026, 1, 1), None]),  # noqa: DTZ001
        ("date", [date(2026, 1, 1)]),
        ("struct<a: int32, b: string>", [{"a": 1, "b": "x"}, {"a": None}, {}, None]),
        ("int8", [None, None]),
    ],
)
def test_what_is_plain_is_not_looked_at_one_by_one(text: str, items: list[Any]) -> None:
    type_ = parse_type(text)
    assert kept_at_once(type_, items) == one_by_one(type_, items)
