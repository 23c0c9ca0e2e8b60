"""What lies in the metastore, back into what it stands for: what cannot be read is Corruption, with the key."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stelae.model.errors import Corruption
from stelae.ports.metastore import Entry, Metastore

T = TypeVar("T")

_DIGITS_MAX = 20
_PAGE = 500


async def entries_under(store: Metastore, prefix: str) -> list[Entry]:
    """All there are, in the order of their keys, as of one revision."""
    read = await store.range(prefix, limit=_PAGE)
    found = list(read.entries)
    while read.more:
        read = await store.range(prefix, start=found[-1].key + "\0", limit=_PAGE, revision=read.revision)
        found += read.entries
    return found


def number_of(entry: Entry) -> int:
    if not entry.value.isdigit() or len(entry.value) > _DIGITS_MAX:
        raise Corruption(f"{entry.value[:40]!r} is not a number", entry.key)
    return int(entry.value)


def json_of(entry: Entry, type_: type[T], what: str) -> T:
    """`what`: what the value is, for the message."""
    try:
        return msgspec.json.decode(entry.value, type=type_)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corruption(f"{what} cannot be read: {error}", entry.key) from None


def id_in_key(entry: Entry, prefix: str) -> int:
    """The id that follows the prefix in hexadecimal digits."""
    try:
        return int(entry.key[len(prefix) :], 16)
    except ValueError:
        raise Corruption("is not the key of a table", entry.key) from None
