"""The tablets of one shard: blocks come in, become durable together, and are read at snapshots.

Tablet states are immutable values; the shard's lock is held only to put the next one in the place of the last, or to
let a block in: conflict check, txn, memory and the log's queue are one step. Reads take the state that is current and
need no lock.

*Visible* is the greatest txn up to which everything is decided, of one tablet or of all: readers are given snapshots at
it, so that they never see what a crash could take back (`log/commits`). A read at a later txn moves the clock past it
and waits for what is still on its way below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import RLock
from typing import TypeVar

from stelae.format.block import Block as WrittenBlock
from stelae.format.block import encode_block
from stelae.format.log.records import NO_CLIENT, NO_SEQUENCE, NO_TABLET, LogKind, LogRecord, checksum_of
from stelae.model.errors import InvalidArgument, NotFound, Overloaded, StelaeError, TabletAway, Unavailable
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Index, TableId, TabletId, Txn
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.once import Once
from stelae.ports.blobs import BlobStore
from stelae.ports.executor import Executor
from stelae.ports.logfiles import LogFiles
from stelae.ports.rng import Rng
from stelae.storage.files.blocks import Block
from stelae.storage.files.cache import BlockCache
from stelae.storage.files.fragments import Fragments
from stelae.storage.files.handles import MissingFile
from stelae.storage.log.commits import CommitTracker
from stelae.storage.log.done import logged_number
from stelae.storage.log.futures import all_done, settled_all
from stelae.storage.log.replay import ReplayedLog, SegmentInfo
from stelae.storage.log.wal import TimeLeft, Wal, WalSettings
from stelae.storage.memory.insertion import insert
from stelae.storage.memory.memory import Memory
from stelae.storage.outcomes import Outcomes
from stelae.storage.read.points.conditions import check_shown, check_unchanged
from stelae.storage.replicas.replica import Replica
from stelae.storage.tablet.admission import check_rows, check_writable
from stelae.storage.tablet.changes import Loaded, TableChange, changed, encode_change
from stelae.storage.tablet.config import ConfigStore
from stelae.storage.tablet.doubts import Doubts
from stelae.storage.tablet.horizons import Horizons, SnapshotPin
from stelae.storage.tablet.maps import TabletMap
from stelae.storage.tablet.state import TabletState
from stelae.storage.upkeep.picker import PickerSettings
from stelae.storage.upkeep.serializer import SerializerSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """`unflushed_bytes_max`: what may be queued and in memory before writers are turned away; `reserve_bytes`: how
    much more is let in for the writes that free memory. `trash_s`: how long unneeded files are kept aside."""

    unflushed_bytes_max: int = 512 * 2**20
    reserve_bytes: int = 32 * 2**20
    cache_bytes: int = 256 * 2**20
    trash_s: float = 3600.0
    limits: Limits = DEFAULT_LIMITS
    log: WalSettings = field(default_factory=WalSettings)
    serializer: SerializerSettings = field(default_factory=SerializerSettings)
    picker: PickerSettings = field(default_factory=PickerSettings)


@dataclass(frozen=True, slots=True)
class Commit:
    """`durable` is done once the block is on disk, or has failed for good."""

    txn: Txn
    durable: Future[Txn]


class Shard(Outcomes):
    """Safe for threads. `drain` must be called after `apply`, by the caller or by a thread of its own."""

    def __init__(
        self,
        files: LogFiles,
        blobs: BlobStore,
        clock: HybridClock,
        rng: Rng,
        configs: ConfigStore,
        settings: ShardSettings,
        replayed: ReplayedLog,
        name: str = "",
        reading: Executor | None = None,
        replicas: Mapping[TabletId, Replica] | None = None,
    ) -> None:
        """`replicas`: those that the log has. `reading`: scans and merges work ahead on it; without one everything is
        done when it is needed. Nothing that waits for a scan may run on it, flushes and compactions least of all: all
        its threads could be waiting."""
        self.name = name
        self.settings = settings
        self.blobs = blobs
        self.clock = clock
        self.rng = rng
        self.configs = configs
        self.cache: BlockCache[Block] = BlockCache(settings.cache_bytes)
        self.fragments = Fragments(blobs, self.cache, reading)
        self.lock = RLock()
        self.commits = CommitTracker(max(clock.last, replayed.last_txn))
        self.wal = Wal(files, self.lock, settings.log, self, replayed)
        self.has_lost_end = replayed.has_lost_end
        self.replicas: dict[TabletId, Replica] = dict(replicas or {})
        """Of tablets that have several, led here or elsewhere. Changed under the lock."""
        self._map = self.map = TabletMap()  # public for point reads, to which a call more matters
        self.unsettled = self._map.unsettled
        self.doubts = Doubts(self.unsettled)
        self.horizons = Horizons(self.lock)
        self._room: list[Future[None]] = []
        self._in_memory_bytes = 0
        self._closed = False
        self.refused: list[StelaeError] = []  # by the disk, when it was logged: whoever tells of it takes it away

    # -- tablets

    def tablets(self) -> Mapping[TabletId, TabletState]:
        return dict(self._map.states)

    def of_table(self, table: TableId) -> list[TabletState]:
        """The table's tablets that this shard has, in the order of their rows."""
        return self._map.of_table(table)

    def state(self, tablet: TabletId) -> TabletState:
        return self._map.state(tablet)

    def state_at(self, table: TableId, row: bytes) -> TabletState:
        """The tablet that holds a row."""
        return self._map.at(table, row)

    def state_before(self, table: TableId, row: bytes | None) -> TabletState:
        """The tablet that holds the greatest rows below this one; None: of all."""
        return self._map.before(table, row)

    def tablets_changed(self, state: TabletState) -> bool:
        """Whether a state is not the current one any more."""
        return self._map.states.get(state.tablet) is not state

    def look(self, state: TabletState, ask: Callable[[TabletState, Fragments], T]) -> T:
        """What files say of a tablet, asked without the lock. A compaction may replace them meanwhile, and they are
        removed: then the tablet is asked as it is now (TabletAway: it is not here any more). Corruption if a file is
        not there that it needs now."""
        while True:
            try:
                return ask(state, self.fragments)
            except MissingFile as error:
                now = self.state(state.tablet)
                if now is state:
                    raise error.needed() from None
                state = now

    @property
    def changes(self) -> int:
        """How often states were installed: as long as it is the same, so are they."""
        return self._map.changes

    def change(self, tablet: TabletId, next_state: Callable[[TabletState], TabletState]) -> TabletState:
        with self.lock:
            state = next_state(self.state(tablet))
            self.install([state])
            return state

    # -- writing

    def apply(
        self,
        tablet: TabletId,
        block: WrittenBlock,
        *,
        payload: bytes | memoryview | None = None,
        max_txn: Txn | None = None,
        must_show: bool = False,
        urgent: bool = False,
        once: Once | None = None,
        places: int = 0,
    ) -> Commit:
        """Let a block in that `check_block` has passed. It is in memory and queued when this returns, and shown to
        nobody before it is durable. `once`: the number of so many `places` of which it is what is left to write; if
        they are done already, their commit. Conflict if a row it touches changed after `max_txn`, which is an
        UndecidedConflict if that change may still be taken back; WouldBeHidden if it `must_show` and might not;
        Overloaded if there is no room now (`when_room` says when to try)."""
        data = encode_block(block) if payload is None else payload
        if len(data) > (limit := self.settings.limits.block_bytes_max):
            raise InvalidArgument(f"a block of {len(data)} bytes; at most {limit} are taken at once")
        checksum = checksum_of(data)
        while True:
            state: TabletState | None = None
            if max_txn is not None:
                if once is not None and (found := self._find_done(tablet, once, places)) is not None:
                    return Commit(*found)
                state = self._check_unchanged(tablet, block, max_txn)
            with self.lock:
                if once is not None and (found := self._find_done(tablet, once, places)) is not None:
                    return Commit(*found)
                current = self.state(tablet)
                if max_txn is not None:
                    if current is not state:
                        continue
                    visible = self.visible_in(current)
                    check_unchanged(current, None, block, max_txn, self.horizon(current.table), visible)
                self._check_open()
                check_rows(current, block)
                self._check_room(len(data), urgent)
                txn = self.clock.tick()
                if self.unsettled and (must_show or max_txn is not None):
                    self.doubts.check(current.table, txn)
                if must_show:
                    check_shown(current, txn)
                active, commits = current.active, current.commits
                if commits.quorum is not None and commits.quorum.refusal:
                    raise Unavailable(commits.quorum.refusal)
                if not active.txns:
                    active.note_log(self.wal.end)
                before = active.size_bytes
                insert(active, block, txn, len(data))
                self._in_memory_bytes += active.size_bytes - before
                index = Index(commits.index + 1)
                number = (NO_CLIENT, NO_SEQUENCE) if once is None else logged_number(once, block, places)
                ids = (current.table, tablet, current.epoch, index, txn, *number)
                record = LogRecord(LogKind.BLOCK, *ids, data, checksum)
                try:
                    durable = self.wal.enqueue(record, (commits,))
                except StelaeError:
                    active.remove({txn})
                    raise
                commits.index = active.last_index = index
                if once is not None:
                    commits.done.note(once.client, once.sequence, places, txn)
                if commits.quorum is not None:
                    self.replicas[tablet].take(record, self.wal.end)
                return Commit(txn, durable)

    def _check_unchanged(self, tablet: TabletId, block: WrittenBlock, max_txn: Txn) -> TabletState:
        """The tablet in which no row of the block has changed after the txn; Conflict if one has."""

        def check(state: TabletState, fragments: Fragments) -> TabletState:
            check_unchanged(state, fragments, block, max_txn, self.horizon(state.table), self.visible_in(state))
            return state

        return self.look(self.state(tablet), check)

    def commit(self, table: TableId, change: TableChange, txn: Txn | None = None) -> Commit:
        """A change of all tablets of a table at one txn, in the order of the blocks. Readers see it when it is
        durable. `txn`: when it has happened, if others have decided that; it may lie before blocks that are here."""
        with self.lock:
            self._check_open()
            states = self._map.of_table(table)
            if not states:
                raise TabletAway(f"no tablet of table {table} is here")
            check_writable(states)
            if isinstance(change, Loaded) and not any(p.load == change.load for s in states for p in s.prepared):
                raise NotFound(f"load {change.load!r} is not prepared in table {table}, or was committed already")
            if txn is None:
                txn = self.clock.tick()
            else:
                self.clock.reach(txn)
            self.install([changed(state, change, txn) for state in states])
            data = encode_change(change)
            alone = [state for state in states if state.commits.quorum is None]
            pending = [self._log_change(state.tablet, [state], data, txn) for state in states if state not in alone]
            if alone:
                pending.append(self._log_change(NO_TABLET, alone, data, txn))
            return Commit(txn, all_done(pending, txn))

    @property
    def is_changing(self) -> bool:
        """States hold a change that may still be taken back. Under the lock; after a `drain` it is rarely so."""
        return self.commits.is_changing

    def _check_room(self, size: int, urgent: bool) -> None:
        limit = self.settings.unflushed_bytes_max + (self.settings.reserve_bytes if urgent else 0)
        held = self.wal.queued_bytes + self._in_memory_bytes
        if held and held + size > limit:
            raise Overloaded(f"{held} bytes wait to be written to files, and {limit} is the limit; try again shortly")

    def unflushed_bytes(self) -> int:
        return self.wal.queued_bytes + self._in_memory_bytes

    def when_room(self) -> Future[None]:
        """Done when memory has been freed next; at once if none is held, since the flush may have come just before."""
        future: Future[None] = Future()
        with self.lock:
            if self.unflushed_bytes():
                self._room.append(future)
                return future
        future.set_result(None)
        return future

    def recount_memory(self) -> None:
        """Count what memory holds now, and wake writers that wait for room."""
        with self.lock:
            self._in_memory_bytes = sum(memory.size_bytes for memory in self.memories())
        self._wake()

    def forget_memory(self, memory: Memory) -> None:
        """A memory that lies in files now: as `recount_memory`, without looking at all others."""
        with self.lock:
            self._in_memory_bytes = max(0, self._in_memory_bytes - memory.size_bytes)
        self._wake()

    def drain(self, until: TimeLeft | None = None) -> None:
        """Write and sync what was let in before; what others let in meanwhile is left to them. If another thread is at
        it, wait for that, no longer than `until`."""
        self.wal.drain(until)

    def drain_all(self) -> None:
        """Write and sync until nothing is queued, however much is let in meanwhile: for the log's own thread."""
        self.wal.drain_all()

    def sync(self) -> Commit:
        """Done when all that was let in so far is."""
        with self.lock:
            waiting = [entry.future for entry in self.commits.waiting()]
        return Commit(self.visible, all_done([*waiting, self.wal.sync()], self.visible))

    def publish(self, txn: Txn) -> None:
        """Something that is not in the log became visible at a txn; all below it is decided."""
        with self.lock:
            self.commits.publish(txn)

    # -- snapshots

    @property
    def visible(self) -> Txn:
        """What readers of all tablets may see: nothing at or below it is undecided in any."""
        return self.commits.visible

    def visible_in(self, state: TabletState) -> Txn:
        """What readers of one tablet may see: what its own commits say, or those of all if that is more."""
        own, of_all = state.commits.visible, self.commits.visible
        return max(of_all, own)

    def ready(self, at: Txn, table: TableId | None = None) -> Future[None] | None:
        """What a read at this txn must wait for first: until all below it is on disk or has failed. None if it can go
        ahead. Blocks that come later get a later txn. Unavailable if the clock may not answer so far ahead yet.
        `table`: only this one is read, and what waits for other replicas of others need not be waited for."""
        if at <= self.commits.visible:
            return None
        with self.lock:
            self.clock.reach(at)
            last = self.wal.last_undecided(at)
            waiting = [entry for entry in self.commits.waiting() if entry.record.txn <= at]
            if last is None and not waiting:
                self.commits.publish(at)
                return None
            pending = [entry.future for entry in waiting if table in (None, entry.record.table)]
            if last is None and not pending:
                return None
        return settled_all(pending if last is None else [*pending, last])

    def horizon(self, table: TableId) -> Txn:
        return self.horizons.horizon(table)

    def advance_horizon(self, table: TableId, to: Txn) -> Txn:
        return self.horizons.advance_horizon(table, to)

    def pin(self, at: Txn) -> SnapshotPin:
        return self.horizons.pin(at)

    def pinned(self, at: Txn, table: TableId | None = None) -> AbstractContextManager[Txn]:
        return self.horizons.pinned(at, table)

    def check_snapshot(self, table: TableId, at: Txn) -> None:
        self.horizons.check_snapshot(table, at)

    def check_readable(self, state: TabletState, at: Txn) -> None:
        """SnapshotTooOld if this state of a tablet may lack history that the snapshot needs."""
        if at < state.purged_below or at < self.horizons.horizon(state.table):
            self.horizons.check_snapshot(state.table, at, state.purged_below)

    def segments(self) -> tuple[SegmentInfo, ...]:
        return self.wal.segments()

    def abandon(self) -> None:
        """As if the process had ended here: nothing more is written."""
        with self.lock:
            self._closed = True
        self.wal.let_go()
        self.fragments.close()

    def close(self) -> None:
        """All accepted blocks are decided; nothing is let in any more. What is still read opens its files again."""
        with self.lock:
            self._closed = True
        self.wal.close()
        self.fragments.close()
