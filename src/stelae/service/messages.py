"""What the owner of a store and the processes attached to it say to each other: one method for each operation of
`Backend`.

Messages are small and bounded; what may be large lies in bodies, whose bytes are `messages_bodies`'. A method with a
stream sends items whose bodies, joined, are the answer (`PieceItem`), or that mean something each (`ScanItem`,
`ProgressItem`). `newest` has one answer because it is asked most; one that does not fit a frame is refused with
LargeAnswer and asked for as `newest_many` of one row.

Writes that come on one connection are given to the store in the order they came, so a client may send the next before
the last is answered. Pins and scans end with the connection they were asked for on.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, TypeAlias

import msgspec

from stelae.catalog.serial.registry import BadBytes
from stelae.catalog.value import BrokenCatalog
from stelae.model.errors import (
    LargeAnswer,
    NotCached,
    SchemaChanged,
    StaleSchema,
    TabletAway,
    TooMuchAtOnce,
    UnknownOutcome,
)
from stelae.ports.metastore import Compacted, LeaseExpired
from stelae.service import ticket_messages as bulk
from stelae.service.backend import AlterAsk
from stelae.service.tables import TableStats
from stelae.wire.faults import FaultTable
from stelae.wire.messages import Messages, WireMethod

BLOCKS_MAX = 1_024
"""In one write."""

ROWS_MAX = 65_536
"""Asked for at once."""

_TEXT_MAX = 64 * 1024
"""Of names and rows that are only asked for: the store says more about those that are too long for it."""

_TableNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_TxnNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]
RowBytes: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=_TEXT_MAX)]
_Selector: TypeAlias = tuple[Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)], bool]
_Columns: TypeAlias = Annotated[tuple[_Selector, ...], msgspec.Meta(max_length=100_000)]


STORE_FAULTS = FaultTable(
    {
        StaleSchema: {},
        TabletAway: {},
        NotCached: {},
        SchemaChanged: {},
        TooMuchAtOnce: {},
        BadBytes: {},
        BrokenCatalog: {},
        UnknownOutcome: {},
        LeaseExpired: {},
        Compacted: {"asked": int, "oldest": int},
        LargeAnswer: {},
    }
)


class NothingMessage(msgspec.Struct, frozen=True):
    pass


class NameMessage(msgspec.Struct, frozen=True):
    name: _Name


class TableMessage(msgspec.Struct, frozen=True):
    table: _TableNumber


class InfoMessage(msgspec.Struct, frozen=True):
    """The table itself is in the body."""

    name: str
    zone: str


class TxnMessage(msgspec.Struct, frozen=True):
    txn: _TxnNumber


class CreateMessage(msgspec.Struct, frozen=True):
    """Schema, cuts and properties are in the body."""

    name: _Name
    zone: _Name | None
    if_not_exists: bool


class AlterMessage(msgspec.Struct, frozen=True):
    name: _Name
    ask: AlterAsk


class DropMessage(msgspec.Struct, frozen=True):
    name: _Name
    if_exists: bool


class RecallMessage(msgspec.Struct, frozen=True):
    name: _Name
    new_name: _Name | None


class WriteMessage(msgspec.Struct, frozen=True):
    """`sizes`: of the blocks, which lie in the body one after the other."""

    table: _TableNumber
    max_txn: _TxnNumber | None
    sizes: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0, le=2**32)], ...], msgspec.Meta(min_length=1, max_length=BLOCKS_MAX)
    ]


class NewestMessage(msgspec.Struct, frozen=True):
    table: _TableNumber
    row: RowBytes
    columns: _Columns
    at: _TxnNumber | None


class FoundMessage(msgspec.Struct, frozen=True):
    """The values are in the body."""

    found: bool


class ManyMessage(msgspec.Struct, frozen=True):
    """The rows are in the body."""

    table: _TableNumber
    columns: _Columns
    at: _TxnNumber | None


class HistoryMessage(msgspec.Struct, frozen=True):
    table: _TableNumber
    row: RowBytes
    columns: _Columns
    limit: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    at: _TxnNumber | None
    start: _Time
    stop: _Time


class ScanMessage(msgspec.Struct, frozen=True):
    """`text`: the predicate but for its rows, which are in the body; None if it says nothing else."""

    table: _TableNumber
    text: str | None
    at: _TxnNumber
    reverse: bool
    limit: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None


class ScanPart(IntEnum):
    """What the body of a scan's item is. The scan is open once OPENED came."""

    OPENED = 1
    SCHEMA = 2
    BATCH = 3


