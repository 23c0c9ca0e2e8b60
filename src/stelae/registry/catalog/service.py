"""The catalog as one process sees it: follows the update log, appends to it, and names the catalog of any time.

*Execute.* Commands are judged against the newest version, the entries appended by compare-and-set, and again against
the newer version if someone else was faster. A lost answer is no answer: the update carries a token, and before every
further attempt the log is read up to its end and searched for it, so that nothing is applied twice. The call returns
once the new version is active everywhere: when its activation, plus the largest skew between clocks, has passed here. A
command that is refused, or has nothing to do, waits the same way for the version it was judged against. Attempts end at
the caller's deadline, and a disk that is full or broken is told at once: it takes people to mend that. But who does not
know whether it happened goes on looking.

*Follow.* Versions are applied in order, each once. If the log cannot be followed (bad bytes), the service stops with
that error, and every call raises it.

*At a time.* `catalog_at(ts)` answers only when `closed` has passed ts: then no version can activate at or below it any
more, and everybody who asks, ever, gets the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stelae.catalog.decide import COMMANDS_MAX, Command, decide_batch
from stelae.catalog.entries import Update
from stelae.catalog.value import Catalog, CatalogVersion, empty_catalog
from stelae.model import hybrid
from stelae.model.errors import (
    Closed,
    Deposed,
    DiskFailed,
    DiskFull,
    InvalidArgument,
    Overloaded,
    Retryable,
    SnapshotTooOld,
    StelaeError,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import Txn
from stelae.ports.clock import Clock
from stelae.ports.metastore import Compacted, KeyPut, LeaseExpired, Metastore, PutKey, WatchBatch
from stelae.ports.rng import Rng
from stelae.registry.catalog import update_log as log
from stelae.registry.catalog.compaction import CatalogCompaction
from stelae.registry.catalog.history import CatalogHistory, read_history
from stelae.registry.catalog.settings import CatalogSettings
from stelae.registry.catalog.version_pins import VersionPins
from stelae.registry.decoding import number_of
from stelae.registry.schema_versions import SchemaVersions
from stelae.service.deadlines import Deadline, left_of

_WALL_WAIT_MS_MAX = 1_000
"""A wall clock that is further behind an activation was set back, or another's is ahead: nobody waits for that."""
_NAP_S = 0.2


