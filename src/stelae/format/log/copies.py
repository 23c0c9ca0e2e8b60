"""Records of one tablet as bytes that go to another shard, or are kept whole in one record of a log.

A record that travels is looked at before it is logged: the whole of what is sent has a checksum, and each payload has
the one that it was written with.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import astuple

from stelae.format.log.records import LogKind, LogRecord, checksum_of
from stelae.model.errors import Corruption
from stelae.model.ids import ClientId, Epoch, Index, TableId, TabletId, Txn
from stelae.model.ids import Sequence as ClientSequence


class RecordCopy(msgspec.Struct, frozen=True, array_like=True):
    """A record without the table and tablet that it is of, which whoever sends it says once."""

    kind: int
    epoch: int
    index: int
    txn: int
    client: int
    sequence: int
    payload: bytes
    checksum: int


class ReplicaKept(msgspec.Struct, frozen=True, array_like=True):
    """All that a log knows of a replica, in one record: what lies before it in the log is not needed any more.

    `epoch`: the greatest it has promised to follow. `begin`: epoch and index of the last record that the files of the
    config hold; `records` are those behind it. `committed`: up to which index all replicas are known to have them.
    `may_lack`: the log had lost its end, and what the replica lacks may have been acknowledged."""

    epoch: Epoch
    begin: tuple[Epoch, Index]
    committed: Index
    config: bytes
    records: tuple[RecordCopy, ...]
    may_lack: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_KEPT = msgspec.msgpack.Decoder(ReplicaKept)
_COPIES = msgspec.msgpack.Decoder(list[list[RecordCopy]])
_KINDS = {int(kind): kind for kind in (LogKind.BLOCK, LogKind.CHANGE, LogKind.CONFIG)}
"""What travels: marks are of one log alone."""


def copy_record(record: LogRecord) -> RecordCopy:
    kind, _, _, epoch, index, txn, client, sequence, payload, checksum = record
    data = payload if isinstance(payload, bytes) else bytes(payload)
    return RecordCopy(kind, epoch, index, txn, client, sequence, data, checksum)


def record_of(copy: RecordCopy, table: TableId, tablet: TabletId) -> LogRecord:
    """Corruption if it is not what was written."""
    kind = _KINDS.get(copy.kind)
    if kind is None or checksum_of(copy.payload) != copy.checksum:
        raise Corruption(f"record {copy.index} of tablet {tablet} is not what was written", "a copy of a log")
    return LogRecord(
        kind,
        table,
        tablet,
        Epoch(copy.epoch),
        Index(copy.index),
        Txn(copy.txn),
        ClientId(copy.client),
        ClientSequence(copy.sequence),
        copy.payload,
        copy.checksum,
    )


def encode_kept(kept: ReplicaKept) -> bytes:
    """Where there is no doubt, as it was written before there was a field for it."""
    return _ENCODER.encode(kept if kept.may_lack else astuple(kept)[:-1])


def decode_kept(data: bytes | memoryview, where: str) -> ReplicaKept:
    try:
        return _KEPT.decode(data)
    except msgspec.MsgspecError as error:
        raise Corruption(f"what is kept of a replica cannot be read: {error}", where) from None


def encode_copies(parts: Iterable[Iterable[RecordCopy]]) -> bytes:
    """The records of several tablets, in the order in which whoever sends them names the tablets."""
    return _ENCODER.encode([list(part) for part in parts])


def decode_copies(data: bytes | memoryview) -> list[list[RecordCopy]]:
    try:
        return _COPIES.decode(data)
    except msgspec.MsgspecError as error:
        raise Corruption(f"copies of records cannot be read: {error}", "a copy of a log") from None
