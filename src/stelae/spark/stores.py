"""The store as each process of a job sees it: the driver through its database, tasks through the files alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.client.api.database import session_of
from stelae.client.calls.patient import patient_store
from stelae.launch.metastores import METASTORE_FILE
from stelae.model.errors import NotFound
from stelae.storage.offline.tablets import Fragments, open_fragments

if TYPE_CHECKING:
    from stelae.client.api.database import Database
    from stelae.service.backend import Backend


def backend_of(db: Database) -> Backend:
    """The store of a database that `stelae.open` gave; what fails for a while is repeated."""
    return patient_store(session_of(db))


@contextmanager
def opened(path: str) -> Iterator[Database]:
    """The store in a directory, for a process that has it not yet. It must be there."""
    import stelae

    try:
        blobs_of(path).open(METASTORE_FILE).close()
    except NotFound:
        raise NotFound(f"no store in {blobs_of(path).root}: there is no {METASTORE_FILE}") from None
    with stelae.open(path) as db:
        yield db


def blobs_of(root: str, *, writing: bool = False) -> LocalBlobStore:
    """The files of a store, for a task."""
    return _blobs(root, writing)


@lru_cache(maxsize=16)
def _blobs(root: str, writing: bool) -> LocalBlobStore:
    return LocalBlobStore(root, read_only=not writing)


def fragments_of(root: str) -> Fragments:
    """For one task: `close` it at the end."""
    return open_fragments(blobs_of(root))
