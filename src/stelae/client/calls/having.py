"""Rows that have one of the columns asked for: what `rows="having"` means where rows are read by their keys.

A store shows every row that exists. A row that shows a value has a column; of one that shows none, its versions tell
whether NULL, or what equals a default, was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stelae.client.api.rows import Row as FoundRow
from stelae.client.arguments.keys import txn_of
from stelae.client.calls.steps import Again, Ask, Steps, ask_now
from stelae.client.calls.views import KnownTable
from stelae.model.errors import SnapshotTooOld
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import Selectors
from stelae.service.backend import Backend
from stelae.service.deadlines import Deadline
from stelae.storage.read.asking import Version

Existing = Callable[[Sequence[object], Sequence[str] | None, object], Steps[list[FoundRow | None]]]


def rows_having(
    known: KnownTable, existing: Existing, keys: Sequence[object], columns: Sequence[str] | None, at: object
) -> Steps[list[FoundRow | None]]:
    """All at one snapshot, in the order of the keys. `existing` reads those that exist."""
    while True:
        txn: Txn = (yield ask_now(known.id)) if at is None else txn_of(at)
        try:
            found = yield from existing(keys, columns, txn)
            view = known.view
            shape = view.shape(columns)
            for place, (key, row) in enumerate(zip(keys, found, strict=True)):
                if row is None or shape.has_any(row):
                    continue
                if not (yield Ask(_versions(view.id, view.row_of(key), shape.selectors, txn))):
                    found[place] = None
        except SnapshotTooOld as error:
            if at is not None:
                raise
            yield Again(error)
        else:
            return found


def _versions(
    table: TableId, row: Row, columns: Selectors, at: Txn
) -> Callable[[Backend, Deadline], dict[str, tuple[Version, ...]] | None]:
    return lambda backend, until: backend.history(table, row, columns, 1, at, deadline=until)