class ScanItem(msgspec.Struct, frozen=True):
    """`more`: the body goes on in the next item."""

    part: ScanPart
    more: bool = False


class PieceItem(msgspec.Struct, frozen=True):
    pass


class ProgressItem(msgspec.Struct, frozen=True):
    """`has_result`: the body is a piece of what comes of the work, which is over."""

    done: int
    total: int
    has_result: bool = False


class PinMessage(msgspec.Struct, frozen=True):
    at: _TxnNumber | None


class PinnedMessage(msgspec.Struct, frozen=True):
    pin: int
    txn: _TxnNumber


class UnpinMessage(msgspec.Struct, frozen=True):
    pin: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class CompactMessage(msgspec.Struct, frozen=True):
    table: _TableNumber
    erase_now: bool


class SplitMessage(msgspec.Struct, frozen=True):
    table: _TableNumber
    at: RowBytes | None
    tablet: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None


class JoinMessage(msgspec.Struct, frozen=True):
    table: _TableNumber
    at: RowBytes


FIND = WireMethod("store.find", NameMessage, InfoMessage)
INFO = WireMethod("store.info", TableMessage, InfoMessage)
NAMES = WireMethod("store.names", NothingMessage, PieceItem, has_stream=True)
CREATE = WireMethod("store.create", CreateMessage, InfoMessage)
ALTER = WireMethod("store.alter", AlterMessage, InfoMessage)
DROP = WireMethod("store.drop", DropMessage, NothingMessage)
RECALL = WireMethod("store.recall", RecallMessage, InfoMessage)
TRUNCATE = WireMethod("table.truncate", TableMessage, TxnMessage)
WRITE = WireMethod("table.write", WriteMessage, TxnMessage)
NOW = WireMethod("store.now", NothingMessage, TxnMessage)
NEWEST = WireMethod("table.newest", NewestMessage, FoundMessage)
NEWEST_MANY = WireMethod("table.newest_many", ManyMessage, PieceItem, has_stream=True)
HISTORY = WireMethod("table.history", HistoryMessage, PieceItem, has_stream=True)
SCAN = WireMethod("table.scan", ScanMessage, ScanItem, has_stream=True)
PIN = WireMethod("store.pin", PinMessage, PinnedMessage)
UNPIN = WireMethod("store.unpin", UnpinMessage, NothingMessage)
FLUSH = WireMethod("table.flush", TableMessage, NothingMessage)
COMPACT = WireMethod("table.compact", CompactMessage, ProgressItem, has_stream=True)
SPLIT = WireMethod("table.split", SplitMessage, NothingMessage)
JOIN = WireMethod("table.join", JoinMessage, NothingMessage)
TABLETS = WireMethod("table.tablets", TableMessage, PieceItem, has_stream=True)
STATS = WireMethod("table.stats", TableMessage, TableStats)
METRICS = WireMethod("store.metrics", NothingMessage, PieceItem, has_stream=True)
CHECK = WireMethod("store.check", NothingMessage, ProgressItem, has_stream=True)
HOLD = WireMethod("bulk.hold", bulk.HoldMessage, PieceItem, has_stream=True)
RENEW = WireMethod("bulk.renew", bulk.RenewMessage, NothingMessage)
RELEASE = WireMethod("bulk.release", bulk.ReleaseMessage, NothingMessage)
BEGIN_LOAD = WireMethod("bulk.begin_load", bulk.BeginLoadMessage, PieceItem, has_stream=True)
COMMIT_LOAD = WireMethod("bulk.commit_load", bulk.CommitLoadMessage, TxnMessage)
BEGIN_COMPACTION = WireMethod("bulk.begin_compaction", bulk.BeginCompactionMessage, PieceItem, has_stream=True)
ADOPT = WireMethod("bulk.adopt", bulk.AdoptMessage, bulk.AdoptedMessage)

STORE_MESSAGES = Messages(
    (
        *(FIND, INFO, NAMES, CREATE, ALTER, DROP, RECALL, TRUNCATE, WRITE, NOW, NEWEST, NEWEST_MANY, HISTORY, SCAN),
        *(PIN, UNPIN, FLUSH, COMPACT, SPLIT, JOIN, TABLETS, STATS, METRICS, CHECK),
        *(HOLD, RENEW, RELEASE, BEGIN_LOAD, COMMIT_LOAD, BEGIN_COMPACTION, ADOPT),
    )
)
