"""When the last change of a table happens that was decided, whoever decided it.

    decided/{table id, 16 hex digits}    its txn

No two changes of a table happen at one txn: the transaction that decides one compares this record with what it has
read, and writes the txn, which is above it. Nothing else keeps two of them apart: a reader in doubt may have raised the
floors of several changes to one txn, and a master that begins to lead knows nothing of what the one before decided. The
record stays as long as its table: a change may have been prepared long before another one was decided, adopted and
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import TableId, Txn
from stelae.ports.metastore import Change, Compare, DeleteKey, IsAbsent, Metastore, ModRevisionIs, PutKey
from stelae.registry.decoding import entries_under, id_in_key, number_of

DECIDED_PREFIX = "decided/"


def decided_key(table: TableId) -> str:
    return f"{DECIDED_PREFIX}{table:016x}"


async def read_decided(store: Metastore, table: TableId) -> tuple[Txn, Compare]:
    """The txn, the least there is if nothing was decided yet; and what holds as long as nothing else is decided."""
    key = decided_key(table)
    entry = await store.get(key)
    if entry is None:
        return TXN_MIN, IsAbsent(key)
    return Txn(number_of(entry)), ModRevisionIs(key, entry.mod_revision)


def put_decided(table: TableId, txn: Txn) -> Change:
    """What the transaction writes that decides a change."""
    return PutKey(decided_key(table), b"%d" % txn)


async def forget_decided(store: Metastore, is_kept: Callable[[TableId], bool]) -> int:
    """Remove the records of tables that are gone for good: how many."""
    count = 0
    for entry in await entries_under(store, DECIDED_PREFIX):
        if not is_kept(TableId(id_in_key(entry, DECIDED_PREFIX))):
            unchanged = ModRevisionIs(entry.key, entry.mod_revision)
            count += (await store.txn([unchanged], [DeleteKey(entry.key)])).succeeded
    return count
