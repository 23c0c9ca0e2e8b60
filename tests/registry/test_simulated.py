"""Many processes on one catalog in a faulty world: lost answers, partitions, crashes, skewed clocks, compactions.

Whatever the seed: versions have no gaps, a command is in at most one version and an acknowledged one in exactly the
version it was told, every process sees the same history, and nobody who asks for a time gets another answer than
anybody else, then or later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from stelae.catalog.check import check_catalog
from stelae.catalog.commands.tables import DropTable, SetProperty, TableName
from stelae.catalog.entries import TableCreated, TableDropped, Update
from stelae.catalog.value import Catalog, CatalogVersion, empty_catalog
from stelae.model.errors import AlreadyExists, NotFound, SnapshotTooOld, Unavailable, UnknownOutcome
from stelae.model.hybrid import HybridClock
from stelae.model.ids import TableId, Txn
from stelae.ports.metastore import KeyPut, Metastore, Revision
from stelae.registry.catalog import update_log as log
from stelae.registry.catalog import version_pins
from stelae.registry.catalog.service import CatalogService
from stelae.registry.catalog.settings import CatalogSettings
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.loop_clock import SkewedClock
from stelae.sim.metastore import MetastoreFaults, SimMetastoreServer
from stelae.sim.rng import SimRng
from tests.catalog.samples import create
from tests.effort import tries

SKEW_MS = 40
SEEDS_PER_TEST = 50


@dataclass
class World:
    """What the processes did and saw, to be judged at the end."""

    loop: SimLoop
    server: SimMetastoreServer
    rng: SimRng
    acknowledged: dict[str, CatalogVersion] = field(default_factory=dict)
    dropped: dict[str, CatalogVersion] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    answers: dict[Txn, CatalogVersion] = field(default_factory=dict)
    seen: dict[CatalogVersion, Catalog] = field(default_factory=dict)
    newest: int = 0

    def service(self, name: str, incarnation: int) -> tuple[CatalogService, HybridClock]:
        offset_ms = 1_000_000 + self.rng.below(SKEW_MS) - SKEW_MS // 2
        clock = SkewedClock(self.loop, offset_ms)
        time = HybridClock(clock.wall_ms)
        settings = CatalogSettings(
            author=name,
            delay_ms=self.rng.below(3) * 20,
            skew_ms=SKEW_MS,
            backoff_max_s=2.0,
            lease_s=5.0,
            snapshot_every=7,
        )
        store = self.server.client(name)
        return CatalogService(store, clock, time, SimRng(self.rng.below(2**30) + incarnation), settings), time

    async def process(self, name: str, incarnation: int, steps: int) -> None:
        service, time = self.service(name, incarnation)
        while True:
            try:
                await service.start()
                break
            except (Unavailable, UnknownOutcome):
                await asyncio.sleep(0.5)
        try:
            for step in range(steps):
                await self.step(service, time, f"{name}-{incarnation}-{step}")
                self.see(service)
                await asyncio.sleep(self.rng.fraction() * 0.2)
        finally:
            await service.close()

    def see(self, service: CatalogService) -> None:
        """What a process follows has no gap, and is what everybody else follows."""
        for version in range(service.earliest.version, service.latest.version + 1):
            catalog = service.catalog(CatalogVersion(version))
            assert catalog.version == version
            assert self.seen.setdefault(catalog.version, catalog) == catalog

    async def step(self, service: CatalogService, time: HybridClock, name: str) -> None:
        try:
            match self.rng.below(5):
                case 0 | 1:
                    made = await service.execute(create(name))
                    self.acknowledge(self.acknowledged, name, made)
                    await self.read_now(service, time)
                case 2:
                    await self.drop_some(service)
                case 3:
                    await self.read_now(service, time)
                case _:
                    known = service.latest.tables
                    if len(known):
                        some = sorted(known)[self.rng.below(len(known))]
                        await service.execute(SetProperty(TableName.parse(known[some].name), "comment", name))
        except (Unavailable, NotFound):
            return

    def acknowledge(self, where: dict[str, CatalogVersion], name: str, made: Catalog) -> None:
        where[name] = made.version
        self.newest = max(self.newest, made.version)

    async def drop_some(self, service: CatalogService) -> None:
        known = [table.name for table in service.latest.tables.values()]
        if known:
            name = sorted(known)[self.rng.below(len(known))]
            made = await service.execute(DropTable(TableName.parse(name)))
            self.acknowledge(self.dropped, name, made)

    async def read_now(self, service: CatalogService, time: HybridClock) -> None:
        """Whoever asks for now, on any clock, sees all that was acknowledged anywhere before."""
        newest = self.newest
        ts = time.tick()
        catalog = await service.catalog_at(ts)
        assert catalog.version >= newest, f"at {ts} version {catalog.version} though {newest} was acknowledged"
        assert catalog.activation <= ts
        assert self.answers.setdefault(ts, catalog.version) == catalog.version
        older = Txn(ts - self.rng.below(1 << 24))
        try:
            past = await service.catalog_at(older)
        except SnapshotTooOld:
            return
        assert self.answers.setdefault(older, past.version) == past.version


async def disturb(world: World, names: list[str]) -> None:
    for _ in range(world.rng.below(4)):
        await asyncio.sleep(world.rng.fraction() * 2)
        name = names[world.rng.below(len(names))]
        world.server.partition(name)
        await asyncio.sleep(world.rng.fraction() * 3)
        world.server.heal(name)


async def live(loop: SimLoop, seed: int) -> World:
    rng = SimRng(seed)
    faults = MetastoreFaults(
        refused=rng.fraction() * 0.1,
        request_lost=rng.fraction() * 0.1,
        answer_lost=rng.fraction() * 0.15,
        late=rng.fraction() * 0.1,
        watch_cut=rng.fraction() * 0.2,
    )
    server = SimMetastoreServer(loop, SimRng(seed + 1), faults)
    world = World(loop, server, rng)
    names = ["a", "b", "c"]
    disturber = asyncio.create_task(disturb(world, names))

    async def incarnations(name: str) -> None:
        for incarnation in range(2):
            crash_at = 1 + rng.below(1_500) if rng.below(2) else None
            await loop.spawn(name, world.process(name, incarnation, 6), crash_at=crash_at).ended()

    await asyncio.gather(*(incarnations(name) for name in names))
    await disturber
    server.faults = MetastoreFaults()
    for name in names:
        server.heal(name)
    await judge(world)
    return world


async def judge(world: World) -> None:
    """Read the whole history from the metastore's own record of every change, and hold it against what was seen."""
    store = world.server.client("judge")
    head = await log.read_head(store)
    updates = await every_update(store, head)
    assert [update.version for update in updates] == list(range(1, head.version + 1))
    activations = [update.activation for update in updates]
    assert activations == sorted(set(activations))
    created: dict[str, CatalogVersion] = {}
    gone: dict[TableId, CatalogVersion] = {}
    names: dict[TableId, str] = {}
    for update in updates:
        for entry in update.entries:
            if isinstance(entry, TableCreated):
                assert entry.table.name not in created, f"{entry.table.name} was created twice"
                created[entry.table.name] = update.version
                names[entry.table.id] = entry.table.name
            if isinstance(entry, TableDropped):
                assert entry.table not in gone
                gone[entry.table] = update.version
    for name, version in world.acknowledged.items():
        assert created.get(name) == version, f"{name} was acknowledged in {version}, is in {created.get(name)}"
    for name, version in world.dropped.items():
        assert version in [at for id_, at in gone.items() if names[id_] == name]
    truth = empty_catalog()
    for update in updates:
        truth = log.apply_checked(truth, update)
        assert world.seen.get(truth.version, truth) == truth
    for ts, version in world.answers.items():
        assert version == sum(activation <= ts for activation in activations), f"at {ts}"
    base = await log.read_base(store, head)
    async for update in log.read_updates(store, base.version, head):
        base = check_catalog(log.apply_checked(base, update))


