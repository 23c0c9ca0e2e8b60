"""The store as each process of a job sees it: the driver through its database, tasks through the files alone, or
through a database of their own.

Files lie under a URL, which tickets carry: every process opens it by itself, with what its own environment says of
keys and endpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.adapters.blobs.urls import blobs_url, open_blobs, shown_place, store_directory
from stelae.client.api.database import session_of
from stelae.client.calls.patient import PatientStore
from stelae.launch.metastores import METASTORE_FILE
from stelae.model.errors import InvalidArgument, NotFound
from stelae.ports.blobs import BlobStore
from stelae.ports.executor import Executor
from stelae.storage.offline.known import KnownFiles, KnownFragments
from stelae.storage.offline.tablets import Fragments, open_fragments

if TYPE_CHECKING:
    from stelae.client.api.database import Database


def backend_of(db: Database) -> PatientStore:
    """The store of a database that `stelae.open` gave; what fails for a while is repeated."""
    return PatientStore(session_of(db))


class StorePlace(msgspec.Struct, frozen=True):
    """Where a process of a job opens the store: the path of a directory, or if `is_cluster` the masters of a cluster,
    as `stelae.connect` takes them."""

    words: str
    is_cluster: bool = False


def place_of(db: Database) -> StorePlace:
    """Where another process opens the store of a database."""
    cluster = session_of(db).cluster
    return StorePlace(db.path) if cluster is None else StorePlace(cluster, is_cluster=True)


@contextmanager
def open_store(place: StorePlace) -> Iterator[Database]:
    """The store, for a process that has it not yet. It must be there."""
    import stelae

    if place.is_cluster:
        with stelae.connect(place.words) as db:
            yield db
        return
    directory = absolute(place.words)
    try:
        LocalBlobStore(directory, read_only=True).open(METASTORE_FILE).close()
    except NotFound:
        raise NotFound(f"no store in {directory}: there is no {METASTORE_FILE}") from None
    with stelae.open(directory) as db:
        yield db


def absolute(directory: object) -> str:
    """Where a directory is, for processes whose current one is another."""
    return LocalBlobStore(store_directory(directory), read_only=True).root


def blobs_of(root: str, *, writing: bool = False) -> BlobStore:
    """The blobs under a URL or path, for a task: opened once in each process."""
    return _blobs(root, writing)


@lru_cache(maxsize=16)
def _blobs(root: str, writing: bool) -> BlobStore:
    return open_blobs(root, read_only=not writing)


def fragments_of(root: str) -> Fragments:
    """The fragments under a URL, for one task: `close` it at the end."""
    return open_fragments(blobs_of(root))


_known = KnownFiles()


def planned_fragments(root: str, reading: Executor) -> Fragments:
    """The same for a driver, which plans reads of the same files again and again. `reading`: reads several blocks at
    once."""
    return KnownFragments(_known, root, blobs_of(root), reading)


def check_apart_from(place: str, db: Database) -> None:
    """As `check_apart`, of the directory that a database is in, if it is in one."""
    if session_of(db).cluster is None:
        check_apart(place, db.path)


def check_apart(place: str, store: object) -> None:
    """What is written to a place must not be in the way of the store's own files. Both are URLs or paths; `place` may
    be any that Spark knows."""
    mine, other = (f"{each}/" for each in (_comparable(place), blobs_url(store)))
    if mine.startswith(other) or other.startswith(mine):
        shown = shown_place(blobs_url(store))
        raise InvalidArgument(f"{shown_place(place)} is a part of the store {shown}, or has it inside: choose another")


def _comparable(place: str) -> str:
    """Spark's other names for S3 are of the same bucket; places that this store could not be in stay as they are."""
    scheme, mark, rest = place.partition("://")
    known = f"s3{mark}{rest}" if scheme.lower() in ("s3a", "s3n") else place
    return blobs_url(known) if not mark or scheme.lower() in ("s3a", "s3n", "s3", "file") else place
