"""A table in a store on a simulated machine, and beside it the plain model of what it must hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

import stelae
from stelae.assembly.embedded import EmbeddedStore
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.format import layout
from stelae.format.block import Block, SmallBlock
from stelae.model.hybrid import micros_of, millis_of, pack
from stelae.model.ids import ColumnId, Micros, Row, TableId, TabletId, Txn
from stelae.model.mutation import Mutation
from stelae.model.purge import PurgePolicy
from stelae.model.record import ROW_EXISTS
from stelae.model.schema import CellsGroup, ColumnsGroup, GroupOptions, TableSchema
from stelae.sim.rng import SimRng
from stelae.storage.shard import Commit
from tests.assembly.worlds import SETTINGS, Machine
from tests.client.walk_tables import RETENTIONS, Declared, Key
from tests.storage.plain import PlainTable

NAME = "t"
REMEMBERED_MAX = 6
_SETTINGS = replace(SETTINGS, pins_wait_s=0.0)
"""Nobody else holds snapshots of this store, so after a crash nobody is waited for."""


class World:
    """`remembered` are txns that reads go back to for as long as the table keeps them, `held` the open snapshots."""

    def __init__(self, seed: int, declared: Declared) -> None:
        self.declared = declared
        self.machine = Machine(seed)
        self.remembered: list[Txn] = []
        self.held: list[stelae.Snapshot] = []
        self.times: list[Micros] = []
        """Of versions that were written: to be hit exactly, now and then."""
        self.heard: list[tuple[Txn, list[Row]]] = []
        """Which rows were written at which txns, since the model was told last."""
        self._ended: Txn = Txn(0)
        self._retention_s = declared.retention_s
        self._id: TableId | None = None
        self._open()
        self.table = self.db.create_table(NAME, **declared.arguments)
        self._id = self.table._info.id
        self.model = PlainTable(self.table.schema)

    # -- its life

    def _open(self) -> None:
        self.store: EmbeddedStore = self.machine.open(_SETTINGS)
        backend: Any = self.store
        self.db = stelae.Database(Session(backend, Patience(self.machine.clock, SimRng(1), 10)))
        shard: Any = self.store.server.shard
        apply = shard.apply

        def hear(tablet: TabletId, block: Block, **options: Any) -> Commit:
            commit: Commit = apply(tablet, block, **options)
            if shard.state(tablet).table == self._id:
                self.heard.append((commit.txn, self._rows_of(block)))
            return commit

        shard.apply = hear

    def reopen(self, how: str) -> None:
        """`how`: "closed" in order, "kill" of the process, loss of "power"."""
        if how == "closed":
            self.let_go()
            self.db.close()
        self.held.clear()
        self.machine.end(how)
        self._open()
        self.table = self.db.table(NAME)

    def close(self) -> None:
        self.let_go()
        self.db.close()
        self.machine.end("closed")

    # -- what was written

    def row_of(self, key: Key) -> Row:
        return self.schema.codec.encode(key)

    @property
    def schema(self) -> TableSchema:
        return self.model.schema

    def take_over(self, mutations: Sequence[Mutation]) -> Txn | None:
        """Put into the model what one call has just written: what it says of a row counts from the row's commit on."""
        heard, self.heard = self.heard, []
        txns = {row: txn for txn, rows in heard for row in rows}
        said = sorted({each.row for each in mutations})
        assert sorted(row for _, rows in heard for row in set(rows)) == said, f"{said} was written as {heard}"
        by_txn: dict[Txn, list[Mutation]] = {}
        for mutation in mutations:
            by_txn.setdefault(txns[mutation.row], []).append(mutation)
        for txn, part in sorted(by_txn.items()):
            self.model.commit(txn, part)
            self.times = [*self.times[-12:], micros_of(txn)]
        return max(by_txn, default=None)

    def _rows_of(self, block: Block) -> list[Row]:
        if isinstance(block, SmallBlock):
            return [mutation.row for mutation in block.mutations]
        return [Row(row) for row in layout.rows_of(self.table._info.schema.codec, block.batch).to_pylist()]

    # -- snapshots

    def remember(self, txn: Txn) -> None:
        self.remembered = [*self.remembered[-REMEMBERED_MAX:], txn]

    def let_go(self) -> None:
        for each in self.held:
            each.close()
        self.held.clear()

    def end_history(self, txn: Txn) -> None:
        """Snapshots up to this one need not be readable any more, unless they are held."""
        self._ended = txn

    def is_kept(self, txn: Txn) -> bool:
        """Whether the table promises that this snapshot can be read."""
        if any(each.txn == txn for each in self.held):
            return True
        age_us = micros_of(self.db.now()) - micros_of(txn)
        return txn > self._ended and age_us < self._retention_s * 1_000_000

    # -- alterations

    def alter(self, changes: dict[str, Any]) -> bool:
        """Whether the change was taken. No policy that judged something before it may be forgotten by it: what was
        purged is gone for good."""
        before, old = self.db.now(), self.table.schema
        try:
            self.db.alter_table(NAME, **changes)
        except (stelae.InvalidSchema, stelae.InvalidArgument, stelae.NotFound):
            assert self.table.schema == old
            return False
        new = self.table.schema
        pasts, now = _pasts(old, before), _pasts(new, before)
        wild = _wildcard(old)
        for member in set(pasts) & set(now):
            assert now[member] == pasts[member], f"{member} in {old} was judged otherwise than in {new}"
        if wild is not None:
            known = {f.name for g in old.groups if isinstance(g, CellsGroup) for f in g.families}
            for group in new.groups:
                for family in group.families if isinstance(group, CellsGroup) else ():
                    if family.id not in pasts and family.name not in known:
                        assert now[family.id] == pasts[wild], f"{family} came from the wildcard in {old}"
        self.model.alter(new)
        if "retention" in changes:
            # What was too old before it may be gone, however long is kept from now on.
            self._ended = max(self._ended, pack(millis_of(before) - self._retention_s * 1_000))
            self._retention_s = RETENTIONS[changes["retention"]]
        return True


def _wildcard(schema: TableSchema) -> int | None:
    return next((group.id for group in schema.groups if isinstance(group, CellsGroup) and group.wildcard), None)


Past = list[tuple[PurgePolicy | None, Txn]]


def _pasts(schema: TableSchema, until: Txn) -> dict[ColumnId | int, Past]:
    """By column, family and wildcard, and of keys put alone: the policies up to a txn, each with its end."""
    home = schema.existence_group.options
    found: dict[ColumnId | int, Past] = {ROW_EXISTS: _past(_ends(home.keys_past), home, until)}
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            found |= {column.id: _past((), group.options, until) for column in group.columns}
        else:
            found |= {family.id: _past(_ends(family.past), group.options, until) for family in group.families}
            found |= {group.id: _past((), group.options, until)} if group.wildcard else {}
    return found


def _ends(past: Iterable[Any]) -> Past:
    return [(each.policy, each.until) for each in past]


def _past(own: Sequence[tuple[PurgePolicy | None, Txn]], options: GroupOptions, until: Txn) -> Past:
    """Neighbours that are the same are one."""
    ended = own[-1][1] if own else Txn(0)
    whole = [*own, *(each for each in _ends(options.past) if each[1] > ended), (options.purge, until)]
    found: Past = []
    for policy, end in whole:
        if found and found[-1][1] >= until:
            break
        if found and found[-1][0] == policy:
            found.pop()
        found.append((policy, min(end, until)))
    return found
