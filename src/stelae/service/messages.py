"""Requests as they are sent: small and bounded, checked field by field before anybody looks at them.

Whatever may be large lies in the body beside the message (`bodies`). Every request says how much time its caller has
left; the far side passes that on as its own deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, TypeAlias

import msgspec

from stelae.model.ids import ClientId
from stelae.model.ids import Sequence as Number
from stelae.model.once import Once
from stelae.service.deadlines import SECONDS_MAX
from stelae.service.jobs import TTL_S_MAX
from stelae.service.spaces import SpacesAsk
from stelae.service.tables import AlterAsk
from stelae.wire.faults import MessageRefused

BLOCKS_MAX = 1_024
"""So many blocks at most are sent in one write."""

ROWS_MAX = 65_536
"""So many rows at most are asked for at once."""

_TEXT_MAX = 64 * 1024
"""Of names and rows that are only asked for: the store says more about those that are too long for it."""

_LEFT_MS_MAX = int(SECONDS_MAX * 1_000)
_SENDER_MAX = 1_024

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]
_Ticket: TypeAlias = Annotated[str, msgspec.Meta(max_length=4_096)]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=TTL_S_MAX)]
RowBytes: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=_TEXT_MAX)]
_Selector: TypeAlias = tuple[Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)], bool]
_Columns: TypeAlias = Annotated[tuple[_Selector, ...], msgspec.Meta(max_length=100_000)]


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`left_ms`: how long the caller still waits; None for as long as it takes.

    What one process of a cluster asks of another says besides who asks (`sender`: its name and how often it was
    started), what its clock has come to, and the number of the guard that it knows: see `registry.senders`."""

    left_ms: Annotated[int, msgspec.Meta(ge=0, le=_LEFT_MS_MAX)] | None = None
    sender: Annotated[str, msgspec.Meta(max_length=_SENDER_MAX)] = ""
    clock: _Number = 0
    guard: _Number = 0


class NothingMessage(Request, frozen=True):
    """Nothing has to be said."""


class NameMessage(Request, frozen=True):
    name: _Name


class TableMessage(Request, frozen=True):
    table: _Number


class SpacesMessage(Request, frozen=True):
    ask: SpacesAsk


class CreateMessage(Request, frozen=True):
    """Schema, cuts and properties are in the body."""

    name: _Name
    zone: _Name | None
    if_not_exists: bool


class AlterMessage(Request, frozen=True):
    name: _Name
    ask: AlterAsk


class DropMessage(Request, frozen=True):
    name: _Name
    if_exists: bool


class RecallMessage(Request, frozen=True):
    name: _Name
    new_name: _Name | None


class WriteMessage(Request, frozen=True):
    """`sizes`: of the blocks, which lie in the body one after the other. `client`, `sequences`: the number of each
    block (`model.once`), if they have any; `age_ms`: how long ago they were first sent, if they may have been done
    since."""

    table: _Number
    max_txn: _Number | None
    sizes: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0, le=2**32)], ...], msgspec.Meta(min_length=1, max_length=BLOCKS_MAX)
    ]
    must_show: bool = False
    client: _Number = 0
    sequences: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=BLOCKS_MAX)] = ()
    age_ms: _Number = 0

    def numbers(self) -> Sequence[Once | None]:
        """Of each block; MessageRefused if it is said of some only."""
        if not self.client and not self.sequences:
            return (None,) * len(self.sizes)
        if not self.client or len(self.sequences) != len(self.sizes):
            raise MessageRefused(f"{len(self.sizes)} blocks have {len(self.sequences)} numbers")
        client = ClientId(self.client)
        return [Once(client, Number(sequence), self.age_ms) for sequence in self.sequences]


class NewestMessage(Request, frozen=True):
    table: _Number
    row: RowBytes
    columns: _Columns
    at: _Number | None


class ManyMessage(Request, frozen=True):
    """The rows are in the body."""

    table: _Number
    columns: _Columns
    at: _Number | None


class HistoryMessage(Request, frozen=True):
    table: _Number
    row: RowBytes
    columns: _Columns
    limit: _Number
    at: _Number | None
    start: _Time
    stop: _Time


class ScanMessage(Request, frozen=True):
    """`text`: the predicate but for its rows, which are in the body; None if it says nothing else. `having`: only rows
    that have one of the columns. `schema`: the version of the schema that whoever asks has bound it to."""

    table: _Number
    text: str | None
    at: _Number
    reverse: bool
    limit: _Number | None
    having: bool = False
    schema: _Number | None = None


class PinMessage(Request, frozen=True):
    at: _Number | None


class UnpinMessage(Request, frozen=True):
    pin: _Number


class CompactMessage(Request, frozen=True):
    table: _Number
    erase_now: bool


class SplitMessage(Request, frozen=True):
    table: _Number
    at: RowBytes | None
    tablet: _Number | None


class JoinMessage(Request, frozen=True):
    table: _Number
    at: RowBytes


class HoldMessage(Request, frozen=True):
    table: _Number
    at: _Number | None
    ttl_s: _Seconds
    ticket: _Ticket | None = None


class RenewMessage(Request, frozen=True):
    ticket: _Ticket
    ttl_s: _Seconds


class TicketMessage(Request, frozen=True):
    ticket: _Ticket


class BeginLoadMessage(Request, frozen=True):
    table: _Number
    job: _Ticket
    batch: _Number
    ttl_s: _Seconds


class CommitLoadMessage(Request, frozen=True):
    """The files are in the body."""

    ticket: _Ticket
    replaces: bool


class BeginCompactionMessage(Request, frozen=True):
    table: _Number
    full: bool
    erase_now: bool
    ttl_s: _Seconds
    ticket: _Ticket | None = None


class AdoptMessage(Request, frozen=True):
    """The file is in the body, or nothing."""

    ticket: _Ticket
    number: _Number


class ItemKind(IntEnum):
    """What one item of an answer is."""

    PIECE = 1
    """Its body goes on with the result."""
    PROGRESS = 2
    """The work goes on: so much of so much is done."""
    OPENED = 3
    """The scan is open."""
    SCHEMA = 4
    """Its body is the Arrow schema of the batches that follow."""
    BATCH = 5
    """Its body is a batch of the scan."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """An answer is one frame, or where that is too large or takes long, items and an end. `more`: the body goes on in
    the next item."""

    kind: ItemKind
    more: bool = False
    done: int = 0
    total: int = 0
