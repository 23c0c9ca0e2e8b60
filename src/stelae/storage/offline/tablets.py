"""Tablets that nobody serves: a table that is held at a snapshot, opened from what its ticket says.

A ticket carries a table as bytes: its schema, and the config of each tablet. That and the fragments are all that a job
needs; it asks nobody while it reads. A `HeldTablet` is what one config says, with the files alone: no memory, no log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec
from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile
from stelae.model.hybrid import micros_of
from stelae.model.ids import TableId, TabletId, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.ranges import RowRange
from stelae.model.schema import TableSchema
from stelae.ports.blobs import BlobStore
from stelae.storage.files.cache import BlockCache
from stelae.storage.files.fragments import Fragments
from stelae.storage.read.asking import Asking
from stelae.storage.tablet.config import (
    SavedGroups,
    SavedRef,
    TabletConfig,
    decode_config,
    encode_config,
    narrowed,
    state_of,
)
from stelae.storage.tablet.state import TabletState, altered

__all__ = ["Fragments", "HeldTablet", "SavedRef", "open_fragments"]

CACHE_BYTES = 64 * 2**20


def open_fragments(blobs: BlobStore) -> Fragments:
    """The fragments of a store, for one task: `close` them at its end."""
    return Fragments(blobs, BlockCache(CACHE_BYTES))


class HeldTablet(msgspec.Struct, frozen=True, dict=True):
    """One tablet of a held table: its rows, and the files with records of them. `schema` is the one of its config;
    `read_as`, if it is given, the one under which it is read: columns are found by their ids."""

    config: TabletConfig
    schema: TableSchema
    read_as: TableSchema | None = None

    @staticmethod
    def decode(data: bytes, schema: TableSchema, where: str, read_as: TableSchema | None = None) -> HeldTablet:
        """From the bytes of its config. Corruption or UnsupportedFormat name `where` those are from."""
        return HeldTablet(decode_config(data, where), schema, read_as)

    def encode(self) -> bytes:
        return encode_config(self.config)

    @property
    def tablet(self) -> TabletId:
        return self.config.tablet

    @property
    def table(self) -> TableId:
        return self.config.table

    @property
    def rows(self) -> RowRange:
        return self.config.rows

    @property
    def shown_schema(self) -> TableSchema:
        """The schema under which it is read."""
        return self.schema if self.read_as is None else self.read_as

    def refs(self) -> tuple[SavedRef, ...]:
        """What it refers to, group by group: a file that several groups have columns in comes several times."""
        return tuple(ref for _, refs in self.config.groups for ref in refs)

    def files(self) -> dict[str, FragmentFile]:
        """The files, by name, that a reader may need. Those of loads that are not committed are not among them."""
        return {ref.file.name: ref.file for ref in self.refs()}

    @property
    def size_bytes(self) -> int:
        """Of all of its files, though some of their rows may be another tablet's."""
        return sum(file.seal.size_bytes for file in self.files().values())

    @cached_property
    def state(self) -> TabletState:
        """What the readers and scans of `storage` take: of files alone, as nothing is in memory here."""
        state = state_of(self.config, self.schema)
        if self.read_as is not None:
            state = altered(state, self.read_as)
        groups = ((id_, tuple(ref for ref in refs if ref.file is not None)) for id_, refs in state.groups)
        return replace(state, groups=tuple((id_, refs) for id_, refs in groups if refs))

    def asking(self, at: Txn, time: TimeRange = ALL_TIME) -> Asking:
        """The question that a read at a snapshot asks of its rows."""
        return Asking(at, self.state.floor_at(at), micros_of(at), time)

    def at(self, txn: Txn) -> HeldTablet:
        """Without files that have nothing to say at a snapshot: those above it, and those below the tablet's floor."""
        floor = max((floor for floor in self.config.floors if floor <= txn), default=Txn(0))

        def is_visible(file: FragmentFile) -> bool:
            return file.stats.records > 0 and file.txn_min <= txn and file.txn_max >= floor

        groups = []
        for group, refs in self.config.groups:
            kept = tuple(ref for ref in refs if is_visible(ref.file))
            if kept:
                groups.append((group, kept))
        return self._with_groups(tuple(groups))

    def within(self, rows: RowRange) -> HeldTablet:
        """Fewer rows of it, and only what they need."""
        return replace(self, config=narrowed(self.config, rows))

    def renamed(self, names: Mapping[str, str]) -> HeldTablet:
        """The same tablet over copies of its files, which are called as `names` says."""

        def moved(refs: Iterable[SavedRef]) -> tuple[SavedRef, ...]:
            files = ((ref, msgspec.structs.replace(ref.file, name=names[ref.file.name])) for ref in refs)
            return tuple(msgspec.structs.replace(ref, file=file) for ref, file in files)

        return self._with_groups(tuple((group, moved(refs)) for group, refs in self.config.groups))

    def _with_groups(self, groups: SavedGroups) -> HeldTablet:
        """Loads that nobody sees yet are left out, too."""
        return replace(self, config=msgspec.structs.replace(self.config, groups=groups, prepared=()))
