"""One shard in the simulated world that is nothing but its lease, its clock and a log of txns, on two hosts, and a
master that fences it when it is silent: then the other host goes on from the log, as a second replica would.

Whatever is answered goes into a journal, in the order of true time. Whether it may have been so is judged at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from stelae.format.log.positions import POSITION_MIN, Position
from stelae.model.errors import Deposed, StelaeError, Unavailable
from stelae.model.events import Event
from stelae.model.hybrid import HybridClock, pack
from stelae.model.ids import Txn
from stelae.ports.metastore import Compare, Entry, IsAbsent, Metastore, PutKey, ValueIs
from stelae.registry.incarnations import FencedStore, ShardIdentity, begin_shard, fence_key
from stelae.registry.leases.fencing import fence_shard
from stelae.registry.leases.shard import lease_key
from stelae.registry.leases.sight import ShardSight
from stelae.registry.masters.guard import GUARD_KEY, GuardedStore, HeldGuard, next_guard
from stelae.registry.views.compared import ComparedStore
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import SimMetastoreServer
from stelae.sim.process import ProcessClock, SimProcess
from stelae.sim.rng import SimRng
from stelae.tserver.lease import leasing
from stelae.tserver.lease.leasing import Leasing

LEASE_S = 2.0
HOSTS = ("a", "b")
NODE = "node"
KEY = lease_key(NODE, 0)
FENCE = fence_key(NODE, 0)
SYNC_S = 0.005
AHEAD_S_MAX = 1.0
"""So far ahead of a shard's clock may a snapshot be that it is asked about: another shard's clock is."""


class Answered(NamedTuple):
    """`kind`: newest (of what is visible), read (at a snapshot) or write. `txn`: the snapshot, or what the write was
    given."""

    incarnation: int
    kind: str
    txn: Txn


@dataclass
class ThinLog:
    """Of one process: the log's own thread is a task. `synced` outlives it."""

    synced: list[Txn]
    is_hanging: Callable[[], bool]
    end: Position = POSITION_MIN
    queued: list[tuple[Txn, asyncio.Future[None]]] = field(default_factory=list)

    @property
    def queued_bytes(self) -> int:
        return len(self.queued)

    def append(self, txn: Txn) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self.queued.append((txn, future))
        return future

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            if self.queued and not self.is_hanging():
                group = list(self.queued)
                self.synced.extend(txn for txn, _ in group)
                self.end = Position(len(self.synced))
                del self.queued[: len(group)]
                for _, future in group:
                    future.set_result(None)


class Beginning(ComparedStore):
    """Of a process that may be the shard only if nobody has begun to be since it was started: no directory's lock keeps
    two hosts apart."""

    def refusal(self, _: Entry | None) -> Deposed:
        return Deposed("another process has begun to be the shard")