class CatalogService:
    """Made by `following`. For the tasks of one event loop."""

    def __init__(self, store: Metastore, clock: Clock, time: hybrid.HybridClock, rng: Rng, settings: CatalogSettings):
        self._store = store
        self._clock = clock
        self.time = time
        self._rng = rng
        self._settings = settings
        self._history = CatalogHistory(empty_catalog())
        self._skips = 0
        """How often versions were passed over that were compacted before they were read here."""
        self.schemas = SchemaVersions()
        self._closed_at = Txn(0)
        self._changed = asyncio.Condition()
        self._failure: StelaeError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.pins = VersionPins(store, rng, settings.lease_s)

    async def start(self) -> None:
        """Read the log up to now and go on following it."""
        head = await self._recover_and_hold()
        follower = asyncio.create_task(self._stop_if_it_fails(lambda: self._follow(head)), name="catalog-follow")
        keeper = asyncio.create_task(self._stop_if_it_fails(self.pins.keep_alive), name="catalog-pins")
        self._tasks = {follower, keeper}

    async def _recover_and_hold(self) -> log.LogHead:
        """What was read may be compacted before it is held: then it is read anew, from the snapshot."""
        for attempt in range(self._settings.attempts_max):
            try:
                head = await self._recover()
                await self.pins.start(self._history.latest.version)
            except (SnapshotTooOld, Compacted):
                await self._back_off(attempt)
            else:
                return head
        raise Overloaded("the catalog was compacted faster than it could be read; try again")

    async def close(self) -> None:
        """Stops following; waiters get Closed. Closing twice is no error."""
        await self._fail(Closed("the catalog service is closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = set()
        await self.pins.close()

    @property
    def latest(self) -> Catalog:
        """The newest version read in this process, active or not."""
        self._check_alive()
        return self._history.latest

    @property
    def earliest(self) -> Catalog:
        """The oldest version this process can still name."""
        self._check_alive()
        return self._history.earliest

    def catalog(self, version: CatalogVersion) -> Catalog:
        """A version known here: see `wait_ready` for one that is not yet."""
        self._check_alive()
        return self._history.version(version)

    async def wait_ready(self, version: CatalogVersion) -> Catalog:
        """The catalog of that version, once it has arrived here."""
        await self._wait_until(lambda: self._history.latest.version >= version)
        return self.catalog(version)

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        """Until the follower has come so far, or the service has stopped (which raises)."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure is not None or holds())
        self._check_alive()

    async def catalog_at(self, ts: Txn, *, deadline: Deadline | None = None) -> Catalog:
        """The catalog that is active at a time: the same for everybody, whenever they ask."""
        self._check_alive()
        if ts > self._closed_at:
            # Closing a time keeps everybody's commands from counting before it: the clock refuses the far future.
            self.time.merge(ts)
            await self._close_time(ts, deadline)
        return self._history.at(ts)

    async def end_doubts(self) -> Catalog:
        """The newest catalog. What was sent before, and whose answer was lost, is in it or can happen no more."""
        await self._close_time(max(self.time.tick(), Txn(self._closed_at + 1)), None)
        return self.latest

    async def execute(
        self, *commands: Command, deadline: Deadline | None = None, through: Metastore | None = None
    ) -> Catalog:
        """Carry out a batch as one version, all or nothing; the catalog it led to. Raises what stands against it.
        UnknownOutcome: the metastore could not be asked for long enough, or until the deadline, to tell whether it
        happened. `through`: the same metastore, as a master that leads writes to it; Deposed if it leads no more."""
        if len(commands) > COMMANDS_MAX:
            raise InvalidArgument(f"{len(commands)} commands in one batch; at most {COMMANDS_MAX}")
        # Pinned, so that compaction leaves every version in which the token could be found.
        async with self.pins.pin(self.latest.version, deadline):
            return await self._execute(commands, deadline, through or self._store)

    async def _execute(self, commands: tuple[Command, ...], deadline: Deadline | None, store: Metastore) -> Catalog:
        token, skips = self._rng.token(16), self._skips
        in_doubt = False
        deposed: Deposed | None = None
        for attempt in range(self._settings.attempts_max):
            try:
                base = await self._sync()
                made_in = self._history.made_by(token)
                if made_in is not None:
                    return await self._wait_active(self.catalog(made_in))
                if in_doubt and self._skips != skips:
                    break
                if deposed is not None:  # what was sent before can happen no more, and has not happened
                    in_doubt = False
                    raise deposed
                is_made = await self._attempt(base, commands, token, store)
            except UnknownOutcome:
                in_doubt = True
            except Deposed as error:
                if not in_doubt:
                    raise
                deposed = error
            except Unavailable as error:
                if not in_doubt and self._is_final(error, attempt, deadline):
                    raise
            else:
                if is_made is None:
                    return await self._wait_active(base)
                if is_made:
                    made = await self.wait_ready(CatalogVersion(base.version + 1))
                    self._compact_if_due(made)
                    return await self._wait_active(made)
            if deadline is not None and deadline.is_over:
                break
            await self._back_off(attempt, deadline)
        if in_doubt:
            raise UnknownOutcome("the metastore lost the answer and cannot be asked: the change may have happened")
        raise Overloaded(f"the catalog changed under {attempt + 1} attempts; try again")

    def _is_final(self, error: StelaeError, attempt: int, deadline: Deadline | None) -> bool:
        """Whether there is no other attempt after this one, of which nothing has happened."""
        is_last = attempt + 1 == self._settings.attempts_max or (deadline is not None and deadline.is_over)
        return is_last or isinstance(error, DiskFull | DiskFailed)

    async def _attempt(
        self, base: Catalog, commands: tuple[Command, ...], token: bytes, store: Metastore
    ) -> bool | None:
        """Judge and append once: whether this made the next version; None if there is nothing to do."""
        try:
            entries = decide_batch(base, commands)
        except Unavailable:
            raise
        except StelaeError:
            await self._wait_active(base)
            raise
        if not entries:
            return None
        floor = max(base.activation, self._closed_at)
        activation = max(Txn(self.time.tick() + (self._settings.delay_ms << hybrid.COUNTER_BITS)), Txn(floor + 1))
        author = self._settings.author.encode(errors="replace").decode()
        update = Update(CatalogVersion(base.version + 1), activation, token, author, entries)
        value = await log.encode_update(self._store, update, self._rng.token(12))
        return value is not None and (await log.append(store, update, value, self._closed_at)).succeeded

    async def _sync(self) -> Catalog:
        """Know everything that anybody was told has happened."""
        self._check_alive()
        head = await log.read_head(self._store)
        await self._wait_until(lambda: self._history.latest.version >= head.version and self._closed_at >= head.closed)
        return self.latest

    async def _wait_active(self, catalog: Catalog) -> Catalog:
        """Until every clock within the skew has passed the activation: on one machine, until the next millisecond. A
        wall clock that was set back is not waited for; hybrid time moves past the activation by itself."""
        settings = self._settings
        due_ms = hybrid.millis_of(catalog.activation) + settings.skew_ms + 1
        wait_ms_max = settings.delay_ms + settings.skew_ms + _WALL_WAIT_MS_MAX
        while 0 < (left_ms := due_ms - self._clock.wall_ms()) <= wait_ms_max:
            await asyncio.sleep(min(left_ms / 1_000, _NAP_S))
            self._check_alive()
        self.time.resume(catalog.activation)
        return catalog

    async def _close_time(self, ts: Txn, deadline: Deadline | None) -> None:
        """Promise that no version will activate at or below ts, by compare-and-set against appends."""
        for attempt in range(self._settings.attempts_max):
            try:
                await self._sync()
                if self._closed_at >= ts:
                    return
                await self._store.txn(
                    [log.same_number(log.CLOSED_KEY, self._closed_at)],
                    [PutKey(log.CLOSED_KEY, log.number_value(ts))],
                )
                await self._sync()
            except (Unavailable, UnknownOutcome) as error:
                if self._is_final(error, attempt, deadline):
                    raise
            if self._closed_at >= ts:
                return
            if deadline is not None and deadline.is_over:
                break
            await self._back_off(attempt, deadline)
        raise Overloaded(f"the catalog could not be closed at {ts}; try again")

    async def compact(self, target: CatalogVersion | None = None, gain_min: int = 1) -> CatalogVersion | None:
        """Replace the versions before the target (the newest, unless given), or before the oldest that anybody still
        needs, by a snapshot, if so many go. The version the log now begins with, or None if it stays as it is."""
        self._check_alive()
        compaction = CatalogCompaction(self._store, self._rng, self.pins, self.catalog)
        return await compaction.run(self.latest.version if target is None else target, gain_min)

    def _compact_if_due(self, made: Catalog) -> None:
        """Whoever makes a version that is due compacts, beside its other work."""
        if made.version % self._settings.snapshot_every == 0:
            task = asyncio.create_task(self._compact_quietly(), name="catalog-compact")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _compact_quietly(self) -> None:
        try:
            await self.compact()
        except (Unavailable, UnknownOutcome, SnapshotTooOld, LeaseExpired, Closed):
            return  # it is due again after as many versions

    async def _back_off(self, attempt: int, deadline: Deadline | None = None) -> None:
        limit = min(self._settings.backoff_max_s, self._settings.backoff_s * 2**attempt)
        seconds, left_s = limit * (0.5 + self._rng.fraction() / 2), left_of(deadline)
        await asyncio.sleep(seconds if left_s is None else min(seconds, left_s))

    async def _recover(self) -> log.LogHead:
        """The base, and every version since, in memory."""
        head = await log.read_head(self._store)
        self._history, self.schemas = await read_history(self._store, head)
        self._closed_at = head.closed
        self.time.resume(max(head.closed, self._history.latest.activation))
        return head

    async def _follow(self, head: log.LogHead) -> None:
        while True:
            try:
                async for batch in self._store.watch(log.PREFIX, type(head.revision)(head.revision + 1)):
                    await self._take(batch)
            except Compacted:
                head = await self._read_on()
            else:
                return

    async def _read_on(self) -> log.LogHead:
        """This process was away so long that the metastore has forgotten what it would have watched. The versions since
        are in the log; or in its snapshot, if it was compacted past what was read here. Then a
        token that was sent is found no more."""
        known = self._history.latest.version
        while True:
            try:
                head = await log.read_head(self._store)
                if head.oldest > known:
                    head = await self._recover()
                    self._skips += 1
                    await self.pins.progress(self._history.latest.version)
                else:
                    async for update in log.read_updates(self._store, self._history.latest.version, head):
                        await self._take_update(update)
                    self._closed_at = head.closed
            except (Unavailable, Compacted):
                await self._back_off(0)
            else:
                await self._tell_waiting()
                return head

    async def _take(self, batch: WatchBatch) -> None:
        """Updates first: `closed` means something only to who knows all versions before it."""
        puts = [event.entry for event in batch.events if isinstance(event, KeyPut)]
        for entry in puts:
            if entry.key.startswith(log.UPDATE_PREFIX):
                await self._take_update(await log.decode_update(self._store, entry, entry.mod_revision))
        for entry in puts:
            if entry.key == log.CLOSED_KEY:
                self._closed_at = Txn(number_of(entry))
            elif entry.key == log.SNAPSHOT_KEY:
                self._history.forget_before(CatalogVersion(log.snapshot_mark(entry).version))
        await self._tell_waiting()

    async def _take_update(self, update: Update) -> None:
        catalog = log.apply_checked(self._history.latest, update)
        self._history.add(catalog, update)
        self.schemas.follow(catalog, update)
        if not (self._settings.delay_ms or self._settings.skew_ms):
            self.time.resume(catalog.activation)
        await self.pins.progress(catalog.version)

    async def _stop_if_it_fails(self, work: Callable[[], Awaitable[None]]) -> None:
        """Whatever stops a background task stops the service, and says why to everybody."""
        try:
            await work()
        except StelaeError as error:
            await self._fail(error)
        except Exception as error:
            await self._fail(StelaeError(f"the catalog service stopped: {type(error).__name__}: {error}"))
            raise

    async def _fail(self, error: StelaeError) -> None:
        if self._failure is None:
            retryable = isinstance(error, Retryable | UnknownOutcome)
            self._failure = StelaeError(f"the catalog service stopped: {error}") if retryable else error
        await self._tell_waiting()

    async def _tell_waiting(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure
