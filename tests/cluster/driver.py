"""The driver of a bulk load, as Spark's: begins it, writes files by itself, and has the master make them visible."""

from __future__ import annotations

from pathlib import Path

import stelae
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.service.backend import Backend
from tests.tserver.loading import written

KEYS = (1, 11, 21)
"""One in each of the tablets."""


def backend_of(db: stelae.Database) -> Backend:
    return db._session.backend


def load_once(db: stelae.Database, root: Path, value: int, *, replaces: bool = False) -> None:
    """Raises what the master says."""
    store, blobs, job = backend_of(db), LocalBlobStore(root / "store"), f"load {value}"
    ticket = store.begin_load(store.find("t").id, job)
    if ticket.committed is None:
        files = [written(blobs, ticket, f"{key:02x}", {key: value}) for key in KEYS]
        store.commit_load(ticket.ticket, files, replaces=replaces)


def load(db: stelae.Database, root: Path, value: int, *, replaces: bool = False) -> None:
    """As a driver does it that tries again until it is told that its job is done."""
    while True:
        try:
            load_once(db, root, value, replaces=replaces)
        except (stelae.Unavailable, stelae.UnknownOutcome, stelae.Conflict):
            continue
        return
