"""Opens the metastore of a store: SQLite in its directory, or etcd."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stelae.adapters.clock import SystemClock
from stelae.launch.copies import copy_files, name_original
from stelae.model.errors import Corruption, InvalidArgument, NotFound, PermissionDenied, StelaeError

if TYPE_CHECKING:
    from stelae.adapters.etcd.cluster import EtcdTls, EtcdUser
    from stelae.adapters.sqlite.metastore import SqliteMetastore
    from stelae.ports.metastore import Metastore

METASTORE_FILE = "metastore.db"
CLUSTER_FILE = "cluster.json"
"""In the directory of a whole cluster (`machine.plan`), which is no store's."""
MARKS = "*.mark"
"""How far the metastore and the log had come (`adapters.marks`). Copied before what they speak of, they never say too
much, even if somebody writes meanwhile."""
ETCD_NAMESPACE = "stelae/"
LOG_DIRECTORY = "log"
SEGMENT_SUFFIX = ".log"
_FRAGMENTS = "fragments"


# Dataclasses, since the command line knows them before it needs msgspec.
@dataclass(frozen=True, slots=True)
class InDirectory:
    """In the directory of an embedded store."""

    path: Path


@dataclass(frozen=True, slots=True)
class OnEtcd:
    """A cluster's. Several stores can share one etcd under namespaces of their own."""

    endpoints: tuple[str, ...]
    namespace: str = ETCD_NAMESPACE
    tls: EtcdTls | None = None
    user: EtcdUser | None = None


MetastorePlace: TypeAlias = InDirectory | OnEtcd

SERVED = "sqlite:///DIR (the processes of one machine), or etcd://HOST:PORT[,HOST:PORT...][/NAMESPACE]"


def metastore_place(url: str) -> MetastorePlace:
    """Where a cluster's metastore is: InvalidArgument of what is no such URL."""
    scheme, mark, rest = url.partition("://")
    if mark and scheme == "sqlite" and rest.startswith("/") and rest.strip("/"):
        return InDirectory(Path(rest))
    if mark and scheme == "etcd":
        hosts, _, namespace = rest.partition("/")
        endpoints = tuple(host.strip() for host in hosts.split(",") if host.strip())
        if endpoints:
            return OnEtcd(endpoints, f"{namespace.strip('/')}/" if namespace.strip("/") else ETCD_NAMESPACE)
    raise InvalidArgument(f"{url!r} is not where a metastore is: write {SERVED}")


def has_metastore(directory: Path) -> bool:
    """Whether there is a store. Corruption if there was one, and its data has lost its metastore: nobody may make
    another in its place. InvalidArgument if that can be no store's directory."""
    from stelae.adapters.blobs.urls import store_directory

    directory = store_directory(directory)
    file = directory / METASTORE_FILE
    if file.exists():
        return True
    if (directory / CLUSTER_FILE).exists():
        raise InvalidArgument(
            f"{directory} is the directory of a cluster: connect to it with stelae.connect; `stelae up --dir "
            f"{directory} --status` says where it serves"
        )
    found = next((f"{what} {path}" for what, path in _data_of(directory)), None)
    if found is not None:
        raise Corruption(
            f"is missing, and the {found} is there: bring it back, with its -wal if there is one. The data was left as "
            "it is",
            str(file),
        )
    return False


def _data_of(directory: Path) -> Iterator[tuple[str, Path]]:
    for path in (directory / LOG_DIRECTORY).glob(f"{'[0-9a-f]' * 16}{SEGMENT_SUFFIX}"):
        if path.stat().st_size:
            yield "log", path
    for path in (directory / _FRAGMENTS).glob("*/*.parquet"):
        yield "fragment", path


@asynccontextmanager
async def open_metastore(place: MetastorePlace, *, read_only: bool = False) -> AsyncIterator[Metastore]:
    """Read-only, a directory must hold a store already: NotFound if it does not, and nothing is made."""
    store: Metastore
    async with AsyncExitStack() as held:
        match place:
            case InDirectory(path) if read_only:
                store = await _only_read(path, held)
            case InDirectory(path):
                from stelae.adapters.sqlite.metastore import SqliteMetastore

                store = await SqliteMetastore.open(path / METASTORE_FILE, SystemClock())
            case OnEtcd(endpoints, namespace, tls, user):
                from stelae.adapters.etcd.metastore import EtcdMetastore

                store = EtcdMetastore(endpoints, namespace=namespace, tls=tls, user=user)
        held.push_async_callback(store.close)
        yield store


async def _only_read(path: Path, held: AsyncExitStack) -> SqliteMetastore:
    """SQLite has to write beside its file even to read it: where nobody may write, a copy is read. So it is of a file
    of an older layout, which has to be carried forward."""
    from stelae.adapters.sqlite.metastore import SqliteMetastore
    from stelae.adapters.sqlite.schema import OutdatedLayout

    if not has_metastore(path):
        raise NotFound(f"no store in {path}: there is no {METASTORE_FILE}")
    try:
        return await SqliteMetastore.open(path / METASTORE_FILE, SystemClock(), read_only=True)
    except (PermissionDenied, OutdatedLayout):
        copy = copy_files(path, MARKS, f"{METASTORE_FILE}*")
    held.callback(shutil.rmtree, copy, ignore_errors=True)
    try:
        return await _read_copy(copy / METASTORE_FILE)
    except StelaeError as error:
        raise name_original(path, copy, error) from error.__cause__


async def _read_copy(file: Path) -> SqliteMetastore:
    from stelae.adapters.sqlite.metastore import SqliteMetastore
    from stelae.adapters.sqlite.schema import OutdatedLayout

    try:
        return await SqliteMetastore.open(file, SystemClock(), read_only=True)
    except OutdatedLayout:
        await (await SqliteMetastore.open(file, SystemClock())).close()
        return await SqliteMetastore.open(file, SystemClock(), read_only=True)
