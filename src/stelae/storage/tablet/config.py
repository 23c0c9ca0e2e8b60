"""A tablet's config: everything of its state that is not in the log, as a value that is saved and loaded.

What is in memory is not in it: the log has it, above `flushed`. Loading gives the state as it was under the schema
version it was saved with; the caller alters it, version by version, to the schema of today, and then replays the log.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import Epoch, GroupId, Index, SchemaVersion, TableId, TabletId, Txn
from stelae.model.ranges import RowRange
from stelae.model.schema import TableSchema
from stelae.storage.log.commits import TabletCommits
from stelae.storage.log.done import NOTHING_DONE, SavedDone, done_of
from stelae.storage.tablet.config_bytes import CONFIG_VERSION, read_config
from stelae.storage.tablet.parts import FamilySet, Naming
from stelae.storage.tablet.state import Groups, PreparedLoad, Ref, TabletState, new_tablet, restored


class SavedRef(msgspec.Struct, frozen=True):
    file: FragmentFile
    rows: RowRange
    part: tuple[int, ...] | FamilySet
    naming: Naming


SavedGroups = tuple[tuple[GroupId, tuple[SavedRef, ...]], ...]


class TabletConfig(msgspec.Struct, frozen=True):
    """`log`: which server's log holds what is above `flushed`; empty if nothing is. `stable`: up to which index files
    hold the tablet's own records; those before log format 2 had none. `done`: the numbered writes that were let in and
    decided. `purged_below`: a snapshot before it cannot be read, since a compaction may have dropped what it needs; of
    configs before there was one, the store knows by its horizons."""

    version: int
    tablet: TabletId
    table: TableId
    rows: RowRange
    schema_version: SchemaVersion
    groups: SavedGroups
    flushed: tuple[tuple[RowRange, Txn], ...]
    floors: tuple[Txn, ...]
    prepared: tuple[tuple[str, SavedGroups], ...]
    epoch: Epoch
    resize: int
    log: str
    stable: Index = Index(0)
    done: SavedDone | UnsetType = UNSET
    purged_below: Txn = TXN_MIN

    def files(self) -> frozenset[str]:
        return frozenset(file.name for file in self.fragments())

    def fragments(self) -> list[FragmentFile]:
        """All files that it names, those of prepared loads too; some perhaps several times."""
        groups = (*self.groups, *(group for _, load in self.prepared for group in load))
        return [ref.file for _, refs in groups for ref in refs]


class ConfigStore(Protocol):
    """Where tablets' configs are kept, apart from their data."""

    def save(self, configs: Sequence[TabletConfig], removed: Sequence[TabletId]) -> None:
        """Durable when it returns. They come in the order of their rows, and are saved in it, and only then are others
        removed. After an error or a crash the first so many may be done, and others not: where the ranges of configs
        overlap, the greater resize number counts. Never called by two threads at once."""
        ...


def config_of(state: TabletState, log: str = "", undecided: Collection[Txn] = ()) -> TabletConfig:
    """`log`: that of the server that has the tablet. Once it takes no more writes and has all in files, no log holds
    anything of it, and its config names none. `undecided`: what may still be taken back."""
    has_left = state.is_frozen and all(memory.is_empty for memory in state.memories)
    return TabletConfig(
        version=CONFIG_VERSION,
        tablet=state.tablet,
        table=state.table,
        rows=state.rows,
        schema_version=state.schema.version,
        groups=_saved(state.groups),
        flushed=state.flushed,
        floors=state.floors,
        prepared=tuple((load.load, _saved(load.groups)) for load in state.prepared),
        epoch=state.epoch,
        resize=state.resize,
        log="" if has_left else log,
        stable=state.stable,
        done=state.commits.done.saved(undecided) or UNSET,
        purged_below=state.purged_below,
    )


def _saved(groups: Groups) -> SavedGroups:
    saved = []
    for id_, refs in groups:
        files = tuple(_saved_ref(ref, ref.file) for ref in refs if ref.file is not None)
        if files:
            saved.append((id_, files))
    return tuple(saved)


def _saved_ref(ref: Ref, file: FragmentFile) -> SavedRef:
    part = ref.part if isinstance(ref.part, FamilySet) else tuple(sorted(ref.part))
    return SavedRef(file, ref.rows, part, ref.naming)


def narrowed(config: TabletConfig, rows: RowRange) -> TabletConfig:
    """The same tablet with fewer rows."""

    def cut(groups: SavedGroups) -> SavedGroups:
        kept = []
        for id_, refs in groups:
            inside = [(ref, ref.rows.intersect(rows)) for ref in refs]
            left = tuple(msgspec.structs.replace(ref, rows=part) for ref, part in inside if not part.is_empty)
            if left:
                kept.append((id_, left))
        return tuple(kept)

    flushed = tuple((part, txn) for each, txn in config.flushed if not (part := each.intersect(rows)).is_empty)
    loads = tuple((load, cut(groups)) for load, groups in config.prepared)
    return msgspec.structs.replace(config, rows=rows, groups=cut(config.groups), flushed=flushed, prepared=loads)


def state_of(config: TabletConfig, schema: TableSchema) -> TabletState:
    """The schema must be the one of `config.schema_version`."""
    empty = new_tablet(config.tablet, config.table, config.rows, schema)
    state = replace(
        empty,
        flushed=config.flushed,
        floors=config.floors,
        prepared=tuple(PreparedLoad(load, _loaded(groups)) for load, groups in config.prepared),
        epoch=config.epoch,
        resize=config.resize,
        stable=config.stable,
        commits=TabletCommits(config.stable, done=done_of(config.done or NOTHING_DONE)),
        purged_below=config.purged_below,
    )
    return restored(state, _loaded(config.groups))


def _loaded(groups: SavedGroups) -> Groups:
    return tuple(
        (
            id_,
            tuple(
                Ref(
                    saved.file,
                    saved.rows,
                    saved.part if isinstance(saved.part, FamilySet) else frozenset(saved.part),  # type: ignore[arg-type]
                    saved.naming,
                )
                for saved in refs
            ),
        )
        for id_, refs in groups
    )


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(TabletConfig)


def encode_config(config: TabletConfig) -> bytes:
    return _ENCODER.encode(config)


def decode_config(data: bytes, where: str) -> TabletConfig:
    return read_config(_DECODER, data, where)
