"""What a tablet wrote and no fragment holds yet.

A memory belongs to one range of rows under one schema. Small blocks go into a dict by row, put in order only when
somebody scans; columnar blocks are kept as they came. Writers hold the shard's lock; readers take none: lists only
grow, and what a reader may not see yet has a greater txn than its snapshot. Only a failed log write takes something
away, and what it takes nobody has been shown.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from stelae.format.log.positions import POSITION_MAX, Position
from stelae.format.log.records import NO_INDEX, NO_TABLET
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import TS_MIN, GroupId, Index, Row, TabletId, Txn
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.model.schema import ColumnsGroup, Group, TableSchema
from stelae.storage.memory.cells import MemoryOfCells
from stelae.storage.memory.columns import MemoryOfColumns

MemoryGroup: TypeAlias = MemoryOfColumns | MemoryOfCells


class Memory:
    """All groups of one range of rows, from one moment to another. Once sealed, nothing is added. `tablet`: the one
    whose blocks it took; those that came out of that share it."""

    def __init__(self, schema: TableSchema, rows: RowRange, tablet: TabletId = NO_TABLET) -> None:
        self.schema = schema
        self.rows = rows
        self.tablet = tablet
        self.groups: dict[GroupId, MemoryGroup] = {group.id: _memory_of(group) for group in schema.groups}
        self.of_columns = tuple(group for group in self.groups.values() if isinstance(group, MemoryOfColumns))
        self.takes_all = rows == ALL_ROWS
        self.txns: list[Txn] = []
        """In order: those of one tablet grow."""
        self.last_index: Index = NO_INDEX
        """Of the tablet's records that came here, the last one's."""
        self._log_from = POSITION_MAX
        self.ts_max = TS_MIN
        """The latest time that any put gave itself; those without one have their commit's."""
        self.size_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self.txns

    @property
    def log_from(self) -> Position:
        """No block of it lies before this place in the log; POSITION_MAX if it is empty."""
        return self._log_from if self.txns else POSITION_MAX

    @property
    def log_is_unknown(self) -> bool:
        """It has blocks, and nobody has said yet where they lie."""
        return bool(self.txns) and self._log_from == POSITION_MAX

    def note_log(self, begin: Position) -> None:
        """The first block that is in it, or comes next, lies at or behind this place."""
        self._log_from = begin

    @property
    def txn_min(self) -> Txn:
        return self.txns[0] if self.txns else TXN_MAX

    @property
    def txn_max(self) -> Txn:
        return self.txns[-1] if self.txns else Txn(0)

    def last_txn(self, row: Row) -> Txn:
        """Of the newest record of the row in any group; 0 if there is none."""
        return max(group.last_txn(row) for group in self.groups.values())

    def remove(self, txns: Collection[Txn]) -> None:
        """Take back blocks that never became durable."""
        if not any(txn in txns for txn in self.txns):
            return
        for group in self.groups.values():
            group.remove(txns)
        self.txns = [txn for txn in self.txns if txn not in txns]
        if self.is_empty:
            self.size_bytes = 0


def _memory_of(group: Group) -> MemoryGroup:
    return MemoryOfColumns(group) if isinstance(group, ColumnsGroup) else MemoryOfCells(group)
