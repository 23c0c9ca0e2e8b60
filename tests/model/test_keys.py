"""Rows sort as keys do, decode to the key, and are the same in vectors."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stelae.model import types as t
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TS_MAX, TS_MIN, Row
from stelae.model.keys.scalar import KeyCodec, with_token
from stelae.model.keys.vector import SLICE_ROWS, decode_array, encode_arrays
from tests.strategies import KEY_TYPES, key_types, key_values

key_shapes = st.lists(key_types, min_size=1, max_size=4)


def codec_of(types: list[t.KeyType], hashed: bool = False) -> KeyCodec:
    return KeyCodec({f"k{i}": type_ for i, type_ in enumerate(types)}, hashed)


@st.composite
def codecs_with_keys(draw: st.DrawFn, count: int = 2) -> tuple[KeyCodec, list[tuple[Any, ...]]]:
    types = draw(key_shapes)
    one = st.tuples(*(key_values(type_) for type_ in types))
    keys = draw(st.lists(one, min_size=count, max_size=count + 6))
    # Keys that share their first components reach the later ones.
    shared = [(*keys[0][:-1], key[-1]) for key in keys]
    return codec_of(types), keys + shared


@given(codecs_with_keys())
def test_rows_sort_exactly_as_keys(case: tuple[KeyCodec, list[tuple[Any, ...]]]) -> None:
    codec, keys = case
    rows = [codec.encode(codec.check(key)) for key in keys]
    for a, row_a in zip(keys, rows, strict=True):
        for b, row_b in zip(keys, rows, strict=True):
            assert (row_a < row_b) == (a < b), (a, b)
            assert (row_a == row_b) == (a == b), (a, b)


@given(codecs_with_keys(1), st.booleans())
def test_decoding_gives_back_the_key(case: tuple[KeyCodec, list[tuple[Any, ...]]], hashed: bool) -> None:
    plain, keys = case
    codec = KeyCodec(dict(zip(plain.names, plain.types, strict=True)), hashed)
    for key in keys:
        assert codec.decode(codec.encode(codec.check(key))) == key


@given(codecs_with_keys(1), st.booleans(), st.integers(0, 3))
def test_vectors_equal_scalars(case: tuple[KeyCodec, list[tuple[Any, ...]]], hashed: bool, cut: int) -> None:
    plain, keys = case
    codec = KeyCodec(dict(zip(plain.names, plain.types, strict=True)), hashed)
    columns = [
        pa.array([key[i] for key in keys], to_arrow(type_)).slice(min(cut, len(keys)))
        for i, type_ in enumerate(codec.types)
    ]
    rows = encode_arrays(codec, columns)
    rows.validate(full=True)
    assert rows.to_pylist() == [codec.encode(key) for key in keys[cut:]]
    for column, decoded in zip(columns, decode_array(codec, rows), strict=True):
        decoded.validate(full=True)
        assert decoded.to_pylist() == column.to_pylist()


@pytest.mark.parametrize("inner", [False, True])
def test_arrays_longer_than_a_slice_are_encoded_whole(inner: bool) -> None:
    count = SLICE_ROWS * 2 + 17
    texts = [("x\x00" if i % 1000 == 0 else "x") * (i % 5) + str(i) for i in range(count)]
    numbers = [(-1) ** i * i for i in range(count)]
    columns = [pa.array(texts), pa.array(numbers, pa.int64())]
    types: list[t.KeyType] = [t.String(), t.Int(64)]
    if not inner:
        columns.reverse()
        types.reverse()
    codec = codec_of(types)
    rows = encode_arrays(codec, columns)
    keys = zip(*(column.to_pylist() for column in columns), strict=True)
    assert rows.to_pylist() == [codec.encode(key) for key in keys]
    assert [column.to_pylist() for column in decode_array(codec, rows)] == [c.to_pylist() for c in columns]


def test_a_single_string_or_binary_key_is_its_own_bytes() -> None:
    assert codec_of([t.String()]).encode(("é\x00b",)) == "é\x00b".encode()
    assert codec_of([t.Binary()]).encode((b"\x00\xff",)) == b"\x00\xff"


def test_the_bytes_are_as_documented() -> None:
    codec = codec_of([t.Int(16), t.String(), t.Bool(), t.Binary()])
    assert codec.encode((-1, "a\x00", True, b"z\x00")) == b"\x7f\xff" + b"a\x00\xff\x00\x01" + b"\x01" + b"z\x00"


def test_the_two_zeros_are_one_key_and_nan_sorts_above_infinity() -> None:
    for bits in t.FLOAT_BITS:
        codec = codec_of([t.Float(bits)])
        assert codec.encode((-0.0,)) == codec.encode((0.0,))
        assert codec.encode((math.nan,)) > codec.encode((math.inf,))
        assert codec.encode((-math.nan,)) == codec.encode((math.nan,))
        assert math.isnan(codec.decode(codec.encode((math.nan,)))[0])


def test_a_hashed_row_is_the_token_spark_computes_and_the_key() -> None:
    codec = codec_of([t.Int(64), t.String()], hashed=True)
    plain = codec_of([t.Int(64), t.String()]).encode((7, "x"))
    row = codec.encode((7, "x"))
    assert row == xxhash.xxh64_digest(plain, seed=42) + plain
    with pytest.raises(InvalidArgument, match="no row of key"):
        codec.decode(Row(b"\x00" * 8 + plain))


def test_a_prefix_of_the_key_is_a_prefix_of_its_rows() -> None:
    codec = codec_of([t.String(), t.Int(32), t.String()])
    row = codec.encode(("a", 5, "tail"))
    for length in range(4):
        assert row.startswith(codec.encode_prefix(("a", 5, "tail")[:length]))
    assert not codec.encode(("ab", 5, "tail")).startswith(codec.encode_prefix(("a",)))
    with pytest.raises(InvalidArgument, match="hash-partitioned"):
        codec_of([t.String(), t.String()], hashed=True).encode_prefix(("a",))


def is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


@st.composite
def codecs_with_bytes(draw: st.DrawFn) -> tuple[KeyCodec, bytes]:
    """Any bytes, and those next to a row, some with the right token: what a careless decoder would take for a row."""
    types, hashed = draw(key_shapes), draw(st.booleans())
    codec = codec_of(types, hashed)
    if draw(st.booleans()):
        return codec, draw(st.binary(max_size=40))
    key = draw(st.tuples(*(key_values(type_) for type_ in types)))
    row = bytearray(codec_of(types).encode(key))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(row)))
        row[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2) | st.sampled_from([b"\x00", b"\xff\xff"]))
    plain = bytes(row)
    return codec, with_token(plain) if hashed and draw(st.booleans()) else plain


@given(codecs_with_bytes())
def test_decoding_accepts_exactly_what_encoding_gives(case: tuple[KeyCodec, bytes]) -> None:
    codec, data = case
    rows = pa.array([b"", data, b""], pa.binary()).slice(1, 1)
    try:
        key = codec.decode(Row(data))
    except InvalidArgument:
        with pytest.raises(InvalidArgument, match=r"entry 0 is no row|not rows of key"):
            decode_array(codec, rows)
        return
    assert codec.encode(key) == data
    if not any(is_nan(part) for part in key):
        assert repr(codec.check(key)) == repr(key)
    (found,) = zip(*(column.to_pylist() for column in decode_array(codec, rows)), strict=True)
    for one, other in zip(found, key, strict=True):
        assert one == other or (is_nan(one) and is_nan(other))


def flipped(number: int, bits: int) -> bytes:
    return (number + (1 << (bits - 1))).to_bytes(bits // 8, "big")


@pytest.mark.parametrize(
    ("types", "row"),
    [
        ([t.Bool()], b"\x07"),
        ([t.Bool()], b""),
        ([t.Int(16)], b"\x80"),
        ([t.Int(16)], b"\x80\x00\x00"),
        ([t.Float(64)], b"\x7f" + b"\xff" * 7),
        ([t.Float(32)], b"\x7f\xff\xff\xff"),
        ([t.Float(32)], b"\xff\xc0\x00\x01"),
        ([t.Float(64)], b"\x00" * 8),
        ([t.Decimal(5, 2)], flipped(100_000, 32)),
        ([t.Decimal(5, 2)], flipped(-100_000, 32)),
        ([t.Decimal(18, 0)], flipped(10**18, 64)),
        ([t.Decimal(38, 10)], flipped(10**38, 128)),
        ([t.Decimal(38, 10)], flipped(-(10**38), 128)),
        ([t.Date()], flipped(-719_163, 32)),
        ([t.Date()], flipped(2_932_897, 32)),
        ([t.Timestamp()], flipped(TS_MIN - 1, 64)),
        ([t.TimestampNtz()], flipped(TS_MAX + 1, 64)),
        ([t.String()], b"\xff"),
        ([t.String()], b"\xed\xa0\x80"),
        ([t.String(), t.Bool()], b"a\x01"),
        ([t.String(), t.Bool()], b"a\x00\x02b\x00\x01\x01"),
        ([t.Binary(), t.Bool()], b"a\x00\x00\x01\x01"),
        ([t.Binary(), t.Binary()], b"a\x00"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("hashed", [False, True])
def test_bytes_that_look_like_a_row_are_refused(types: list[t.KeyType], row: bytes, hashed: bool) -> None:
    codec = codec_of(types, hashed)
    data = with_token(row) if hashed else row
    with pytest.raises(InvalidArgument, match="no row of key"):
        codec.decode(Row(data))
    with pytest.raises(InvalidArgument, match=r"entry 0 is no row|not rows of key"):
        decode_array(codec, pa.array([data, data], pa.binary()))


@pytest.mark.parametrize("row", [b"", b"\x00" * 7, b"\x00" * 8, b"\x00" * 8 + b"\x80" + b"\x00" * 7], ids=repr)
def test_a_row_without_its_token_is_refused(row: bytes) -> None:
    cases: list[tuple[t.KeyType, object]] = [(t.Int(64), 7), (t.String(), "x")]
    for type_, value in cases:
        codec = codec_of([type_], hashed=True)
        with pytest.raises(InvalidArgument, match="no row of key"):
            codec.decode(Row(row))
        good = codec.encode((value,))
        with pytest.raises(InvalidArgument, match="entry 1 is no row of key"):
            decode_array(codec, pa.array([good, row], pa.binary()))


@pytest.mark.parametrize(
    "rows", [pa.array([b"x", None]), pa.array([b"x"], pa.large_binary()), pa.array(["x"])], ids=str
)
def test_rows_are_binary_without_nulls(rows: pa.Array) -> None:
    with pytest.raises(InvalidArgument, match="rows are Arrow binary without nulls"):
        decode_array(codec_of([t.Binary()]), rows)


@pytest.mark.parametrize("type_", KEY_TYPES, ids=str)
@pytest.mark.parametrize("hashed", [False, True])
def test_no_rows_decode_to_empty_columns(type_: t.KeyType, hashed: bool) -> None:
    (column,) = decode_array(codec_of([type_], hashed), pa.array([], pa.binary()))
    assert (len(column), column.type) == (0, to_arrow(type_))


@pytest.mark.parametrize("hashed", [False, True])
def test_extremes_of_a_number_and_a_text_come_back_from_both(hashed: bool) -> None:
    codec = codec_of([t.Int(64), t.String()], hashed)
    numbers = [-(2**63), -(2**63) + 1, -256, -1, 0, 1, 255, 2**63 - 2, 2**63 - 1]
    texts = ["", "\x00", "\x00\x01", "\x00\xff", "a" * 4000, "\x7f", "\u0080", "\uffff", "\U0010ffff"]
    keys = [(number, text) for number in numbers for text in texts]
    rows = [codec.encode(codec.check(key)) for key in keys]
    assert [codec.decode(row) for row in rows] == keys
    columns = [pa.array([key[0] for key in keys], pa.int64()), pa.array([key[1] for key in keys])]
    encoded = encode_arrays(codec, columns)
    assert encoded.to_pylist() == rows
    assert decode_array(codec, encoded) == columns
    if not hashed:
        assert rows == sorted(rows)


@pytest.mark.parametrize("bits", t.FLOAT_BITS)
def test_the_place_of_nan_decodes_in_vectors_too(bits: int) -> None:
    codec = codec_of([t.Float(bits)])
    (column,) = decode_array(codec, pa.array([codec.encode((math.nan,))], pa.binary()))
    assert is_nan(column[0].as_py())


@pytest.mark.parametrize("type_", KEY_TYPES, ids=str)
@pytest.mark.parametrize("bad", [None, [], {}, 1j, float("nan"), ("a", "b"), [1]], ids=repr)
def test_what_cannot_be_a_key_is_refused(type_: t.KeyType, bad: object) -> None:
    with pytest.raises(InvalidArgument, match="key"):
        codec_of([type_]).check(bad)


def test_a_compound_key_is_a_tuple_or_a_dict() -> None:
    codec = KeyCodec({"a": t.String(), "b": t.Int(64)})
    assert codec.check(("x", 1)) == codec.check({"b": 1, "a": "x"}) == ("x", 1)
    for bad, message in [
        (("x",), "has 1 parts, the key has 2: a, b"),
        ("x", "give a tuple or a dict of a, b"),
        ({"a": "x"}, "no value for 'b'"),
        ({"a": "x", "b": 1, "c": 2}, "'c' is not a key column"),
        (("x", "1"), "key column 'b': '1' (str) is not a int64"),
    ]:
        with pytest.raises(InvalidArgument) as caught:
            codec.check(bad)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, None], pa.int64()), r"key column 'k0': a key cannot be NULL \(row 1\)"),
        (pa.array([1], pa.int32()), "expected Arrow int64, not int32"),
    ],
)
def test_arrays_that_are_no_keys_are_refused(column: pa.Array, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        encode_arrays(codec_of([t.Int(64)]), [column])


def test_nan_in_an_array_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidArgument, match=r"a key cannot be NaN \(row 2\)"):
        encode_arrays(codec_of([t.Float(64)]), [pa.array([1.0, 2.0, math.nan])])
