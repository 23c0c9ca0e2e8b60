"""Servers that share one table, and coordinators that follow each other, in the simulated world: what is needed to
change many tablets at one txn, and nothing else. What one asks another is late, lost, or answered when nobody waits.

All loads write the same value to all of `KEYS`, and nobody else writes these: at any snapshot all have one, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stelae.adapters.logfiles.deferred import DeferredLogFiles
from stelae.client.intake.mutations import blocks_of
from stelae.launch.steps import start_steps
from stelae.master.changes.loads import TableChanges
from stelae.model.errors import Conflict, ConnectionLost, Retryable, UnknownOutcome
from stelae.model.hybrid import HybridClock
from stelae.model.ids import TableId, TabletId, Txn
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import RangeSet, RowRange
from stelae.ports.metastore import PutKey
from stelae.registry.changes.asking import ChangeReport, ChangeRequest
from stelae.registry.changes.sessions import read_sessions
from stelae.registry.control import CreateTablets, NewTablet, SplitTablet
from stelae.registry.incarnations import FencedStore, ShardIdentity, begin_shard
from stelae.registry.known_tables import TableRules
from stelae.registry.masters.guard import GUARD_KEY, GuardedStore, HeldGuard, next_guard
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.registry.views.own import OwnPart
from stelae.registry.views.prefixed import local_prefix
from stelae.service.deadlines import Deadline
from stelae.service.scans import ScanAsk
from stelae.service.tickets import LoadedFile, LoadTicket
from stelae.sim.rng import SimRng
from stelae.sim.threads.blocking import BlockingLoop
from stelae.sim.threads.executor import ThreadsExecutor
from stelae.sim.threads.paced import PacedLogFiles
from stelae.sim.threads.thread import run_in_thread
from stelae.sim.world import ProcessPorts, SimWorld
from stelae.storage.log.wal import WalSettings
from stelae.storage.shard import ShardSettings
from stelae.storage.upkeep.serializer import SerializerSettings
from stelae.tserver.server import TabletServer
from stelae.tserver.surroundings import ServerPorts, ServerSettings
from tests.tserver.boxes import SCHEMA, FewTables, NoMaster, row
from tests.tserver.loading import written

TABLE = TableId(100)
SERVERS = ("s1", "s2")
COORDINATORS = ("m1", "m2")
CUT = 50
KEYS = (1, 20, 60, 90)
SWAPS = 16
"""So many keys of each load on each server are its own: others write them on the condition that they are absent."""

ANSWER_S = 3.0
PATIENCE_S = 30.0
TEND_S = 0.5
RETENTION_US = 3_600 * 1_000_000


def swapped(number: int, server: int) -> list[int]:
    """The keys on a server that are a load's own."""
    first = 1_000 * number if server else -1_000 * number
    return [first + at for at in range(SWAPS)]


class _Tables(FewTables):
    def rules(self, table: TableId) -> TableRules | None:
        return TableRules(RETENTION_US, 2**30) if table in self.named else None


_Letter = tuple[Callable[[Any], Awaitable[Any]], asyncio.Future[Any]]


