"""Opens the metastore of a store: SQLite in its directory, or etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stelae.adapters.clock import SystemClock
from stelae.adapters.etcd_cluster import EtcdTls, EtcdUser
from stelae.adapters.metastore_etcd import EtcdMetastore
from stelae.adapters.metastore_sqlite import SqliteMetastore
from stelae.model.errors import NotFound
from stelae.ports.metastore import Metastore

METASTORE_FILE = "metastore.db"
ETCD_NAMESPACE = "stelae/"


@dataclass(frozen=True, slots=True)
class InDirectory:
    """An embedded store."""

    path: Path


@dataclass(frozen=True, slots=True)
class OnEtcd:
    """A cluster's. Several stores can share one etcd under namespaces of their own."""

    endpoints: tuple[str, ...]
    namespace: str = ETCD_NAMESPACE
    tls: EtcdTls | None = None
    user: EtcdUser | None = None


MetastorePlace: TypeAlias = InDirectory | OnEtcd


@asynccontextmanager
async def open_metastore(place: MetastorePlace, *, read_only: bool = False) -> AsyncIterator[Metastore]:
    """Read-only, a directory must hold a store already: NotFound if it does not, and nothing is made."""
    store: Metastore
    match place:
        case InDirectory(path):
            file = path / METASTORE_FILE
            if read_only and not file.exists():
                raise NotFound(f"no store in {path}: there is no {METASTORE_FILE}")
            store = await SqliteMetastore.open(file, SystemClock(), read_only=read_only)
        case OnEtcd(endpoints, namespace, tls, user):
            store = EtcdMetastore(endpoints, namespace=namespace, tls=tls, user=user)
    try:
        yield store
    finally:
        await store.close()
