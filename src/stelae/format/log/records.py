"""What a log is made of: records, and where segments end."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import msgspec

from stelae.format.checksums import crc32c
from stelae.format.log.positions import SegmentId
from stelae.model.ids import ClientId, Epoch, Index, TableId, TabletId, Txn
from stelae.model.ids import Sequence as ClientSequence

NO_TABLET = TabletId(0)
"""Of a change: it is of all tablets of the table."""
NO_INDEX = Index(0)
"""Of a record that is no part of its tablet's own sequence."""
NO_CLIENT = ClientId(0)
NO_SEQUENCE = ClientSequence(0)


class LogKind(IntEnum):
    """What a record says. The numbers are stored."""

    BLOCK = 1
    EPOCH = 2
    CHANGE = 3
    HOSTED = 4
    DROPPED = 5
    SPLIT = 6
    JOINED = 7
    CONFIG = 8
    REPLICA = 9


class LogRecord(NamedTuple):
    """`checksum`: CRC32C of the payload. Whoever makes the payload, or gets it from elsewhere, vouches for it: it is
    written as it is."""

    kind: LogKind
    table: TableId
    tablet: TabletId
    epoch: Epoch
    index: Index  # type: ignore[assignment]  # nobody looks for the place of a part in a record
    txn: Txn
    client: ClientId
    sequence: ClientSequence
    payload: bytes | memoryview
    checksum: int


checksum_of = crc32c
"""The checksum of a payload, which travels with it."""


class SegmentEnd(msgspec.Struct, frozen=True):
    """Where a segment ends for good: what lies beyond, if anything, was never acknowledged."""

    segment: SegmentId
    end: int


class SegmentContent(msgspec.Struct, frozen=True):
    """What a segment holds. `last_txn` is the greatest of its records, 0 if it has none; `last_indexes` says for each
    tablet the index of its last record that has one. `is_plain`: all records are blocks, or changes of whole tables.
    `end` is where the valid bytes end; if `torn`, others follow that mean nothing."""

    segment: SegmentId
    version: int
    previous: SegmentEnd | None
    records: tuple[LogRecord, ...]
    last_txn: Txn
    last_indexes: Mapping[TabletId, Index]
    is_plain: bool
    end: int
    torn: bool
