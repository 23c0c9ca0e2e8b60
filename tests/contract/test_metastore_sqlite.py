"""What only the SQLite metastore must stand up to: several processes, kills, full disks, files that are not its own."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.sqlite import metastore as metastore_sqlite
from stelae.adapters.sqlite import schema as sqlite_schema
from stelae.adapters.sqlite.leases import LeaseWatcher
from stelae.adapters.sqlite.metastore import SqliteMetastore
from stelae.adapters.sqlite.tables import LeaseRow, lease_rows
from stelae.model.errors import (
    Corruption,
    DiskFailed,
    DiskFull,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    StelaeError,
    Unavailable,
    UnknownOutcome,
    UnsupportedFormat,
)
from stelae.ports.metastore import DeleteKey, KeyDeleted, KeyPut, LeaseId, PutKey, Revision
from stelae.sim.clock import SimClock
from tests.contract.metastores import PATIENCE_S, put, take

ROOT = Path(__file__).resolve().parents[2]
PROCESSES, TIMES = 4, 25


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.contract.metastore_process", str(path), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def use(path: Path, story: Callable[[SqliteMetastore], object], *, read_only: bool = False) -> None:
    async def main() -> None:
        store = await SqliteMetastore.open(path, SystemClock(), read_only=read_only)
        try:
            await story(store)  # type: ignore[misc]
        finally:
            await store.close()

    run(main())


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, PATIENCE_S))


def open_and_close(path: Path, *, read_only: bool = False) -> None:
    async def nothing(store: SqliteMetastore) -> None:
        await store.get("key")

    use(path, nothing, read_only=read_only)


def test_processes_count_exactly_while_another_watches(tmp_path: Path) -> None:
    path = tmp_path / "new" / "store.db"

    async def story(store: SqliteMetastore) -> None:
        running = [start(path, "count", f"p{number}", str(TIMES)) for number in range(PROCESSES)]
        batches = await take(store.watch("", Revision(1)), PROCESSES * TIMES)
        codes = [await asyncio.to_thread(process.wait) for process in running]
        for process in running:
            assert process.stdout is not None
            process.stdout.close()
        assert codes == [0] * PROCESSES
        assert [batch.revision for batch in batches] == list(range(2, PROCESSES * TIMES + 2))
        puts = [event.entry for batch in batches for event in batch.events if isinstance(event, KeyPut)]
        counted = [int(entry.value) for entry in puts if entry.key == "counter"]
        assert counted == list(range(1, PROCESSES * TIMES + 1))
        assert len((await store.range("p")).entries) == PROCESSES * TIMES

    use(path, story)


def test_whatever_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    begin = 0
    for kill_after in (1, 7, 2, 23, 3, 60):
        process = start(path, "write", str(begin))
        assert process.stdout is not None
        acked = [int(process.stdout.readline()) for _ in range(kill_after)]
        process.kill()
        acked += [int(line) for line in process.stdout.read().split("\n")[:-1]]
        process.wait()
        process.stdout.close()

        async def story(store: SqliteMetastore, last_acked: int = acked[-1]) -> None:
            nonlocal begin
            entries = (await store.range("key/")).entries
            last = await store.get("last")
            assert last is not None
            assert [int(entry.value) for entry in entries] == list(range(int(last.value) + 1))
            assert int(last.value) in (last_acked, last_acked + 1)
            begin = int(last.value) + 1

        use(path, story)
    assert begin >= 96


def test_child_of_a_fork_is_told_to_open_it_again(tmp_path: Path) -> None:
    process = start(tmp_path / "store.db", "fork")
    output, _ = process.communicate()
    assert output.split() == ["0", "True"]


def test_two_event_loops_of_one_process_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    seen: list[list[int]] = []

    def write_and_watch(name: str) -> None:
        async def story(store: SqliteMetastore) -> None:
            for number in range(20):
                await put(store, f"{name}/{number}")
            seen.append([batch.revision for batch in await take(store.watch("", Revision(1)), 40)])

        use(path, story)

    threads = [Thread(target=write_and_watch, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [list(range(2, 42))] * 2


def damage_header(path: Path) -> None:
    path.write_bytes(b"\xde\xad\xbe\xef" * 4 + path.read_bytes()[16:])


def damage_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)


def be_newer(path: Path) -> None:
    change(path, "PRAGMA user_version = 3")
    change(path, "UPDATE store SET sum = sum + 1")


def be_newer_in_its_header_alone(path: Path) -> None:
    change(path, "PRAGMA user_version = 3")


def lose_its_mark_of_whose_it_is(path: Path) -> None:
    change(path, "PRAGMA application_id = 1")


def be_of_another_program(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE theirs (x)")


def lose_a_table(path: Path) -> None:
    change(path, "DROP TABLE live")


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "spoil, error",
    [
        (damage_header, Corruption),
        (damage_pages, Corruption),
        (lose_a_table, Corruption),
        (be_newer, UnsupportedFormat),
        (be_newer_in_its_header_alone, Corruption),
        (lose_its_mark_of_whose_it_is, Corruption),
        (be_of_another_program, InvalidArgument),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_file_that_is_not_ours_to_read_is_named_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], None], error: type[StelaeError], read_only: bool
) -> None:
    path = tmp_path / "store.db"

    async def fill(store: SqliteMetastore) -> None:
        for number in range(50):
            await put(store, f"key-{number}", bytes(1000))

    use(path, fill)
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(error, match=r"store\.db"):
        open_and_close(path, read_only=read_only)
    assert path.read_bytes() == before


def test_read_only_reads_and_watches_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def read(store: SqliteMetastore) -> None:
        assert await store.get("key") is not None
        for call in (
            store.txn([], [PutKey("key", b"2")]),
            store.grant(1),
            store.keep_alive(LeaseId(1)),
            store.revoke(LeaseId(1)),
            store.compact(Revision(1)),
        ):
            with pytest.raises(PermissionDenied, match="read-only"):
                await call
        assert not (await store.txn([], [])).revision > 2
        writer = await SqliteMetastore.open(path, SystemClock())
        made = await put(writer, "key", b"3")
        assert (await anext(store.watch("key", made))).revision == made
        await writer.close()

    async def write(store: SqliteMetastore) -> None:
        await put(store, "key")

    with pytest.raises(NotFound):
        open_and_close(path, read_only=True)
    assert not path.exists()
    use(path, write)
    use(path, read, read_only=True)


def test_lock_held_too_long_is_unavailable_and_the_change_never_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_schema, "LOCK_WAIT_S", 0.05)
    path = tmp_path / "store.db"

    async def story(store: SqliteMetastore) -> None:
        before = await put(store, "key", b"1")
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="another process held the lock") as caught:
            await store.txn([], [PutKey("key", b"2")])
        assert not isinstance(caught.value, UnknownOutcome)
        entry = await store.get("key")
        assert entry is not None
        assert entry.value == b"1"
        holder.execute("ROLLBACK")
        holder.close()
        assert await put(store, "key", b"3") == before + 1

    use(path, story)


def test_more_calls_than_can_wait_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastore_sqlite, "QUEUED_MAX", 4)
    path = tmp_path / "store.db"

    async def story(store: SqliteMetastore) -> None:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        calls = [asyncio.ensure_future(put(store, f"key-{number}")) for number in range(20)]
        while not any(call.done() for call in calls):
            await asyncio.sleep(0)
        holder.execute("ROLLBACK")
        holder.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [result for result in results if isinstance(result, Overloaded)]
        assert 0 < len(refused) <= 15
        assert (await store.range("")).revision == 1 + 20 - len(refused)

    use(path, story)


def test_full_disk_stops_writes_only_and_only_while_it_is_full(tmp_path: Path) -> None:
    async def story(store: SqliteMetastore) -> None:
        revision = await put(store, "key", b"1")
        writer = store._writer()
        pages = await writer.write(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        await writer.read(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone()[0])
        with pytest.raises(DiskFull, match=r"store\.db") as caught:
            await store.txn([], [PutKey("key", bytes(100_000))])
        assert not isinstance(caught.value, UnknownOutcome)
        entry = await store.get("key")
        assert entry is not None
        assert entry.value == b"1"
        await writer.read(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone()[0])
        assert await put(store, "key", bytes(100_000)) == revision + 1

    use(tmp_path / "store.db", story)


def failing(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "step, code, expected",
    [
        ("COMMIT", sqlite3.SQLITE_IOERR_FSYNC, UnknownOutcome),
        ("COMMIT", sqlite3.SQLITE_FULL, DiskFull),
        ("BEGIN IMMEDIATE", sqlite3.SQLITE_IOERR_READ, DiskFailed),
        ("BEGIN IMMEDIATE", sqlite3.SQLITE_READONLY, PermissionDenied),
    ],
)
def test_failed_device_leaves_only_a_commit_in_doubt(step: str, code: int, expected: type[StelaeError]) -> None:
    class Device(sqlite3.Connection):
        def execute(self, statement: str, *arguments: object) -> sqlite3.Cursor:
            if statement == step:
                raise failing(code)
            return super().execute(statement)

    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Device)
    with pytest.raises(expected) as caught, sqlite_schema.writing(connection, "store.db"):
        pass
    assert type(caught.value) is expected
    assert not connection.in_transaction
    connection.close()


def test_compaction_gives_its_rows_back_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stelae.adapters.sqlite.tables.COMPACT_ROWS_MAX", 7)

    async def story(store: SqliteMetastore) -> None:
        for number in range(40):
            await store.txn([], [PutKey("key", b"%d" % number), PutKey(f"key-{number}", b"")])
            await store.txn([], [DeleteKey(f"key-{number}")])
        await store.compact((await store.range("")).revision)
        rows = await store._reader.read(lambda db: db.execute("SELECT count(*) FROM change").fetchone()[0])
        left = await store._reader.read(lambda db: db.execute("SELECT count(*) FROM superseded").fetchone()[0])
        assert (rows, left) == (1, 0)
        assert [entry.value for entry in (await store.range("")).entries] == [b"39"]

    use(tmp_path / "store.db", story)


def row(renewals: int = 0, elapsed_ms: int = 0) -> LeaseRow:
    return LeaseRow(LeaseId(1), 10_000, renewals, elapsed_ms)


def test_lease_runs_out_when_one_process_saw_its_whole_ttl_pass() -> None:
    clock = SimClock()
    leases = LeaseWatcher(clock)
    leases.see_all([row()])
    clock.advance(9.999)
    leases.see_all([row()])
    assert leases.run_out() == []
    assert leases.until_next_s() == 0.001
    clock.advance(0.001, wall_seconds=-3600)
    assert leases.run_out() == [row()]
    leases.see_all([row(renewals=1)])
    assert leases.run_out() == []
    clock.advance(10)
    assert leases.run_out() == [row(renewals=1)]
    leases.see_all([])
    assert leases.run_out() == []
    assert leases.until_next_s() is None


def test_late_news_of_an_older_renewal_change_nothing() -> None:
    clock = SimClock()
    leases = LeaseWatcher(clock)
    leases.see(row(renewals=5))
    clock.advance(4)
    leases.see(row(renewals=4))
    assert leases.ages() == [(row(renewals=5), 4000)]


def test_time_seen_by_others_counts_once(tmp_path: Path) -> None:
    """Each of two stores sees six of ten seconds pass, at the same time: four are left for the next."""
    path = tmp_path / "store.db"

    async def main() -> None:
        clock = SimClock()
        stores = [await SqliteMetastore.open(path, clock) for _ in range(2)]
        lease = await stores[0].grant(10)
        revision = await put(stores[0], "key", b"", lease)
        await anext(stores[1].watch("key", revision))
        while not stores[1]._leases.ages():
            await asyncio.sleep(0)
        clock.advance(6)
        for store in stores:
            await store.close()
        next_clock = SimClock(wall_ms=0)
        store = await SqliteMetastore.open(path, next_clock)
        while not store._leases.ages():
            await asyncio.sleep(0)
        next_clock.advance(3.9)
        assert store._leases.run_out() == []
        next_clock.advance(0.2)
        batch = await anext(store.watch("key", Revision(revision + 1)))
        assert batch.events == (KeyDeleted("key"),)
        await store.close()

    run(main())


def test_lease_renewed_by_another_process_is_not_taken(tmp_path: Path) -> None:
    """One that saw the ttl pass, and missed the renewal, asks once more before it takes the lease."""

    async def main() -> None:
        late, right = SimClock(), SimClock()
        looks = await SqliteMetastore.open(tmp_path / "store.db", late)
        keeps = await SqliteMetastore.open(tmp_path / "store.db", right)
        looks._poller.cancel()
        lease = await looks.grant(10)
        revision = await put(looks, "key", b"", lease)
        for number in range(1, 6):
            late.advance(100)
            await keeps.keep_alive(lease)
            assert [row.renewals for row in looks._leases.run_out()] == [number - 1]
            await looks._end_leases()
            assert (await looks.range("")).revision == revision
            looks._leases.see_all(await looks._reader.read(lease_rows))
            assert looks._leases.run_out() == []
        late.advance(10)
        await looks._end_leases()
        assert (await keeps.range("")).entries == ()
        await looks.close()
        await keeps.close()

    run(main())
