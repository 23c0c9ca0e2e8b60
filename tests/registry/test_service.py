"""The catalog service in a world without faults: what it promises, and what it says when it cannot go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest
from msgspec.structs import replace
from rpds import HashTrieMap

from stelae.catalog.commands.tables import CreateTable, DropTable, SetProperty, TableName
from stelae.catalog.entries import DefaultZoneSet, Entry, TableDropped, Update
from stelae.catalog.objects import ZoneId
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.catalog.value import Catalog, CatalogVersion, empty_catalog
from stelae.model.errors import (
    AlreadyExists,
    ClockTooFarAhead,
    Closed,
    Corruption,
    InvalidArgument,
    NotFound,
    SnapshotTooOld,
    StelaeError,
    Unavailable,
    UnknownOutcome,
    UnsupportedFormat,
)
from stelae.model.hybrid import HybridClock, pack
from stelae.model.ids import TableId, Txn
from stelae.ports.metastore import (
    TXN_BYTES_MAX,
    Change,
    Compare,
    DeleteKey,
    LeaseId,
    Metastore,
    ModRevisionIs,
    PutKey,
    Revision,
    TxnOutcome,
)
from stelae.registry.catalog import update_log as log
from stelae.registry.catalog import version_pins
from stelae.registry.catalog.compaction import CatalogCompaction
from stelae.registry.catalog.reader import CatalogReader
from stelae.registry.catalog.service import CatalogService
from stelae.registry.catalog.settings import CatalogSettings
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.loop_clock import SkewedClock
from stelae.sim.metastore import SimMetastoreServer
from stelae.sim.rng import SimRng
from tests.catalog.samples import after, create, users_schema

T = TypeVar("T")


class Cluster:
    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.server = SimMetastoreServer(loop, SimRng(1))
        self.store = self.server.client("test")
        self.clock = SkewedClock(loop, 1_000_000)
        self._seed = 10

    async def service(self, **settings: object) -> CatalogService:
        self._seed += 1
        time = HybridClock(self.clock.wall_ms)
        service = CatalogService(
            self.server.client(f"process-{self._seed}"),
            self.clock,
            time,
            SimRng(self._seed),
            CatalogSettings(**{"author": "me", **settings}),  # type: ignore[arg-type]
        )
        await service.start()
        return service


def run(main: Callable[[Cluster], Awaitable[T]]) -> T:
    async def world(loop: SimLoop) -> T:
        return await main(Cluster(loop))

    return simulate(world, 1)


def test_a_command_makes_a_version_that_everybody_sees() -> None:
    async def main(cluster: Cluster) -> None:
        one, other = await cluster.service(), await cluster.service()
        made = await one.execute(create("a"), create("b"))
        assert made.version == one.latest.version == 1
        assert (await other.wait_ready(made.version)) == made
        assert (await other.catalog_at(other.time.tick())) == made
        assert one.catalog(CatalogVersion(0)).version == 0
        third = await cluster.service()
        assert third.latest == made
        assert third.catalog(CatalogVersion(0)) == one.catalog(CatalogVersion(0))

    run(main)


def test_refusals_are_judged_against_what_anybody_was_told() -> None:
    async def main(cluster: Cluster) -> None:
        one, other = await cluster.service(), await cluster.service()
        await one.execute(create("a"))
        with pytest.raises(AlreadyExists, match="table 'a' exists already"):
            await other.execute(create("a"))
        assert (await other.execute(CreateTable(TableName.parse("a"), users_schema(), if_not_exists=True))).version == 1

    run(main)


@pytest.mark.parametrize("settings", [{}, {"delay_ms": 500, "skew_ms": 200}])
def test_execute_returns_when_the_version_is_active_everywhere(settings: dict[str, int]) -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service(**settings)
        before_ms = cluster.clock.wall_ms()
        made = await service.execute(create("a"))
        waited_ms = cluster.clock.wall_ms() - before_ms
        assert waited_ms >= sum(settings.values())
        assert made.activation >= pack(before_ms + settings.get("delay_ms", 0))
        assert service.time.tick() > made.activation
        with pytest.raises(AlreadyExists):
            await service.execute(create("a"))

    run(main)


def test_a_refusal_waits_until_what_it_was_judged_against_is_active() -> None:
    async def main(cluster: Cluster) -> None:
        one, other = await cluster.service(delay_ms=5_000), await cluster.service(delay_ms=5_000)
        making = asyncio.create_task(one.execute(create("a")))
        await other.wait_ready(CatalogVersion(1))
        started = cluster.loop.time()
        with pytest.raises(AlreadyExists):
            await other.execute(create("a"))
        assert cluster.loop.time() - started > 4
        await making

    run(main)


def test_the_catalog_of_a_time_is_the_one_active_then() -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service()
        made = []
        for name in "abc":
            await asyncio.sleep(1)
            made.append(await service.execute(create(name)))
        for catalog in made:
            assert await service.catalog_at(catalog.activation) == catalog
            assert (await service.catalog_at(Txn(catalog.activation - 1))).version == catalog.version - 1
        with pytest.raises(ClockTooFarAhead):
            await service.catalog_at(pack(cluster.clock.wall_ms() + 10_000_000))

    run(main)


def test_what_is_closed_stays_closed() -> None:
    """A reader that has asked for a time keeps every later command from becoming active at or before it."""

    async def main(cluster: Cluster) -> None:
        reader, writer = await cluster.service(), await cluster.service()
        ahead = Txn(reader.time.tick() + (800 << 16))
        seen = await reader.catalog_at(ahead)
        made = await writer.execute(create("a"))
        assert made.activation > ahead
        assert await reader.catalog_at(ahead) == seen

    run(main)


def test_versions_come_in_order_each_once() -> None:
    async def main(cluster: Cluster) -> None:
        service, writer = await cluster.service(), await cluster.service()
        made = [await writer.execute(create("a"), create("b")), await writer.execute(DropTable(TableName.parse("a")))]
        await service.wait_ready(CatalogVersion(2))
        assert [service.catalog(CatalogVersion(version)) for version in (1, 2)] == made

    run(main)


def test_versions_that_are_not_there_yet_or_any_more() -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service()
        for name in "abcd":
            await service.execute(create(name))
        with pytest.raises(NotFound, match="version 9 is not known yet; the newest is 4"):
            service.catalog(CatalogVersion(9))
        assert await service.compact(CatalogVersion(3)) is None  # the service itself still holds version 0
        late = await cluster.service()
        await service.close()
        assert await late.compact(CatalogVersion(3)) == 3
        await late.wait_ready(CatalogVersion(4))
        while late.earliest.version < 3:
            await asyncio.sleep(0.1)
        with pytest.raises(SnapshotTooOld, match="version 2 was compacted away; the oldest kept is 3"):
            late.catalog(CatalogVersion(2))
        with pytest.raises(SnapshotTooOld, match="compacted away"):
            await late.catalog_at(Txn(5))
        fresh = await cluster.service()
        assert fresh.latest == late.latest
        assert fresh.earliest.version == 3
        assert (await cluster.store.range(log.UPDATE_PREFIX)).entries[0].key == log.update_key(4)

    run(main)


def test_a_pinned_version_stays_until_it_is_let_go() -> None:
    async def main(cluster: Cluster) -> None:
        early = await cluster.service()
        for name in "abc":
            await early.execute(create(name))
        reader = await cluster.service()
        await early.close()
        async with reader.pins.pin(CatalogVersion(2)):
            assert await reader.compact() == 2
            assert reader.catalog(CatalogVersion(2)).version == 2
        assert await reader.compact() == 3
        with pytest.raises(SnapshotTooOld, match="version 1 was compacted away"):
            async with reader.pins.pin(CatalogVersion(1)):
                pass

    run(main)


def test_a_process_that_dies_holds_back_compaction_only_as_long_as_its_lease() -> None:
    async def main(cluster: Cluster) -> None:
        dying: list[CatalogService] = []

        async def process() -> None:
            dying.append(await cluster.service(lease_s=10.0))
            await asyncio.sleep(10_000)

        held = cluster.loop.spawn("dying", process())
        while not dying:
            await asyncio.sleep(0.1)
        writer = await cluster.service()
        await writer.execute(create("a"))
        held.crash()
        late = await cluster.service()
        await writer.close()
        assert await late.compact() is None
        await asyncio.sleep(30)
        assert await late.compact() == 1

    run(main)


def test_old_versions_are_replaced_by_snapshots_as_they_come() -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service(snapshot_every=100)
        for number in range(250):
            await service.execute(SetProperty(TableName.parse("a"), "comment", str(number)) if number else create("a"))
        await asyncio.sleep(10)
        head = await log.read_head(cluster.store)
        assert head.version == 250
        assert head.oldest >= 128
        chunks = await log.chunk_prefixes(cluster.store, log.SNAPSHOT_CHUNKS)
        assert len(chunks) == 1, "chunks of replaced snapshots are left"
        fresh = await cluster.service()
        assert fresh.latest == service.latest

    run(main)


def test_pieces_of_what_another_has_made_or_compacted_by_then_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "INLINE_BYTES_MAX", 10)
    monkeypatch.setattr(version_pins, "PROGRESS_STEP", 1)

    async def pieces(cluster: Cluster) -> list[str]:
        kinds = (log.UPDATE_CHUNKS, log.SNAPSHOT_CHUNKS)
        return [prefix for kind in kinds for prefix in await log.chunk_prefixes(cluster.store, kind)]

    async def main(cluster: Cluster) -> None:
        service = await cluster.service()
        made = await service.execute(create("a"))
        before = await pieces(cluster)
        update = Update(made.version, Txn(made.activation + 1), b"%016d" % 1, "me", ())
        assert await log.encode_update(cluster.store, update, b"late") is None
        compaction = CatalogCompaction(cluster.store, SimRng(1), service.pins, service.catalog)
        assert await compaction._compact_announced(made.version, ModRevisionIs(log.COMPACTING_KEY, Revision(1))) is None
        assert await pieces(cluster) == before
        following = replace(update, version=CatalogVersion(made.version + 1))
        assert await log.encode_update(cluster.store, following, b"soon")
        assert len(await pieces(cluster)) == len(before) + 1

    run(main)


def test_a_batch_larger_than_a_transaction_is_one_version() -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service()
        commands = [create(f"table-with-a-rather-long-name-{number:06d}") for number in range(5_000)]
        made = await service.execute(*commands)
        assert (made.version, len(made.tables)) == (1, 5_000)
        (entry,) = (await cluster.store.range(log.UPDATE_PREFIX)).entries
        assert len(entry.value) < 1_000
        other = await cluster.service()
        assert other.latest == made
        await service.close()
        assert await other.compact() == 1
        assert await log.chunk_prefixes(cluster.store, log.UPDATE_CHUNKS) == []
        fresh = await cluster.service()
        assert fresh.latest == made
        stored = (await cluster.store.range("")).entries
        assert max(len(entry.value) for entry in stored) < TXN_BYTES_MAX
        with pytest.raises(InvalidArgument, match="at most 10000"):
            await other.execute(*commands, *commands, *commands)

    run(main)


def update_bytes(version: int) -> bytes:
    entries = create("x").decide(empty_catalog())
    return CATALOG_SERIALIZERS.encode(Update(CatalogVersion(version), Txn(2**50 + version), b"t", "x", entries))


def update_of(*entries: Entry) -> bytes:
    return CATALOG_SERIALIZERS.encode(Update(CatalogVersion(2), Txn(2**60), b"t", "x", entries))


def with_a() -> Catalog:
    """As version 1 is, but for the name: what makes a second table of it."""
    return replace(after(empty_catalog(), create("b")), names=HashTrieMap())


GOOD = update_bytes(2)
BAD_VALUES: list[tuple[bytes, type[StelaeError], str]] = [
    (b"", Corruption, "is neither an update nor says where its chunks are"),
    (b"\x00", Corruption, "does not have its checksum"),
    (log.inline_value(b""), Corruption, "end before the protocol version"),
    (log.inline_value(GOOD)[:-3], Corruption, "does not have its checksum"),
    (log.inline_value(GOOD[:-3]), Corruption, "cannot be read"),
    (log.inline_value(GOOD[:2] + b"\x7f\x00" + GOOD[4:]), UnsupportedFormat, "object type 32512"),
    (log.inline_value(GOOD[:4] + b"\x63" + GOOD[5:]), UnsupportedFormat, "UPDATE in serializer version 99"),
    (log.inline_value(b"\x00\x07" + GOOD[2:]), UnsupportedFormat, "protocol version 7"),
    (log.inline_value(update_bytes(3)), Corruption, "does not hold catalog version 2"),
    (log.inline_value(update_of(DefaultZoneSet(ZoneId(99)))), Corruption, "cannot follow version 1"),
    (log.inline_value(update_of(*create("a").decide(with_a()))), Corruption, "has the same name as object"),
    (log.inline_value(update_of(TableDropped(TableId(77)))), Corruption, "cannot follow version 1"),
    (b"\x01{}", Corruption, "cannot be read"),
    (b'\x01{"prefix":"nowhere/","chunks":1,"crc":0}', Corruption, "nowhere/: chunk 0 of 1 is missing"),
]


@pytest.mark.parametrize(("value", "kind", "message"), BAD_VALUES, ids=[message[:30] for _, _, message in BAD_VALUES])
@pytest.mark.parametrize("following", [True, False], ids=["following", "starting"])
def test_bad_bytes_name_the_version_and_the_key(
    value: bytes, kind: type[StelaeError], message: str, following: bool
) -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service()
        await service.execute(create("a"))
        await cluster.store.txn([], [PutKey(log.update_key(2), value), PutKey(log.VERSION_KEY, b"2")])
        with pytest.raises(kind) as caught:
            await (service.wait_ready(CatalogVersion(2)) if following else cluster.service())
        assert message in str(caught.value)
        assert log.update_key(2) in str(caught.value)
        assert "version 2" in str(caught.value)
        if following:
            with pytest.raises(kind):
                await service.execute(create("b"))
        stored = await cluster.store.get(log.update_key(2))
        assert stored is not None
        assert stored.value == value
        assert (await log.read_head(cluster.store)).version == 2

    run(main)


def test_a_missing_version_is_named() -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service()
        for name in "abc":
            await service.execute(create(name))
        await cluster.store.txn([], [DeleteKey(log.update_key(2))])
        with pytest.raises(Corruption, match="catalog version 2 is missing"):
            await cluster.service()

    run(main)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (log.VERSION_KEY, b"many", "catalog/version: b'many' is not a number"),
        (log.CLOSED_KEY, b"-1", "catalog/closed: b'-1' is not a number"),
        (log.SNAPSHOT_KEY, b"{", "catalog/snapshot-version: where the snapshot is cannot be read"),
    ],
)
def test_bad_small_keys_are_named(key: str, value: bytes, message: str) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.store.txn([], [PutKey(key, value)])
        with pytest.raises(Corruption) as caught:
            await cluster.service()
        assert message in str(caught.value)

    run(main)


def test_a_closed_service_says_so() -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service()
        waiting = asyncio.create_task(service.wait_ready(CatalogVersion(1)))
        await asyncio.sleep(1)
        await service.close()
        await service.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await service.execute(create("a"))

    run(main)


def test_the_reader_names_versions_and_times() -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service()
        made = [await service.execute(create(name)) for name in "abc"]
        store: Metastore = cluster.store
        reader = CatalogReader(store)
        assert await reader.latest() == made[-1]
        assert await reader.version(CatalogVersion(2)) == made[1]
        assert await reader.at(made[0].activation) == made[0]
        assert [step.after.version async for step in reader.history()] == [1, 2, 3]
        with pytest.raises(NotFound, match="the newest is 3"):
            await reader.version(CatalogVersion(4))

    run(main)


def test_time_goes_on_above_what_was_given_out_before_a_restart_whatever_the_clock_says() -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service()
        made = await service.execute(create("a"))
        await service.catalog_at(service.time.tick())
        await service.close()
        cluster.clock.step_wall_ms(-500_000)
        again = await cluster.service()
        now = again.time.tick()
        assert now > made.activation
        assert await again.catalog_at(now) == made
        started = cluster.loop.time()
        assert (await again.execute(create("b"))).version == 2
        assert cluster.loop.time() - started < 10

    run(main)


def test_everybody_on_one_clock_sees_at_once_what_was_acknowledged() -> None:
    async def main(cluster: Cluster) -> None:
        one, other = await cluster.service(), await cluster.service()
        for number in range(5):
            made = await one.execute(create(f"t{number}"))
            assert (await other.catalog_at(other.time.tick())).version >= made.version

    run(main)


class Slowed:
    """A metastore on which one call of a kind can be held back or made to fail, as the port allows."""

    def __init__(self, store: Metastore) -> None:
        self._store = store
        self.before_txn: list[Callable[[object], Awaitable[bool]]] = []
        self.grant_failures = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def grant(self, ttl_s: float) -> LeaseId:
        if self.grant_failures:
            self.grant_failures -= 1
            raise Unavailable("no leader")
        return await self._store.grant(ttl_s)

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        keys = [getattr(change, "key", "") for change in changes]
        for hook in list(self.before_txn):
            if await hook(keys):
                self.before_txn.remove(hook)
                task = asyncio.create_task(self._late(compares, changes))
                self.late = task
                raise UnknownOutcome("the answer is lost")
        return await self._store.txn(compares, changes)

    async def _late(self, compares: Sequence[Compare], changes: Sequence[Change]) -> None:
        await asyncio.sleep(0.05)
        await self._store.txn(compares, changes)


async def slowed_service(cluster: Cluster, **settings: object) -> tuple[CatalogService, Slowed]:
    store = Slowed(cluster.server.client("slowed"))
    time = HybridClock(cluster.clock.wall_ms)
    options = CatalogSettings(**{"author": "slow", **settings})  # type: ignore[arg-type]
    service = CatalogService(store, cluster.clock, time, SimRng(99), options)  # type: ignore[arg-type]
    await service.start()
    return service, store


def test_a_large_update_whose_append_arrives_late_is_read_all_the_same() -> None:
    async def main(cluster: Cluster) -> None:
        service, store = await slowed_service(cluster)

        async def is_append(keys: object) -> bool:
            return log.VERSION_KEY in keys  # type: ignore[operator]

        store.before_txn.append(is_append)
        made = await service.execute(*(create(f"table-{number:06d}") for number in range(3_000)))
        await store.late
        assert made.version == service.latest.version == 1
        fresh = await cluster.service()
        assert fresh.latest == made

    run(main)


def test_a_lost_lease_and_an_unreachable_metastore_do_not_end_the_service() -> None:
    async def main(cluster: Cluster) -> None:
        service, store = await slowed_service(cluster, lease_s=3.0)
        (held,) = (await cluster.store.range(log.IN_USE_PREFIX)).entries
        assert held.lease is not None
        await cluster.store.revoke(held.lease)
        store.grant_failures = 2
        await asyncio.sleep(20)
        await service.execute(create("a"))
        assert len((await cluster.store.range(log.IN_USE_PREFIX)).entries) == 1

    run(main)


def test_a_pin_taken_while_progress_is_reported_holds() -> None:
    async def main(cluster: Cluster) -> None:
        service = await cluster.service(snapshot_every=10_000)
        for number in range(63):
            await service.execute(create(f"t{number}"))
        last = asyncio.create_task(service.execute(create("last")))
        async with service.pins.pin(CatalogVersion(5)):
            await last
            await asyncio.sleep(1)
            assert await service.compact() in (None, 5)
            assert service.catalog(CatalogVersion(5)).version == 5

    run(main)


@pytest.mark.parametrize("lives_on", [True, False], ids=["versions are in the log", "versions were compacted"])
def test_a_process_that_was_away_for_long_reads_on(monkeypatch: pytest.MonkeyPatch, lives_on: bool) -> None:
    """The metastore has forgotten what its watch would begin with."""
    monkeypatch.setattr(version_pins, "PROGRESS_STEP", 1)

    async def main(cluster: Cluster) -> None:
        away = await cluster.service(lease_s=10.0)
        writer = await cluster.service()
        await writer.execute(create("a"))
        await away.wait_ready(CatalogVersion(1))
        cluster.server.partition("process-11")
        await asyncio.sleep(60)  # its hold is over
        for number in range(2, 6):
            await writer.execute(create(f"t{number}"))
        revision = cluster.server.revision
        if not lives_on:
            assert await writer.compact(CatalogVersion(3)) == 3
        await cluster.store.compact(revision)
        cluster.server.heal("process-11")
        assert (await away.wait_ready(CatalogVersion(5))).version == 5
        assert [len(away.schemas.of(table)) for table in away.latest.tables] == [1] * 5
        assert (await away.execute(create("b"))).version == 6
        assert away.earliest.version == (0 if lives_on else 3)

    run(main)


def test_followers_live_on_while_others_compact() -> None:
    async def main(cluster: Cluster) -> None:
        followers = [await cluster.service(snapshot_every=50) for _ in range(3)]

        writers = [await cluster.service(snapshot_every=50) for _ in range(2)]

        async def write(writer: CatalogService, name: str) -> None:
            for number in range(120):
                await writer.execute(create(f"{name}{number}"))

        await asyncio.gather(*(write(writer, name) for writer, name in zip(writers, "ab", strict=True)))
        for follower in followers:
            assert (await follower.wait_ready(CatalogVersion(240))).version == 240
        assert (await log.read_head(cluster.store)).oldest > 0

    run(main)