async def every_update(store: Metastore, head: log.LogHead) -> list[Update]:
    """From the first change on: the simulated metastore forgets nothing unless it is told to."""
    found: list[Update] = []
    if head.version == 0:
        return found
    async for batch in store.watch(log.PREFIX, Revision(1)):
        puts = [event.entry for event in batch.events if isinstance(event, KeyPut)]
        updates = [entry for entry in puts if entry.key.startswith(log.UPDATE_PREFIX)]
        found += [await log.decode_update(store, entry) for entry in updates]
        if found and found[-1].version == head.version:
            return found
    raise AssertionError("the watch ended")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and progress reports, which are for long histories, come into short ones too."""
    monkeypatch.setattr(log, "INLINE_BYTES_MAX", 500)
    monkeypatch.setattr(version_pins, "PROGRESS_STEP", 3)


@pytest.mark.parametrize("block", range(tries(150) // SEEDS_PER_TEST))
def test_histories_agree(block: int) -> None:
    acknowledged = 0
    for seed in range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST):
        try:
            world = simulate(lambda loop, seed=seed: live(loop, seed), seed)  # type: ignore[misc]
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        acknowledged += len(world.acknowledged)
    assert acknowledged > SEEDS_PER_TEST


def test_a_run_repeats_by_its_seed() -> None:
    first, second = (simulate(lambda loop: live(loop, 5), 5) for _ in range(2))
    assert first.acknowledged == second.acknowledged
    assert first.answers == second.answers
    assert first.server.revision == second.server.revision


def test_names_already_taken_are_refused_by_everybody() -> None:
    async def world(loop: SimLoop) -> list[str]:
        server = SimMetastoreServer(loop, SimRng(1))
        rng = SimRng(2)
        outcomes = []

        async def one(name: str) -> None:
            here = World(loop, server, rng)
            service, _ = here.service(name, 0)
            await service.start()
            try:
                await service.execute(create("same"))
                outcomes.append("made")
            except AlreadyExists:
                outcomes.append("refused")
            finally:
                await service.close()

        await asyncio.gather(*(one(name) for name in "abcde"))
        return sorted(outcomes)

    assert simulate(world, 3) == ["made", "refused", "refused", "refused", "refused"]
