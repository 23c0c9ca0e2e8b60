"""Checksums of the metastore's rows: SQLite has none, and takes a flipped bit for what was written.

Every row of `change` and `lease` has the sum of its own columns. The one row of `store` has its own, and the `digest`:
the total of the sums of all live changes, to which each transaction adds what it puts and from which it takes what it
replaces. So a row that has changed is known by itself, and one that is missing, or there too many, by the digest.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

_CHANGE = struct.Struct("<qqqq?I")
_NUMBERS = struct.Struct("<qqqq")
_BITS = 64
_HALF = 1 << (_BITS - 1)

Digest: TypeAlias = int

EMPTY: Digest = 0


class DamagedRow(Exception):
    """A row that is not what was written. Whoever knows the file's name makes it Corruption."""


def sum_of_change(
    key: bytes, value: bytes, create_revision: int, revision: int, version: int, lease: int | None
) -> int:
    """As SQLite's integers are: 64 bits with a sign."""
    numbers = _CHANGE.pack(create_revision, revision, version, lease or 0, lease is None, len(key))
    return _signed(xxh3_64_intdigest(numbers + key + value))


def sum_of_lease(lease: int, ttl_ms: int, renewals: int, elapsed_ms: int) -> int:
    return _signed(xxh3_64_intdigest(b"lease" + _NUMBERS.pack(lease, ttl_ms, renewals, elapsed_ms)))


def sum_of_store(layout: int, revision: int, compacted: int, digest: Digest) -> int:
    return _signed(xxh3_64_intdigest(b"store" + _NUMBERS.pack(layout, revision, compacted, digest)))


def with_sum(digest: Digest, added: int) -> Digest:
    return _signed(digest + added)


def without_sum(digest: Digest, taken: int) -> Digest:
    return _signed(digest - taken)


def check_change(row: tuple[bytes, bytes, int, int, int, int | None, int]) -> None:
    """`row`: what `sum_of_change` takes, then the sum. DamagedRow if they do not belong together."""
    try:
        is_whole = sum_of_change(*row[:6]) == row[6]
    except (struct.error, TypeError):  # a column is not of the type that was written
        is_whole = False
    if not is_whole:
        raise DamagedRow(f"key {shown_key(row[0])} does not have its checksum")


def check_lease(row: tuple[int, int, int, int, int]) -> None:
    try:
        is_whole = sum_of_lease(*row[:4]) == row[4]
    except (struct.error, TypeError):
        is_whole = False
    if not is_whole:
        raise DamagedRow(f"lease {row[0]!r} does not have its checksum")


def shown_key(key: object) -> str:
    return repr(key.decode(errors="replace") if isinstance(key, bytes) else key)


def _signed(number: int) -> int:
    return (number + _HALF) % (1 << _BITS) - _HALF
