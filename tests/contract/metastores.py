"""Every metastore behind one fixture, and how an async test runs on each: in real time, or simulated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.etcd.metastore import EtcdMetastore
from stelae.adapters.sqlite.metastore import SqliteMetastore
from stelae.ports.metastore import LeaseId, Metastore, PutKey, Revision, WatchBatch
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import SimMetastoreServer
from stelae.sim.rng import SimRng
from tests.effort import HANG_S
from tests.etcd import running_etcd

T = TypeVar("T")
PATIENCE_S = HANG_S

_numbers = count()


class World:
    """One new, empty metastore, and connections to it, each as another process would have; closed at the end."""

    def __init__(self, connect: Callable[[], Awaitable[Metastore]], at_end: AsyncExitStack) -> None:
        self._connect = connect
        self._at_end = at_end

    async def open(self) -> Metastore:
        store = await self._connect()
        self._at_end.push_async_callback(store.close)
        return store


Story = Callable[[World], Coroutine[Any, Any, None]]


class Backend(Protocol):
    def run(self, story: Story) -> None:
        """Tell the story on a new metastore."""
        ...


class SimBackend:
    def run(self, story: Story) -> None:
        async def main(loop: SimLoop) -> None:
            server = SimMetastoreServer(loop, SimRng(11))

            async def connect() -> Metastore:
                return server.client(f"client-{next(_numbers)}")

            await _tell(story, connect)

        simulate(main, seed=11)


class SqliteBackend:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def run(self, story: Story) -> None:
        path = self._directory / f"{next(_numbers)}.db"
        asyncio.run(_tell(story, lambda: SqliteMetastore.open(path, SystemClock())))


class EtcdBackend:
    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints

    def run(self, story: Story) -> None:
        namespace = f"story-{next(_numbers)}/"

        async def connect() -> Metastore:
            return EtcdMetastore(self._endpoints, namespace=namespace)

        asyncio.run(_tell(story, connect))


async def _tell(story: Story, connect: Callable[[], Awaitable[Metastore]]) -> None:
    async with AsyncExitStack() as at_end, asyncio.timeout(PATIENCE_S):
        await story(World(connect, at_end))


@pytest.fixture(scope="module", params=["sim", "sqlite", "etcd", "etcd-cluster"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    match request.param:
        case "sim":
            yield SimBackend()
        case "sqlite":
            yield SqliteBackend(tmp_path_factory.mktemp("sqlite"))
        case _:
            members = 1 if request.param == "etcd" else 3
            with running_etcd(tmp_path_factory.mktemp("etcd"), members) as servers:
                yield EtcdBackend([server.endpoint for server in servers])


def on_every_metastore(story: Story) -> Callable[[Backend], None]:
    """The async story as a test that pytest knows: once for each backend."""

    def test(backend: Backend) -> None:
        backend.run(story)

    test.__name__ = test.__qualname__ = story.__name__
    test.__module__ = story.__module__
    return test


async def put(store: Metastore, key: str, value: bytes = b"", lease: LeaseId | None = None) -> Revision:
    outcome = await store.txn([], [PutKey(key, value, lease)])
    assert outcome.succeeded
    return outcome.revision


async def take(batches: AsyncIterator[WatchBatch], number: int) -> list[WatchBatch]:
    return [await anext(batches) for _ in range(number)]
