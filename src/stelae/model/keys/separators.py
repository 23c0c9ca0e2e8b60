"""Where rows are best parted: at as little of a key as is needed, so that no key of a row stands for a boundary."""

from __future__ import annotations

from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Row
from stelae.model.keys.scalar import END, KeyCodec


def separator(codec: KeyCodec, low: bytes, high: bytes) -> Row:
    """Above `low`, and not above `high`, which is a row above it: the shortest such bytes, or a key that says no more,
    since what is a key can be said in words and compared as one."""
    shared = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    cut = high[: shared + 1]
    if codec.hashed:
        return Row(cut)
    for found in (_as_key(codec, high, shared), cut):
        if found is not None and low < found <= high:
            return Row(found)
    return Row(high)


def _as_key(codec: KeyCodec, high: bytes, shared: int) -> bytes | None:
    """The row without what follows the first byte that differs: text ends there, numbers go on with zeros. None: that
    would not be a key."""
    try:
        values = codec.decode(Row(high))
    except InvalidArgument:
        return None
    found, last = b"", len(values) - 1
    for at, (type_, value) in enumerate(zip(codec.types, values, strict=True)):
        # As the last component, text is its own bytes.
        whole = KeyCodec({"": type_}).encode((value,))
        end = END if isinstance(type_, t.String | t.Binary) and at < last else b""
        if end and 0 in whole:
            return None
        kept = max(0, min(shared + 1 - len(found), len(whole)))
        if isinstance(type_, t.String | t.Binary):
            found += _whole_characters(whole, kept, type_) + end
        else:
            found += whole[:kept] + bytes(len(whole) - kept)
    try:
        codec.decode(Row(found))
    except InvalidArgument:
        return None
    return found


def _whole_characters(content: bytes, kept: int, type_: t.KeyType) -> bytes:
    while isinstance(type_, t.String) and kept < len(content) and content[kept] & 0xC0 == 0x80:
        kept += 1
    return content[:kept]
