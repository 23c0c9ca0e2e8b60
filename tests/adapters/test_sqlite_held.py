"""A metastore that is opened held: what is written to it is seen there, and in the file only once it is settled."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.sqlite.metastore import SqliteMetastore
from stelae.model.errors import InvalidArgument
from stelae.ports.metastore import IsAbsent, PutKey, Revision
from tests.golden.samples import HERE

FILE = "metastore.db"


def files_of(path: Path) -> dict[str, bytes]:
    """SQLite leaves an empty log, and its shared memory, where one only looked."""
    found = {file.name: file.read_bytes() for file in path.iterdir() if not file.name.endswith("-shm")}
    return {name: data for name, data in found.items() if data}


async def fill(path: Path, keys: str) -> None:
    store = await SqliteMetastore.open(path, SystemClock())
    for key in keys:
        await store.txn([], [PutKey(key, b"1")])
    await store.close()


def kill_with_a_log(path: Path) -> None:
    """The newest commits are in the log of a process that was killed."""
    child = os.fork()
    if child == 0:

        async def write() -> None:
            store = await SqliteMetastore.open(path / FILE, SystemClock())
            await store.txn([], [PutKey("b", b"2")])
            os._exit(0)

        asyncio.run(write())
    os.waitpid(child, 0)
    assert (path / f"{FILE}-wal").stat().st_size


async def write_held(path: Path) -> SqliteMetastore:
    """All kinds of writes, each of them seen."""
    store = await SqliteMetastore.open(path, SystemClock(), held=True)
    lease = await store.grant(1000)
    assert (await store.txn([IsAbsent("new")], [PutKey("new", b"3", lease)])).succeeded
    assert not (await store.txn([IsAbsent("new")], [PutKey("new", b"4")])).succeeded
    with pytest.raises(InvalidArgument):
        await store.txn([], [PutKey("x", b""), PutKey("x", b"")])
    found = await store.range("")
    assert [entry.key for entry in found.entries][-1] == "new"
    batch = await anext(store.watch("", found.revision))
    assert batch.revision == found.revision
    await store.keep_alive(lease)
    return store


@pytest.mark.parametrize("how", ["closed", "killed", "of layout 1"])
def test_until_it_is_settled_the_file_stays_as_it_was(tmp_path: Path, how: str) -> None:
    path = tmp_path / FILE
    if how == "of layout 1":
        shutil.copyfile(HERE / "v1" / FILE, path)
    else:
        asyncio.run(fill(path, "a"))
    if how == "killed":
        kill_with_a_log(tmp_path)
    before = files_of(tmp_path)

    async def leave() -> None:
        await (await write_held(path)).close()

    asyncio.run(leave())
    assert files_of(tmp_path) == before

    async def settle() -> Revision:
        store = await write_held(path)
        await store.settle()
        await store.txn([], [PutKey("z", b"5")])
        found = await store.range("")
        await store.close()
        return found.revision

    async def look() -> tuple[Revision, list[str]]:
        store = await SqliteMetastore.open(path, SystemClock())
        found = await store.range("")
        await store.close()
        return found.revision, [entry.key for entry in found.entries]

    revision = asyncio.run(settle())
    newest, keys = asyncio.run(look())
    assert newest == revision
    assert keys[-2:] == ["new", "z"]
    assert ("b" in keys) == (how == "killed")


def test_closed_before_it_looked_for_changes_the_file_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is busy with other work, that is."""

    async def never(_: SqliteMetastore) -> None:
        await asyncio.Event().wait()

    path = tmp_path / FILE
    asyncio.run(fill(path, "a"))
    kill_with_a_log(tmp_path)
    before = files_of(tmp_path)
    monkeypatch.setattr(SqliteMetastore, "_poll", never)

    async def open_and_close() -> None:
        await (await SqliteMetastore.open(path, SystemClock(), held=True)).close()

    asyncio.run(open_and_close())
    assert files_of(tmp_path) == before
