"""Each operation of the table as a call of a store, with a deadline: for tests of what is true of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stelae.client.intake.mutations import blocks_of
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.service.backend import Backend
from stelae.service.deadlines import Deadline
from stelae.service.scans import ScanAsk
from stelae.service.spaces import DropZoneAsk
from stelae.service.tables import AlterAsk, CreateAsk
from tests.client.samples import USERS

TABLE = TableId(7)
ROW = Row(b"x")
ASK = ScanAsk(ScanPredicate(), Txn(5))
BLOCKS = blocks_of(USERS, [{"id": "ann", "name": "Ann"}])

ASKED: dict[str, Callable[[Backend, Deadline | None], Any]] = {
    "find": lambda store, until: store.find("x", deadline=until),
    "info": lambda store, until: store.info(TABLE, deadline=until),
    "names": lambda store, until: store.names(deadline=until),
    "spaces": lambda store, until: store.spaces(deadline=until),
    "change_spaces": lambda store, until: store.change_spaces(DropZoneAsk("x"), deadline=until),
    "create": lambda store, until: store.create(CreateAsk("x", USERS), deadline=until),
    "alter": lambda store, until: store.alter("x", AlterAsk(("a",)), deadline=until),
    "drop": lambda store, until: store.drop("x", deadline=until),
    "recall": lambda store, until: store.recall("x", deadline=until),
    "split": lambda store, until: store.split(TABLE, deadline=until),
    "join": lambda store, until: store.join(TABLE, ROW, deadline=until),
    "write": lambda store, until: store.write(TABLE, BLOCKS, deadline=until),
    "truncate": lambda store, until: store.truncate(TABLE, deadline=until),
    "now": lambda store, until: store.now(deadline=until),
    "newest": lambda store, until: store.newest(TABLE, ROW, ALL_COLUMNS, deadline=until),
    "newest_many": lambda store, until: store.newest_many(TABLE, [ROW], ALL_COLUMNS, deadline=until),
    "history": lambda store, until: store.history(TABLE, ROW, ALL_COLUMNS, 3, deadline=until),
    "scan": lambda store, until: list(store.scan(TABLE, ASK, deadline=until)),
    "pin": lambda store, until: store.pin(deadline=until),
    "flush": lambda store, until: store.flush(TABLE, deadline=until),
    "compact": lambda store, until: store.compact(TABLE, deadline=until),
    "tablets": lambda store, until: store.tablets(TABLE, deadline=until),
    "stats": lambda store, until: store.stats(TABLE, deadline=until),
    "metrics": lambda store, until: store.metrics(deadline=until),
    "check": lambda store, until: store.check(deadline=until),
    "hold": lambda store, until: store.hold(TABLE, deadline=until),
    "renew": lambda store, until: store.renew("t", deadline=until),
    "release": lambda store, until: store.release("t", deadline=until),
    "begin_load": lambda store, until: store.begin_load(TABLE, "job", deadline=until),
    "commit_load": lambda store, until: store.commit_load("t", (), deadline=until),
    "begin_compaction": lambda store, until: store.begin_compaction(TABLE, deadline=until),
    "adopt": lambda store, until: store.adopt("t", 1, None, deadline=until),
}
"""All but `unpin`, which is asked by closing a pin, and says nothing if it fails."""
