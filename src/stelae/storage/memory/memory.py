"""What a tablet wrote and no fragment holds yet.

A memory belongs to one range of rows under one schema. Small blocks go into a dict by row, put in order only when
somebody scans; columnar blocks are kept as they came. Writers hold the shard's lock; readers take none: lists only
grow, and what a reader may not see yet has a greater txn than its snapshot. Only a failed log write takes something
away, and what it takes nobody has been shown.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import TS_MIN, GroupId, Row, Txn
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.model.schema import ColumnsGroup, Group, TableSchema
from stelae.storage.memory.cells import MemoryOfCells
from stelae.storage.memory.columns import MemoryOfColumns

MemoryGroup: TypeAlias = MemoryOfColumns | MemoryOfCells


class Memory:
    """All groups of one range of rows, from one moment to another. Once sealed, nothing is added."""

    def __init__(self, schema: TableSchema, rows: RowRange) -> None:
        self.schema = schema
        self.rows = rows
        self.groups: dict[GroupId, MemoryGroup] = {group.id: _memory_of(group) for group in schema.groups}
        self.of_columns = tuple(group for group in self.groups.values() if isinstance(group, MemoryOfColumns))
        self.takes_all = rows == ALL_ROWS
        self.txns: list[Txn] = []
        self.ts_max = TS_MIN
        """The latest time that any put gave itself; those without one have their commit's."""
        self.size_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self.txns

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
