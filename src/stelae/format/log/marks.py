"""What records say that hold no data: whose records this log holds, from when to when, and which of them are void.

`storage/log` says what each means when a log is read."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec.structs import astuple

from stelae.format.log.records import LogKind, LogRecord
from stelae.model.errors import Corruption
from stelae.model.ids import Epoch, Index, Row, TabletId


class EpochBegun(msgspec.Struct, frozen=True, array_like=True):
    """`epochs`: each with the first index it gave out, oldest first. `kept`: what lies before this record and has a
    greater index is void. `may_lack`, of a replica: the log had lost its end, and what the replica lacks may have been
    acknowledged; a mark without epochs says the same, in logs of before there was this field."""

    epochs: tuple[tuple[Epoch, Index], ...]
    kept: Index
    may_lack: bool = False

    @property
    def is_in_doubt(self) -> bool:
        return self.may_lack or not self.epochs


class Hosted(msgspec.Struct, frozen=True, array_like=True):
    """From here on this log holds the tablet's records above `stable`, which the config of `epoch` covers."""

    stable: Index
    epoch: Epoch


class Dropped(msgspec.Struct, frozen=True, array_like=True):
    """The tablet is not here any more."""


class SplitInTwo(msgspec.Struct, frozen=True, array_like=True):
    """The record's tablet became two: rows below `at`, and the others."""

    at: Row
    left: TabletId
    right: TabletId


class JoinedOfTwo(msgspec.Struct, frozen=True, array_like=True):
    """The record's tablet took the place of two, which were flushed for it: files hold all that they had."""

    left: TabletId
    right: TabletId


StayMark: TypeAlias = EpochBegun | Hosted | Dropped | SplitInTwo | JoinedOfTwo

KIND_OF: dict[type[StayMark], LogKind] = {
    EpochBegun: LogKind.EPOCH,
    Hosted: LogKind.HOSTED,
    Dropped: LogKind.DROPPED,
    SplitInTwo: LogKind.SPLIT,
    JoinedOfTwo: LogKind.JOINED,
}

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {kind: msgspec.msgpack.Decoder(type_) for type_, kind in KIND_OF.items()}


def encode_mark(mark: StayMark) -> bytes:
    """Where there is no doubt, as it was written before there was a field for it."""
    if isinstance(mark, EpochBegun) and not mark.may_lack:
        return _ENCODER.encode(astuple(mark)[:-1])
    return _ENCODER.encode(mark)


def decode_mark(record: LogRecord) -> StayMark:
    """Of a record that is neither a block nor a change."""
    try:
        return _DECODERS[record.kind].decode(record.payload)
    except msgspec.MsgspecError as error:
        what = f"{record.kind.name} of tablet {record.tablet}"
        raise Corruption(f"the record {what} cannot be read: {error}", "log") from None
