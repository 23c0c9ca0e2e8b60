"""Between any two rows there is a separator: above the one, not above the other, no more of a key than is needed."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.ids import Row
from stelae.model.keys.scalar import KeyCodec
from stelae.model.keys.separators import separator
from stelae.model.types import parse_type


def codec_of(*types: str, hashed: bool = False) -> KeyCodec:
    columns: dict[str, t.KeyType] = {}
    for number, text in enumerate(types):
        type_ = parse_type(text)
        assert isinstance(type_, t.KeyType)
        columns[f"k{number}"] = type_
    return KeyCodec(columns, hashed)


@pytest.mark.parametrize(
    ("types", "low", "high", "expected"),
    [
        (["string"], ("mann@example.com",), ("nann@example.com",), ("n",)),
        (["string"], ("ann",), ("anna",), ("anna",)),
        (["string"], ("caf",), ("café au lait",), ("café",)),
        (["binary"], (b"a\x00",), (b"a\x01\xff\xfe",), (b"a\x01",)),
        (["int64"], (1_000,), (1_000_000,), (983_040,)),
        (["int32"], (6,), (7,), (7,)),
        (["string", "int64"], ("eu", 7), ("us", 12345), ("u", -(2**63))),
        (["string", "int64"], ("us", 7), ("us", 1_000_000), ("us", 983_040)),
        (["int64", "string"], (5, "x"), (6, "secret"), (6, "")),
    ],
)
def test_a_separator_says_no_more_than_is_needed(
    types: list[str], low: tuple[object, ...], high: tuple[object, ...], expected: tuple[object, ...]
) -> None:
    codec = codec_of(*types)
    found = separator(codec, codec.encode(codec.check(low)), codec.encode(codec.check(high)))
    assert codec.decode(found) == expected


VALUES: dict[str, st.SearchStrategy[object]] = {
    "string": st.text(max_size=6),
    "binary": st.binary(max_size=6),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "float64": st.floats(allow_nan=False),
    "date": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    "bool": st.booleans(),
}


@given(st.data())
def test_a_separator_lies_between(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    codec = codec_of(*types, hashed=data.draw(st.booleans()))
    keys = st.tuples(*(VALUES[each] for each in types)).map(lambda key: codec.encode(codec.check(key)))
    low, high = sorted(data.draw(st.lists(keys, min_size=2, max_size=2, unique=True)))
    found = separator(codec, low, high)
    assert low < found <= high
    assert separator(codec, b"", Row(high)) <= high