@dataclass
class Mail:
    """How one process asks another: each request is a job that the other does with what it has."""

    world: SimWorld
    rng: SimRng
    delay_s_max: float = 0.01
    lost: float = 0.0
    _jobs: set[asyncio.Future[None]] = field(default_factory=set)
    _boxes: dict[str, asyncio.Queue[_Letter]] = field(default_factory=dict)

    async def do(self, name: str, job: Callable[..., Any], *args: Any) -> Any:
        """As `ask`, of a job that blocks."""
        return await self._send(name, lambda it: run_in_thread(self.world.loop, job, it, *args))

    async def ask(self, name: str, job: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        """ConnectionLost if it was not done; UnknownOutcome if no answer came."""
        return await self._send(name, lambda it: job(it, *args, **options))

    async def _send(self, name: str, job: Callable[[Any], Awaitable[Any]]) -> Any:
        await asyncio.sleep(self.rng.fraction() * self.delay_s_max)
        if not self.world.is_alive(name) or name not in self._boxes or self.rng.fraction() < self.lost:
            raise ConnectionLost(f"{name} is not there")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._boxes[name].put_nowait((job, answer))
        try:
            async with asyncio.timeout(ANSWER_S if name in SERVERS else PATIENCE_S):
                found = await answer
        except TimeoutError:
            raise UnknownOutcome(f"{name} does not answer") from None
        await asyncio.sleep(self.rng.fraction() * self.delay_s_max)
        if self.rng.fraction() < self.lost:
            raise UnknownOutcome(f"the answer of {name} was lost")
        return found

    async def serve(self, name: str, what: Any) -> None:
        """Until the process ends."""
        box = self._boxes[name] = asyncio.Queue()
        while True:
            job, answer = await box.get()
            self._jobs.add(asyncio.ensure_future(self._answer(what, job, answer)))

    @staticmethod
    async def _answer(what: Any, job: Callable[[Any], Awaitable[Any]], answer: asyncio.Future[Any]) -> None:
        try:
            found = await job(what)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(found)


async def _idle(_: ProcessPorts) -> None:
    await asyncio.Event().wait()


class Changing:
    """One run: the processes, and what is known of the table's tablets as if a master had recorded it."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.mail = Mail(world, world.rng("mail"))
        for name in SERVERS:
            world.add(name, self.run_server)
        for name in COORDINATORS:
            world.add(name, self.run_coordinator, restarts=False)
        world.add("driver", _idle)
        self.time: dict[str, HybridClock] = {}
        ranges = {"s1": RowRange(b"", row(CUT)), "s2": RowRange(row(CUT), None)}
        self.tablets = [
            TabletRecord(TabletId(10 + at), TABLE, ranges[name], TabletPhase.RUNNING, name)
            for at, name in enumerate(SERVERS)
        ]
        self._next_tablet = 20
        self.acknowledged: dict[int, Txn] = {}
        self.changes: dict[int, str] = {}
        self.seen: dict[Txn, tuple[int | None, ...]] = {}
        self.swapped: list[tuple[int, Txn]] = []

    # -- processes

    async def run_server(self, ports: ProcessPorts) -> None:
        server = await run_in_thread(ports.loop, self._open_server, ports)
        await self.mail.serve(ports.name, server)

    def _open_server(self, ports: ProcessPorts) -> TabletServer:
        loop, name = BlockingLoop(ports.loop), ports.name
        # What leases are for: whoever comes after a process begins above all that it answered at.
        time = HybridClock(ports.clock.wall_ms)
        if name in self.time:
            time.resume(self.time[name].last)
        self.time[name] = time
        fence = loop.run(begin_shard(ports.metastore, ShardIdentity(name, name, 0, f"log of {name}")))
        shared = FencedStore(ports.metastore, fence)
        own = OwnPart(shared, local_prefix(name, 0))
        logs = DeferredLogFiles(PacedLogFiles(ports.disk, ports.disk.pace, ports.loop))
        seal_bytes = int(2_000 * 15 ** ports.rng.fraction())
        serializer = SerializerSettings(seal_bytes, memory_bytes=4 * seal_bytes, log_bytes=8 * seal_bytes)
        shard = ShardSettings(cache_bytes=2**20, log=WalSettings(segment_bytes_max=4_000), serializer=serializer)
        settings = ServerSettings(name, name, shard=shard, pins_wait_s=0.0, is_alone=False)
        reading = ThreadsExecutor(ports.loop, 2, 1_000)
        world = ServerPorts(logs, ports.blobs, own, ports.clock, time, ports.rng, loop, reading, shared)
        server = TabletServer.open(world, _Tables("t"), NoMaster(), settings, proved=logs.settle)
        start_steps(server)
        return server

    async def run_coordinator(self, ports: ProcessPorts) -> None:
        entry = await ports.metastore.get(GUARD_KEY)
        guard, compare = next_guard(entry, ports.name, ports.name)
        outcome = await ports.metastore.txn([compare], [PutKey(GUARD_KEY, guard.value)])
        if not outcome.succeeded:
            raise ConnectionLost("another one leads")
        store = GuardedStore(ports.metastore, HeldGuard(guard, outcome.revision))
        time = HybridClock(ports.clock.wall_ms)
        changes = TableChanges(store, self, _Tables("t").info, ports.clock, time, ports.rng, "", lambda _: True)

        async def tend() -> None:
            while True:
                with suppress(Retryable, UnknownOutcome):
                    await changes.coordinator.tend()
                await asyncio.sleep(TEND_S)

        tending = asyncio.ensure_future(tend())
        await self.mail.serve(ports.name, changes)
        tending.cancel()

    # -- what coordinators know of servers

    def records(self, table: TableId) -> Sequence[TabletRecord]:
        return sorted(self.tablets, key=lambda each: each.rows.start)

    async def ask_change(
        self,
        server: str,
        request: ChangeRequest,
        files: Sequence[LoadedFile] = (),
        deadline: Deadline | None = None,
    ) -> ChangeReport:
        found: ChangeReport = await self.mail.do(server, _answer_change, request, files)
        return found

    # -- what programs do

    async def begin(self) -> None:
        for name in SERVERS:
            self.world.start(name)
        self.world.start(COORDINATORS[0])
        for record in self.tablets:
            request = CreateTablets((NewTablet(record.tablet, TABLE, record.rows),))
            await self.surely(self.mail.do, record.server, TabletServer.ask, request)

    async def surely(self, job: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Again and again until it is done."""
        while True:
            try:
                return await job(*args)
            except (Retryable, UnknownOutcome):
                await asyncio.sleep(0.2)

    async def begin_load(self, number: int, through: str, ttl_s: float = 20.0) -> tuple[LoadTicket, list[LoadedFile]]:
        """Another attempt at the job, with its files written."""
        ticket: LoadTicket = await self.mail.ask(through, TableChanges.begin_load, TABLE, f"job {number}", 0, ttl_s)
        if ticket.committed is not None:
            return ticket, []
        blobs = self.world.blobs_of("driver")
        keys = ((*KEYS[:2], *swapped(number, 0)), (*KEYS[2:], *swapped(number, 1)))
        return ticket, [
            written(blobs, ticket, f"{at:02x}", dict.fromkeys(some, number)) for at, some in enumerate(keys)
        ]

    async def load(self, number: int, through: str, *, replaces: bool = False) -> Txn:
        ticket, files = await self.begin_load(number, through)
        if ticket.committed is not None:
            return ticket.committed
        return await self.commit_load(ticket, files, through, replaces=replaces)

    async def commit_load(
        self, ticket: LoadTicket, files: Sequence[LoadedFile], through: str, *, replaces: bool = False
    ) -> Txn:
        txn: Txn = await self.mail.ask(through, TableChanges.commit_load, ticket.ticket, files, replaces=replaces)
        return txn

    async def truncate(self, through: str) -> Txn:
        txn: Txn = await self.mail.ask(through, TableChanges.truncate, TABLE)
        return txn

    async def split(self, at: int) -> None:
        """The records follow when it is done, as a master's do."""
        record = next(each for each in self.tablets if row(at) in each.rows)
        if record.rows.start == row(at):
            return
        left, right = (TabletId(self._next_tablet + each) for each in (0, 1))
        self._next_tablet += 2
        request = SplitTablet(record.tablet, row(at), left, right)
        await self.surely(self.mail.do, record.server, TabletServer.ask, request)
        low, high = record.rows.split(row(at))
        made = [
            TabletRecord(tablet, TABLE, rows, TabletPhase.RUNNING, record.server)
            for tablet, rows in ((left, low), (right, high))
        ]
        self.tablets = [*(each for each in self.tablets if each is not record), *made]

    async def now(self) -> Txn:
        return Txn(max([await self.mail.do(name, TabletServer.now) for name in SERVERS]))

    async def read(self, at: Txn, how: str) -> tuple[int | None, ...]:
        """What all of `KEYS` have at the snapshot, each asked of its server."""
        found: dict[int, int] = {}
        for name in SERVERS:
            found |= await self.mail.do(name, _read, name, at, how)
        return tuple(found.get(key) for key in KEYS)

    async def look(self, at: Txn, how: str) -> None:
        """L1: all of a change or nothing, and the same for ever."""
        seen = await self.read(at, how)
        assert len(set(seen)) == 1, f"at {at} the keys have {seen}: half of a change"
        before = self.seen.setdefault(at, seen)
        assert before == seen, f"at {at} the keys had {before}, and have {seen}"

    async def swap(self, key: int, number: int) -> None:
        """Write a key that is absent: T37."""
        server = SERVERS[key >= CUT]
        blocks = blocks_of(SCHEMA, [{"id": key, "a": number}])
        with suppress(Conflict):
            txn = await self.mail.do(server, TabletServer.write, TABLE, blocks, Txn(0))
            self.swapped.append((key, txn))

    async def check_end(self) -> None:
        """When all is healed: nothing is under way any more, and every snapshot tells the same story."""
        store = self.world.metastore.client("judge")
        async with asyncio.timeout(200):
            while await read_sessions(store):
                await asyncio.sleep(0.5)
        for name in SERVERS:
            left = await self.surely(self.mail.do, name, _unsettled)
            assert not left, f"{name} has {left} prepared, and no record is left"
        for at in list(self.seen):
            await self.surely(self.look, at, "scan")
        for number, txn in self.acknowledged.items():
            await self.surely(self.look, txn, "newest")
            await self.surely(self.look, Txn(txn - 1), "newest")
            expected, seen = None if self.changes[number] == "truncate" else number, self.seen[txn]
            assert seen[0] == expected, f"change {number} was done at {txn}, where the keys have {seen}"
        for key, txn in self.swapped:
            server, before = SERVERS[key >= CUT], Txn(txn - 1)
            _, values = await self.surely(
                self.mail.do, server, TabletServer.newest, TABLE, row(key), ALL_COLUMNS, before
            )
            assert values is None, f"key {key} was written at {txn} as absent, and was {values} just before"


def _answer_change(server: TabletServer, request: ChangeRequest, files: Sequence[LoadedFile]) -> ChangeReport:
    return server.changes.answer(request, files)


def _unsettled(server: TabletServer) -> dict[TableId, tuple[str, ...]]:
    return dict(server.shard.unsettled)


def _read(server: TabletServer, name: str, at: Txn, how: str) -> dict[int, int]:
    """Of the keys that the server has."""
    mine: Collection[int] = [key for key in KEYS if (key >= CUT) is (name == SERVERS[1])]
    if how == "scan":
        found: dict[int, int] = {}
        rows = RangeSet.of([RowRange(b"", row(CUT)) if name == SERVERS[0] else RowRange(row(CUT), None)])
        for batch in server.scan(TABLE, ScanAsk(ScanPredicate(rows), at)):
            found.update(zip(batch.column("id").to_pylist(), batch.column("a").to_pylist(), strict=True))
        return {key: found[key] for key in mine if key in found}
    if how == "many":
        _, values = server.newest_many(TABLE, [row(key) for key in mine], ALL_COLUMNS, at)
        return {key: each["a"] for key, each in zip(mine, values, strict=True) if each is not None}
    each_of = {key: server.newest(TABLE, row(key), ALL_COLUMNS, at)[1] for key in mine}
    return {key: each["a"] for key, each in each_of.items() if each is not None}