@dataclass
class World:
    loop: SimLoop
    rng: SimRng
    server: SimMetastoreServer
    journal: list[Answered] = field(default_factory=list)
    log: list[Txn] = field(default_factory=list)
    processes: dict[str, SimProcess] = field(default_factory=dict)
    leases: dict[str, Leasing] = field(default_factory=dict)
    clocks: dict[str, HybridClock] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    silent: bool = False
    """Whether the master sees no renewals now."""

    def start(self, host: str) -> None:
        """As the shard, if nobody else has begun to be it since."""
        clock, fence = self._clock(), self.server._state.get(FENCE, None)
        compare = IsAbsent(FENCE) if fence is None else ValueIs(FENCE, fence.value)
        self.processes[host] = self.loop.spawn(host, self._live(host, clock, compare), clock=clock)

    def start_master(self) -> None:
        clock = self._clock()
        self.processes["master"] = self.loop.spawn("master", self._lead(clock), clock=clock)

    def _clock(self) -> ProcessClock:
        """Rates differ by less than a tenth; wall clocks by seconds."""
        return ProcessClock(self.loop, self.rng.below(4_000), 0.96 + 0.08 * self.rng.fraction())

    async def _live(self, host: str, clock: ProcessClock, compare: Compare) -> None:
        """Until another process is the shard; then it stands idle until it is started again."""
        with suppress(StelaeError):
            await self._be_shard(host, clock, compare)
        self.idle.append(host)
        await asyncio.Event().wait()

    async def _be_shard(self, host: str, clock: ProcessClock, compare: Compare) -> None:
        store, time, over = self.server.client(host), HybridClock(clock.wall_ms), asyncio.Event()
        fence = await begin_shard(Beginning(store, compare), ShardIdentity(NODE, "n", 0, "log"))
        held = await leasing.resume(store, fence, time)
        time.resume(max(self.log, default=Txn(0)))
        log = ThinLog(self.log, lambda: host in self.hanging)
        fenced = FencedStore(store, fence)
        lease = Leasing(fenced, fence, held, clock, time, log, LEASE_S, self.events.append, over.set)
        self.leases[host], self.clocks[host] = lease, time
        await lease.start()
        tasks = [
            asyncio.create_task(job)
            for job in (log.run(), *(self._serve(fence.incarnation, lease, time, clock, log) for _ in range(3)))
        ]
        await over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await lease.close(in_order=False)

    async def _serve(
        self, incarnation: int, lease: Leasing, time: HybridClock, clock: ProcessClock, log: ThinLog
    ) -> None:
        while True:
            await asyncio.sleep(0.1 * self.rng.fraction())
            with suppress(Unavailable):
                match self.rng.below(4):
                    case 0:
                        self._read(incarnation, lease, time, clock)
                    case 1:
                        await self._write(incarnation, lease, time, log)
                    case _:
                        self._read_newest(incarnation, lease, log)

    def _read(self, incarnation: int, lease: Leasing, time: HybridClock, clock: ProcessClock) -> None:
        """At a snapshot that is now, or as far ahead as another shard's clock may be."""
        ahead_ms = int(1_000 * AHEAD_S_MAX * self.rng.fraction()) if not self.rng.below(8) else 0
        at = max(time.last, pack(clock.wall_ms() + ahead_ms))

        def read() -> None:
            time.reach(at)

        lease.reading(read)()
        self.journal.append(Answered(incarnation, "read", at))

    def _read_newest(self, incarnation: int, lease: Leasing, log: ThinLog) -> None:
        """What is visible needs no clock, so only the lease says that it is the newest."""
        visible = lease.reading(lambda: max(log.synced, default=Txn(0)))()
        self.journal.append(Answered(incarnation, "newest", visible))

    async def _write(self, incarnation: int, lease: Leasing, time: HybridClock, log: ThinLog) -> None:
        lease.check()
        txn = time.tick()
        await log.append(txn)
        if lease.doubt() is None:
            self.journal.append(Answered(incarnation, "write", txn))

    async def _lead(self, clock: ProcessClock) -> None:
        """See the shard's lease stand still, fence it, start it on the other host."""
        store, sight = self.server.client("master"), ShardSight()
        held = await self._take_guard(store)
        while True:
            await asyncio.sleep(LEASE_S / 8)
            with suppress(StelaeError):
                await sight.look(store, clock)
                self.silent = sight.is_silent(KEY, clock.monotonic_s())
                seen = sight.seen.get(KEY)
                if not self.silent or seen is None or seen.revision is None:
                    continue
                if await fence_shard(GuardedStore(store, held), NODE, 0, seen.revision):
                    self.fenced.append(seen.lease.incarnation)
                    self._start_other()

    @staticmethod
    async def _take_guard(store: Metastore) -> HeldGuard:
        while True:
            entry = await store.get(GUARD_KEY)
            guard, unchanged = next_guard(entry, "master", "")
            with suppress(StelaeError):
                outcome = await store.txn([unchanged], [PutKey(GUARD_KEY, guard.value)])
                if outcome.succeeded:
                    return HeldGuard(guard, outcome.revision)

    def _start_other(self) -> None:
        """On a host where nothing runs, or nothing that is the shard."""
        for host in HOSTS:
            process = self.processes.get(host)
            if process is None or not process.alive or host in self.idle:
                self.restart(host)
                return

    def restart(self, host: str) -> None:
        """Kill what runs there, if anything does, and start it again."""
        if host in self.processes:
            self.processes[host].crash()
        if host in self.idle:
            self.idle.remove(host)
        self.start(host)

    def kill(self, host: str) -> None:
        """It is started again at once if nobody else is alive who could be the shard."""
        others = [each for each in HOSTS if each != host and each in self.processes and self.processes[each].alive]
        if others:
            self.processes[host].crash()
        else:
            self.restart(host)

    def valid(self) -> list[str]:
        """Who relies on the lease, by its own clock, also if it is stopped."""
        return [host for host, lease in self.leases.items() if self.processes[host].alive and lease.is_valid]

    async def until(self, holds: Callable[[], bool], leases: float) -> None:
        async with asyncio.timeout(leases * LEASE_S):
            while not holds():
                await asyncio.sleep(0.01)

    def check(self) -> None:
        """Nobody answers after its follower did; whatever is given out lies above all that was answered before."""
        newest, answered, before = 0, Txn(0), Txn(0)
        for each in self.journal:
            assert each.incarnation >= newest, f"{each} was answered after number {newest} had answered"
            if each.incarnation > newest:
                newest, before = each.incarnation, answered
            is_above = each.kind != "write" or each.txn > before
            assert is_above, f"{each} lies below a snapshot that was answered: {before}"
            answered = max(answered, each.txn)


def play(script: Callable[[World], Awaitable[None]], seed: int = 1) -> World:
    async def main(loop: SimLoop) -> World:
        rng = SimRng(seed)
        world = World(loop, rng, SimMetastoreServer(loop, rng, timeout_s=LEASE_S / 8))
        await script(world)
        for process in world.processes.values():
            process.crash()
        world.check()
        return world

    return simulate(main, seed)
