"""Stelae for event loops: the same database, awaited.

async with stelae.aio.open("data") as db:
    users = await db.table("users")
    await users.put({"id": "ann", "name": "Ann"})
    async for row in users.scan(prefix="a"):
        ...
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import stelae
from stelae.client.api.aio.batch import AsyncBatch
from stelae.client.api.aio.database import AsyncDatabase, Opening
from stelae.client.api.aio.scan import AsyncScan
from stelae.client.api.aio.table import AsyncTable
from stelae.client.api.database import session_of
from stelae.client.calls.retries import TIMEOUT_S_DEFAULT
from stelae.client.calls.session import Session
from stelae.model.public import public

__all__ = ["AsyncBatch", "AsyncDatabase", "AsyncScan", "AsyncTable", "connect", "open"]

_THREADS = 4
_QUEUED_MAX = 10_000


@public("open", "stelae.aio")
def open_async(
    path: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    memory_bytes: int | None = None,
    read_only: bool = False,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    create: bool = True,
) -> Opening:
    """Open the database in a directory, for the running event loop: await it, or use it with `async with`.

        db = await stelae.aio.open("data")

    Parameters are those of `stelae.open`.
    """

    async def opened() -> AsyncDatabase:
        database = await asyncio.to_thread(
            stelae.open,
            path,
            store=store,
            memory_bytes=memory_bytes,
            read_only=read_only,
            timeout_s=timeout_s,
            create=create,
        )
        return _asynchronous(session_of(database))

    return Opening(opened)


@public("connect", "stelae.aio")
def connect_async(
    masters: str,
    *,
    token: str | None = None,
    tls: Mapping[str, str | os.PathLike[str]] | bool | None = None,
    timeout_s: float = TIMEOUT_S_DEFAULT,
) -> Opening:
    """Connect to a cluster, for the running event loop: see `stelae.connect`."""

    async def opened() -> AsyncDatabase:
        database = await asyncio.to_thread(stelae.connect, masters, token=token, tls=tls, timeout_s=timeout_s)
        return _asynchronous(session_of(database))

    return Opening(opened)


def _asynchronous(session: Session) -> AsyncDatabase:
    from stelae.adapters.executor import ThreadExecutor

    return AsyncDatabase(session, ThreadExecutor(_THREADS, _QUEUED_MAX))


open = open_async  # noqa: A001 - the module is where this name belongs
connect = connect_async
