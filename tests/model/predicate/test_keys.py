"""Key ranges lose no row that matches; for one column, or equal leading columns, they hold no row that does not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal as PyDecimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.keys.scalar import Key, KeyCodec
from stelae.model.predicate import keyranges
from stelae.model.predicate.binding import check_types
from stelae.model.predicate.build import col, row
from stelae.model.predicate.expr import ColumnRef, Comparator, Compare, Expr, IsNull, Leaf, Within, combine
from stelae.model.predicate.keyranges import key_ranges
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.parser import parse
from stelae.model.ranges import EVERYTHING, NOTHING, RangeSet, RowRange, prefixed, single
from tests.model.evaluate import evaluate
from tests.model.predicate.test_samples import trees

DENORMAL, TINY32, MAX32 = 5e-324, 2.0**-149, 3.4028234663852886e38
VALUES: dict[t.KeyType, list[Any]] = {
    t.Bool(): [False, True],
    t.Int(8): [-128, -127, -1, 0, 1, 126, 127],
    t.Int(64): [-(2**63), -256, -1, 0, 255, 256, 2**53 + 1, 2**63 - 1],
    t.Float(32): [-math.inf, -MAX32, -1.5, -TINY32, 0.0, TINY32, 0.10000000149011612, 1.5, 16777216.0, MAX32, math.inf],
    t.Float(64): [-math.inf, -1e308, -1.0, -DENORMAL, 0.0, DENORMAL, 0.1, 1.0, 2.0**53, 1e308, math.inf],
    t.Decimal(4, 2): [PyDecimal(n).scaleb(-2) for n in (-9999, -100, -1, 0, 1, 150, 151, 9999)],
    t.Decimal(38, 0): [PyDecimal(n) for n in (-(10**38) + 1, -1, 0, 1, 10**38 - 1)],
    t.String(): ["", "\0", "\0\0", "a", "a\0", "a\0\x01", "a\x01", "ab", "b", "é", "\U0001f600", "\U0010ffff"],
    t.Binary(): [b"", b"\0", b"\0\xff", b"\x01", b"a", b"a\0", b"a\0\x01", b"a\0\xff", b"a\xff", b"\xff", b"\xff\xff"],
    t.Date(): [date.min, date(1969, 12, 31), date(1970, 1, 1), date(2024, 1, 31), date.max],
    t.Timestamp(): [datetime(year, 1, 31, 1, tzinfo=UTC) for year in (1, 1969, 1970, 2024, 9999)],
    t.TimestampNtz(): [datetime.min, datetime(1970, 1, 1), datetime(2024, 1, 31, 1), datetime.max],  # noqa: DTZ001, DTZ901
}
NUMBERS: list[Any] = [
    -(10**400), -(10**40), -129, -128.5, -1, -0.5, -0.0, 0, 0.5, 1, 1.5, 126.5, 127, 128, 2**53 + 1, 2**63, 10**400,
    0.1, -1e39, 1e39, 1e-50, math.inf, -math.inf, math.nan, PyDecimal("0.1"), PyDecimal("1.505"), PyDecimal("99.995"),
    PyDecimal("1E+50"),
]  # fmt: skip
ORDERS = [each for each in Comparator if each is not Comparator.PREFIX]


def literals_for(type_: t.KeyType) -> list[Literal]:
    values: list[Any] = list(VALUES[type_])
    match type_:
        case t.Int() | t.Float():
            values += NUMBERS
        case t.Decimal():
            values += [number for number in NUMBERS if not isinstance(number, float)]
        case _:
            pass
    return [Literal(value) for value in values]


def leaf_on(name: str, type_: t.KeyType) -> st.SearchStrategy[Leaf]:
    operand, literals = st.just(ColumnRef(name)), st.sampled_from(literals_for(type_))
    comparators = list(Comparator) if isinstance(type_, t.String | t.Binary) else ORDERS
    return st.one_of(
        st.builds(Compare, operand, st.sampled_from(comparators), literals),
        st.builds(Within, operand, st.lists(literals, max_size=3).map(tuple)),
        st.builds(IsNull, operand),
    )


def keys_of(codec: KeyCodec) -> st.SearchStrategy[Key]:
    return st.tuples(*[st.sampled_from(VALUES[type_]) for type_ in codec.types])


key_types = st.sampled_from(list(VALUES))
codecs = st.builds(
    lambda types, hashed: KeyCodec({f"k{i}": type_ for i, type_ in enumerate(types)}, hashed=hashed),
    st.lists(key_types, min_size=1, max_size=3),
    st.booleans(),
)


def matches(expr: Expr, codec: KeyCodec, key: Key, others: Mapping[str, Any]) -> bool:
    lookup = {**dict(zip(codec.names, key, strict=True)), **others, "row": codec.encode(key)}.__getitem__
    return evaluate(expr, lookup) is True


def checked(expr: Expr, codec: KeyCodec) -> Expr:
    return check_types(expr, {**dict(zip(codec.names, codec.types, strict=True)), "v": t.Int(64)})


@given(codecs, st.data())
def test_no_row_that_matches_is_lost(codec: KeyCodec, data: st.DataObject) -> None:
    keys = data.draw(st.lists(keys_of(codec), min_size=1, max_size=6))
    rows = st.sampled_from([Literal(codec.encode(key)) for key in keys])
    leaf = st.one_of(
        *[leaf_on(name, type_) for name, type_ in zip(codec.names, codec.types, strict=True)],
        st.builds(Compare, st.just(ColumnRef("v")), st.sampled_from(ORDERS), st.sampled_from([Literal(0), Literal(1)])),
        st.builds(Compare, st.just(row.operand), st.sampled_from(Comparator), rows),
    )
    expr = checked(data.draw(trees(leaf)), codec)
    ranges = key_ranges(expr, codec)
    for key in keys:
        for v in (None, 0, 1):
            if matches(expr, codec, key, {"v": v}):
                assert codec.encode(key) in ranges


@pytest.mark.parametrize("type_", VALUES, ids=str)
@pytest.mark.parametrize("is_last", [True, False])
def test_every_comparison_with_every_literal_is_exact(type_: t.KeyType, is_last: bool) -> None:
    codec = KeyCodec({"k": type_} if is_last else {"k": type_, "rest": t.Binary()})
    rests: list[Key] = [()] if is_last else [(b"",), (b"\0",), (b"\xff\xff",)]
    comparators = list(Comparator) if isinstance(type_, t.String | t.Binary) else ORDERS
    for comparator in comparators:
        for literal in literals_for(type_):
            expr = checked(Compare(ColumnRef("k"), comparator, literal), codec)
            ranges = key_ranges(expr, codec)
            for key in [(value, *rest) for value in VALUES[type_] for rest in rests]:
                assert (codec.encode(key) in ranges) == matches(expr, codec, key, {}), (comparator, literal, key)


@given(key_types, st.data())
def test_conditions_on_a_key_of_one_column_are_exact(type_: t.KeyType, data: st.DataObject) -> None:
    codec = KeyCodec({"k": type_})
    expr = checked(data.draw(trees(leaf_on("k", type_))), codec)
    ranges = key_ranges(expr, codec)
    for value in VALUES[type_]:
        assert (codec.encode((value,)) in ranges) == matches(expr, codec, (value,), {})


@given(st.lists(key_types, min_size=2, max_size=3), st.integers(0, 2), st.data())
def test_equal_leading_columns_and_a_condition_on_the_next_are_exact(
    types: list[t.KeyType], leading: int, data: st.DataObject
) -> None:
    codec = KeyCodec({f"k{i}": type_ for i, type_ in enumerate(types)})
    leading = min(leading, len(types) - 1)
    equal: list[Expr] = []
    for name, type_ in list(zip(codec.names, codec.types, strict=True))[:leading]:
        wanted = data.draw(st.lists(st.sampled_from(VALUES[type_]), min_size=1, max_size=3))
        equal.append(col(name).isin(wanted) if len(wanted) > 1 else col(name) == wanted[0])
    last = data.draw(leaf_on(codec.names[leading], codec.types[leading]))
    expr = checked(combine(*data.draw(st.permutations([*equal, last]))), codec)
    ranges = key_ranges(expr, codec)
    for key in data.draw(st.lists(keys_of(codec), min_size=1, max_size=20)):
        assert (codec.encode(key) in ranges) == matches(expr, codec, key, {})


@given(codecs, st.data())
def test_a_whole_key_is_one_row(codec: KeyCodec, data: st.DataObject) -> None:
    key, other = data.draw(keys_of(codec)), data.draw(keys_of(codec))
    equal = [col(name) == value for name, value in zip(codec.names, key, strict=True)]
    assert key_ranges(checked(combine(*equal), codec), codec) == RangeSet((single(codec.encode(key)),))
    both = [col(name).isin([a, b]) for name, a, b in zip(codec.names, key, other, strict=True)]
    ranges = key_ranges(checked(combine(*both), codec), codec)
    assert codec.encode(key) in ranges
    assert codec.encode(other) in ranges


def enc(type_: t.KeyType, value: Any) -> bytes:
    return KeyCodec({"k": type_}).encode((value,))


TWO = KeyCodec({"city": t.String(), "id": t.Int(16)})
ONE = KeyCodec({"id": t.Int(16)})
NAME = KeyCodec({"name": t.String()})
HASHED = KeyCodec({"city": t.String(), "id": t.Int(16)}, hashed=True)


def rows(*ranges: RowRange) -> RangeSet:
    return RangeSet.of(ranges)


ROME = b"Rome\0\x01"
EXAMPLES: list[tuple[KeyCodec, str, RangeSet]] = [
    (NAME, 'name = "a"', rows(single(b"a"))),
    (NAME, 'name ~= "a"', rows(prefixed(b"a"))),
    (NAME, '"a" <= name < "b"', rows(RowRange(b"a", b"b"))),
    (NAME, '"a" < name <= "b"', rows(RowRange(b"a\0", b"b\0"))),
    (NAME, 'name != "a"', rows(single(b"a")).complement()),
    (NAME, "name is null", NOTHING),
    (NAME, "name is not null", EVERYTHING),
    (NAME, 'not (name < "a" or name ~= "x")', rows(RowRange(b"a", b"x"), RowRange(b"y"))),
    (NAME, 'name = "a" or v = 1', EVERYTHING),
    (NAME, '(name = "a" or name = "b") and v = 1', rows(single(b"a"), single(b"b"))),
    (NAME, '(name = "a" and v = 1) or row = "z"', rows(single(b"a"), single(b"z"))),
    (ONE, "id < 100000", EVERYTHING),
    (ONE, "id > 100000", NOTHING),
    (ONE, "id = 1.5 or id = nan or not id = nan", NOTHING),
    (ONE, "1.5 < id < 3.5", rows(RowRange(enc(t.Int(16), 1) + b"\0", enc(t.Int(16), 3) + b"\0"))),
    (TWO, 'city = "Rome"', rows(prefixed(ROME))),
    (TWO, 'city ~= "Rome"', rows(prefixed(b"Rome"))),
    (TWO, 'city > "Rome"', rows(RowRange(b"Rome\0\x02"))),
    (TWO, 'city <= "Rome"', rows(RowRange(b"", b"Rome\0\x02"))),
    (TWO, 'city = "Rome" and id = 1', rows(single(ROME + enc(t.Int(16), 1)))),
    (TWO, 'id >= 2 and city = "Rome"', rows(RowRange(ROME + enc(t.Int(16), 2), b"Rome\0\x02"))),
    (TWO, 'city in ("Rome", "Oslo") and id in (1, 2)',
     rows(*[single(city + enc(t.Int(16), id_)) for city in (ROME, b"Oslo\0\x01") for id_ in (1, 2)])),
    (TWO, 'city > "Rome" and id = 1', rows(RowRange(b"Rome\0\x02"))),
    (TWO, "id = 1", EVERYTHING),
    (TWO, "id > 2 and id < 1", NOTHING),
    (TWO, 'city in ("Rome", "Oslo") and city > "P"', rows(prefixed(ROME))),
    (TWO, 'city = "Rome" and city = "Oslo"', NOTHING),
    (HASHED, 'city = "Rome"', EVERYTHING),
    (HASHED, 'city = "Rome" and id > 1', EVERYTHING),
    (HASHED, 'city = "Rome" and id = 1', rows(single(HASHED.encode(("Rome", 1))))),
    (HASHED, "city is null", NOTHING),
]  # fmt: skip


@pytest.mark.parametrize("codec, text, expected", EXAMPLES, ids=[text for _, text, _ in EXAMPLES])
def test_examples(codec: KeyCodec, text: str, expected: RangeSet) -> None:
    assert key_ranges(checked(parse(text), codec), codec) == expected


@pytest.mark.parametrize(
    "text",
    [
        "city in ('a', 'b', 'c') and id in (1, 3, 5)",
        "city in ('a', 'b', 'c') and id != 3",
        "city in ('a', 'c', 'e', 'g', 'i')",
        "city = 'a' and id in (1, 3, 5) or city = 'c' and id in (1, 3, 5)",
    ],
)
def test_too_many_ranges_become_fewer_and_lose_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expr = checked(parse(text), TWO)
    exact = key_ranges(expr, TWO)
    monkeypatch.setattr(keyranges, "KEY_RANGES_MAX", 4)
    fewer = key_ranges(expr, TWO)
    assert fewer.covers(exact)
    assert len(fewer.ranges) <= 4 < len(exact.ranges)
    assert TWO.encode(("j", 1)) not in fewer
