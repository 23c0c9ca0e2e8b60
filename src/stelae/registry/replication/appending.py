"""What a leader sends to the shards that have other replicas of its tablets, as values and as operations.

One request has the records of many tablets: what the leader made durable at once is sent, synced and answered at once.
All may be asked again: what is there already is no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from stelae.format.log.copies import RecordCopy as RecordCopy
from stelae.format.log.copies import ReplicaKept, decode_copies, decode_kept, encode_copies, encode_kept
from stelae.format.log.records import checksum_of
from stelae.model.errors import Corruption
from stelae.model.ids import TableId, TabletId
from stelae.service.bodies import Bytes, codec_of
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.operations import Asked, Operation
from stelae.service.reports import Progress
from stelae.wire.faults import MessageRefused

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
PARTS_MAX = 4_096


class AppendPart(msgspec.Struct, frozen=True, array_like=True):
    """Records of one tablet that follow the place `prev`, by its leader of `epoch`. `committed`: up to which index all
    replicas have them."""

    tablet: _Number
    table: _Number
    epoch: _Number
    prev: tuple[_Number, _Number]
    committed: _Number


class AppendAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`matched`: up to which index the replica has the leader's records on its disk; None: none were taken. Then
    `promised` is a greater epoch, or `last` the place behind which they are wanted, or `refused` says why they cannot
    be taken, or none of these: no such replica is there."""

    matched: _Number | None = None
    promised: _Number = 0
    last: tuple[_Number, _Number] | None = None
    refused: str = ""


class AppendMessage(Request, frozen=True):
    """`log`: which log it is for. `checksum`: of the body."""

    log: str
    parts: Annotated[tuple[AppendPart, ...], msgspec.Meta(max_length=PARTS_MAX)]
    checksum: _Number


class HostMessage(Request, frozen=True):
    """A whole replica, for a log that has none or an old one; it is in the body. `epoch`: of the leader."""

    log: str
    tablet: _Number
    table: _Number
    epoch: _Number
    checksum: _Number


def _ask_append(log: str, parts: Sequence[AppendPart], copies: Sequence[Sequence[RecordCopy]]) -> Asked:
    body = encode_copies(copies)
    return AppendMessage(log, tuple(parts), checksum_of(body)), body


def _carry_out_append(
    shard: Any, asked: Any, body: Bytes, until: Deadline | None, _: Progress
) -> tuple[AppendAnswer, ...]:
    _check(asked.checksum, body)
    try:
        copies = decode_copies(body)
    except Corruption as error:
        raise MessageRefused(str(error)) from None
    if len(copies) != len(asked.parts):
        raise MessageRefused(f"{len(asked.parts)} tablets are named, and there are records of {len(copies)}")
    return shard.append(asked.log, asked.parts, copies, deadline=until)


def _ask_host(log: str, table: TableId, tablet: TabletId, epoch: int, kept: ReplicaKept) -> Asked:
    body = encode_kept(kept)
    return HostMessage(log, tablet, table, epoch, checksum_of(body)), body


def _carry_out_host(shard: Any, asked: Any, body: Bytes, until: Deadline | None, _: Progress) -> AppendAnswer:
    _check(asked.checksum, body)
    try:
        kept = decode_kept(body, "a replica that was sent")
    except Corruption as error:
        raise MessageRefused(str(error)) from None
    return shard.host(asked.log, TableId(asked.table), TabletId(asked.tablet), asked.epoch, kept, deadline=until)


def _check(checksum: int, body: Bytes) -> None:
    if checksum_of(body) != checksum:
        raise MessageRefused("the records are not what was sent")


APPEND = Operation(
    "append",
    AppendMessage,
    _ask_append,
    _carry_out_append,
    codec_of("answers to records", tuple[AppendAnswer, ...]),
    changes=True,
)
HOST = Operation(
    "host", HostMessage, _ask_host, _carry_out_host, codec_of("the answer of a replica", AppendAnswer), changes=True
)

REPLICATION_OPERATIONS = {each.name: each for each in (APPEND, HOST)}
