"""What changes a table without being a block, and takes its place among the blocks all the same: a txn, the log, and
readers that see it only once it is durable.

`Emptied`: everything before is hidden. `Loaded`: what a bulk load has prepared in every tablet becomes visible, all at
one txn; if it `replaces`, everything before is hidden by it. One record in the log is about all tablets of the table
that the shard has, so it happened to all of them or to none.

A change may be applied again to a state that has it already, as replay does, and changes nothing then.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import Corruption
from stelae.model.ids import GroupId, Txn
from stelae.storage.tablet.state import PreparedLoad, Ref, TabletState, with_floor, with_load


class Emptied(msgspec.Struct, frozen=True, tag="emptied"):
    pass


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    load: str
    replaces: bool = False


TableChange: TypeAlias = Emptied | Loaded

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: msgspec.msgpack.Decoder[TableChange] = msgspec.msgpack.Decoder(Emptied | Loaded)


def encode_change(change: TableChange) -> bytes:
    return _ENCODER.encode(change)


def decode_change(data: bytes | memoryview, txn: Txn) -> TableChange:
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise Corruption(f"the change of txn {txn} cannot be read: {error}", "log") from None


def changed(state: TabletState, change: TableChange, txn: Txn) -> TabletState:
    match change:
        case Emptied():
            return with_floor(state, txn)
        case Loaded(load, replaces):
            loaded = with_load(state, load, txn)
            return with_floor(loaded, txn) if replaces else loaded


def taken_back(state: TabletState, change: TableChange, txn: Txn) -> TabletState:
    """As if the change had never been: it did not become durable. What was prepared for it is so again, in tablets
    too that had no files of it: others may have decided that it happens."""
    floors = tuple(floor for floor in state.floors if floor != txn)
    if isinstance(change, Emptied):
        return replace(state, floors=floors)
    kept: list[tuple[GroupId, tuple[Ref, ...]]] = []
    again: list[tuple[GroupId, tuple[Ref, ...]]] = []
    for id_, refs in state.groups:
        mine = tuple(_unstamped(ref, ref.file) for ref in refs if ref.file is not None and ref.file.txn == txn)
        rest = tuple(ref for ref in refs if ref.file is None or ref.file.txn != txn)
        kept += [(id_, rest)] if rest else []
        again += [(id_, mine)] if mine else []
    prepared = (*state.prepared, PreparedLoad(change.load, tuple(again)))
    return replace(state, groups=tuple(kept), prepared=prepared, floors=floors)


def _unstamped(ref: Ref, file: FragmentFile) -> Ref:
    return replace(ref, source=FragmentFile(file.name, file.seal, file.stats))
