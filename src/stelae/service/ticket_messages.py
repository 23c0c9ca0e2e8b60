"""What the owner of a store and jobs in other processes say to each other: the operations of `BulkBackend`.

What is handed out comes as the pieces of a stream: it may name very many files. What is taken in lies in the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from stelae.format.fragment.footer import FragmentFile
from stelae.service.jobs import TTL_S_MAX
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.wire.faults import MessageRefused
from stelae.wire.messages import UNFIT

FILES_MAX = 1_000_000
_TEXT_MAX = 4_096

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=TTL_S_MAX)]

T = TypeVar("T")


class HoldMessage(msgspec.Struct, frozen=True):
    table: _Number
    at: _Number | None
    ttl_s: _Seconds


class RenewMessage(msgspec.Struct, frozen=True):
    ticket: _Text
    ttl_s: _Seconds


class ReleaseMessage(msgspec.Struct, frozen=True):
    ticket: _Text


class BeginLoadMessage(msgspec.Struct, frozen=True):
    table: _Number
    job: _Text
    batch: _Number
    ttl_s: _Seconds


class CommitLoadMessage(msgspec.Struct, frozen=True):
    """The files are in the body."""

    ticket: _Text
    replaces: bool


class BeginCompactionMessage(msgspec.Struct, frozen=True):
    table: _Number
    full: bool
    erase_now: bool
    ttl_s: _Seconds


class AdoptMessage(msgspec.Struct, frozen=True):
    """The file is in the body, or nothing."""

    ticket: _Text
    number: _Number


class AdoptedMessage(msgspec.Struct, frozen=True):
    adopted: bool


_ENCODER = msgspec.msgpack.Encoder()
_HELD = msgspec.msgpack.Decoder(HeldTable)
_LOADS = msgspec.msgpack.Decoder(LoadTicket)
_COMPACTIONS = msgspec.msgpack.Decoder(CompactionTicket)
_FILES = msgspec.msgpack.Decoder(Annotated[tuple[LoadedFile, ...], msgspec.Meta(max_length=FILES_MAX)])
_FILE = msgspec.msgpack.Decoder(FragmentFile | None)


def handed_out(ticket: HeldTable | LoadTicket | CompactionTicket) -> bytes:
    return _ENCODER.encode(ticket)


def held_from(data: bytes | memoryview) -> HeldTable:
    return _taken("a held table", _HELD, data)


def load_from(data: bytes | memoryview) -> LoadTicket:
    return _taken("a load", _LOADS, data)


def compaction_from(data: bytes | memoryview) -> CompactionTicket:
    return _taken("a compaction", _COMPACTIONS, data)


def files_bytes(files: Sequence[LoadedFile]) -> bytes:
    return _ENCODER.encode(files)


def files_from(data: bytes | memoryview) -> tuple[LoadedFile, ...]:
    return _taken("files", _FILES, data)


def file_bytes(file: FragmentFile | None) -> bytes:
    return _ENCODER.encode(file)


def file_from(data: bytes | memoryview) -> FragmentFile | None:
    return _taken("a file", _FILE, data)


def _taken(what: str, decoder: msgspec.msgpack.Decoder[T], data: Any) -> T:
    try:
        return decoder.decode(data)
    except UNFIT as error:
        raise MessageRefused(f"not {what}: {error}") from None
