"""An SQLite metastore with a byte flipped, and one of an older layout."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.sqlite.metastore import SqliteMetastore
from stelae.launch.metastores import InDirectory, open_metastore
from stelae.model.errors import Corruption
from stelae.ports.metastore import DeleteKey, Entry, LeaseExpired, LeaseId, PutKey, Revision
from tests.golden.samples import HERE

PLACES = 2**62 if os.environ.get("STELAE_PROFILE") == "soak" else 40
FILE = "store.db"


async def fill(store: SqliteMetastore) -> None:
    lease = await store.grant(1000)
    for number in range(12):
        await store.txn([], [PutKey(f"key/{number:02}", b"%d" % number * 40), PutKey("last", b"%d" % number)])
    await store.txn([], [DeleteKey("key/07"), PutKey("leased", b"", lease)])
    await store.keep_alive(lease)
    await store.compact(Revision(5))


async def read(store: SqliteMetastore) -> tuple[Entry, ...]:
    """All there is, as it is and as it was."""
    found = await store.range("")
    assert (await store.range("", revision=found.revision)).entries == found.entries
    return found.entries


def use(path: Path, job: Callable[[SqliteMetastore], Awaitable[object]]) -> object:
    async def main() -> object:
        store = await SqliteMetastore.open(path, SystemClock())
        try:
            return await job(store)
        finally:
            await store.close()

    return asyncio.run(main())


def copy(source: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        if not file.name.endswith("-shm"):
            shutil.copyfile(file, target / file.name)
    return target


@pytest.fixture(scope="module", params=["closed", "killed"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, left = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp(request.param)

    async def fill_and_leave(store: SqliteMetastore) -> None:
        await fill(store)
        if request.param == "killed":
            copy(made, left)  # what a process leaves that ends here

    use(made / FILE, fill_and_leave)
    return left if request.param == "killed" else copy(made, left)


def contents(path: Path) -> dict[str, bytes]:
    found = {file.name: file.read_bytes() for file in path.iterdir() if not file.name.endswith("-shm")}
    return {name: data for name, data in found.items() if data}


def test_a_flipped_byte_is_found_or_means_nothing(whole: Path, tmp_path: Path) -> None:
    expected = use(copy(whole, tmp_path / "whole") / FILE, read)
    corrupt = 0
    for name, data in contents(whole).items():
        step = max(1, len(data) // PLACES)
        for at in range(step // 2, len(data), step):
            damaged = copy(whole, tmp_path / f"{name}-{at}")
            (damaged / name).write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            before = contents(damaged)
            try:
                assert use(damaged / FILE, read) == expected, f"{name}, byte {at}"
            except Corruption as error:
                assert FILE in str(error)
                assert contents(damaged) == before, f"{name}, byte {at}: {error}"
                corrupt += 1
            except Exception as error:
                raise AssertionError(f"{name}, byte {at}: {error!r}") from error
            shutil.rmtree(damaged)
    assert corrupt


def test_each_row_that_is_another_is_named(tmp_path: Path) -> None:
    use(tmp_path / FILE, fill)
    data = (tmp_path / FILE).read_bytes()
    at = data.index(b"11" * 40)
    (tmp_path / FILE).write_bytes(data[:at] + b"3" + data[at + 1 :])
    with pytest.raises(Corruption, match=r"store\.db: key 'key/11' does not have its checksum"):
        use(tmp_path / FILE, read)


OLDER = [
    Entry("a/1", b"one again", Revision(2), Revision(3), 2),
    Entry("a/3", "käse".encode(), Revision(6), Revision(6), 1),
    Entry("big", bytes(range(256)) * 8, Revision(6), Revision(6), 1),
    Entry("leased", b"x", Revision(4), Revision(4), 1, LeaseId(1)),
]


def test_a_file_of_layout_1_is_carried_forward(tmp_path: Path) -> None:
    path = tmp_path / FILE
    shutil.copyfile(HERE / "v1" / "metastore.db", path)

    async def look(store: SqliteMetastore) -> None:
        assert list(await read(store)) == OLDER
        assert (await store.range("", revision=Revision(4))).entries[1].value == b"two"
        batches = store.watch("", Revision(4))
        assert [(await anext(batches)).revision for _ in range(3)] == [4, 5, 6]
        assert await store.keep_alive(LeaseId(1)) == 86400
        with pytest.raises(LeaseExpired):
            await store.keep_alive(LeaseId(2))
        assert await store.grant(1) > 2
        await store.txn([], [PutKey("new", b"")])

    use(path, look)

    async def look_again(store: SqliteMetastore) -> None:
        assert [entry.key for entry in await read(store)] == ["a/1", "a/3", "big", "leased", "new"]

    use(path, look_again)


def test_a_file_of_layout_1_that_is_only_read_is_not_touched(tmp_path: Path) -> None:
    shutil.copyfile(HERE / "v1" / "metastore.db", tmp_path / "metastore.db")

    async def read_only() -> list[Entry]:
        async with open_metastore(InDirectory(tmp_path), read_only=True) as store:
            return list((await store.range("")).entries)

    assert asyncio.run(read_only()) == OLDER
    assert (tmp_path / "metastore.db").read_bytes() == (HERE / "v1" / "metastore.db").read_bytes()


def test_a_damaged_file_of_layout_1_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / FILE
    data = (HERE / "v1" / "metastore.db").read_bytes()
    at = data.index(b"CREATE TABLE live") + len("CREATE TABLE ")
    path.write_bytes(data[:at] + b"L" + data[at + 1 :])
    before = path.read_bytes()
    with pytest.raises(Corruption):
        use(path, read)
    assert path.read_bytes() == before
