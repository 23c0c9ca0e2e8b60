"""The lease of a shard, as the shard itself has it: it renews it, and answers nothing about rows while it has none.

- *Beginning.* Whoever begins to be the shard has written another fence, so no renewal of an earlier process comes after
  it: its clock goes on above the bound of the last lease (`resume`), and it answers once it has a lease of its own.
- *Renewing.* Four times in each duration, by compare-and-set. An answer that was lost is looked for before anything
  else is written. The shard relies on a renewal for nine tenths of the duration, from before it asked for it.
- *The metastore is away*: rows are answered until the lease ends, then refused in words, and again answered when it is
  back. Nobody else has begun to be the shard meanwhile, or the renewal fails.
- *The log does not move*: a shard whose disk hangs does not renew: it would keep its rows from everybody.
- *Another process is the shard*: nothing is answered any more, and `end` is called, once.

Nothing is asked of the lease on the way of a request but one comparison of times (`check`). The bound is the clock's
matter (`HybridClock.limit`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from stelae.model.errors import Deposed, StelaeError, Unavailable, UnknownOutcome
from stelae.model.events import LeaseLost, LeaseRegained, Listener
from stelae.model.hybrid import TXN_MIN, HybridClock
from stelae.model.ids import Txn
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.registry.incarnations import FencedStore, ShardFence
from stelae.registry.leases.held import RENEWALS, HeldLease
from stelae.registry.leases.shard import ShardLease, lease_key, next_bound, read_lease, shard_lease_of
from stelae.tserver.lease.pulse import LogPulse, MovingLog

P = ParamSpec("P")
R = TypeVar("R")

_RETRIES = 16
"""How often in a duration it is tried again while there is trouble."""
_STEPS_MAX = 64
"""How often at most, however many were refused."""


async def resume(store: Metastore, fence: ShardFence, time: HybridClock) -> HeldLease[ShardLease]:
    """What an earlier process of the shard has left of its lease. From here on the clock is above all that it gave out
    and answered. The fence was written before."""
    entry = await read_lease(store, fence.node, fence.number)
    key = lease_key(fence.node, fence.number)
    if entry is None:
        return HeldLease(key, shard_lease_of, ShardLease(0, 0, 0, TXN_MIN), None)
    left = shard_lease_of(entry)
    time.resume(Txn(left.bound))
    return HeldLease(key, shard_lease_of, left, entry.mod_revision)


class Leasing:
    """For the tasks of one event loop; `check`, `doubt` and `hurry` may be called from anywhere."""

    def __init__(
        self,
        store: FencedStore,
        fence: ShardFence,
        held: HeldLease[ShardLease],
        clock: Clock,
        time: HybridClock,
        log: MovingLog,
        duration_s: float,
        tell: Listener,
        end: Callable[[], None] | None = None,
    ) -> None:
        """`held`: what `resume` has found. `time` gives out the shard's txns. `end` is called on the loop when another
        process is the shard."""
        self._store = store
        self._fence = fence
        self._held = held
        self._clock = clock
        self._time = time
        self._log = log
        self._duration_s = duration_s
        self._tell = tell
        self._end = end
        self._is_lost = False
        """Whether it was told that nothing is answered."""
        self._pulse = LogPulse()
        self._until_s = self._stepped_s = float("-inf")
        self._trouble: StelaeError | None = None
        self._is_deposed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the lease, and renew it from then on. If it cannot be taken now, the shard answers no rows until it
        can; Deposed if another process is the shard."""
        self._loop = asyncio.get_running_loop()
        self._time.on_bound = self.hurry
        await self._step()
        if self._is_deposed and self._trouble is not None:
            raise self._trouble
        self._task = asyncio.create_task(self._go_on(), name="shard-lease")

    async def close(self, *, in_order: bool) -> None:
        """Renew it no more. `in_order`: nothing is answered or given out any more, so it is given back with all that
        was as its bound: whoever begins next skips nothing."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._until_s = float("-inf")
        if in_order and not self._is_deposed:
            last = self._time.last
            self._time.limit(last)
            with suppress(StelaeError):  # then the next one begins above the bound
                await self._write(lambda lease: self._following(lease, last, is_over=True))

    # -- whether rows are answered

    def check(self) -> None:
        """Unavailable, in words, if nothing may be answered about rows now."""
        if self._clock.monotonic_s() >= self._until_s:
            raise self._refusal()

    def doubt(self) -> UnknownOutcome | None:
        """What a writer is told instead of its txn, if nothing may be acknowledged now."""
        if self._clock.monotonic_s() < self._until_s:
            return None
        return UnknownOutcome(f"the write is on the shard's disk, and may count or not: {self._refusal()}")

    @property
    def is_valid(self) -> bool:
        return self._clock.monotonic_s() < self._until_s

    @property
    def is_deposed(self) -> bool:
        """Whether another process has begun to be the shard."""
        return self._is_deposed

    def reading(self, call: Callable[P, R]) -> Callable[P, R]:
        """The same call, refused without a lease: before it, so that nothing is done in vain, and after it, since what
        was read was the newest only if there is one still."""
        clock = self._clock

        def read(*args: P.args, **options: P.kwargs) -> R:
            if clock.monotonic_s() >= self._until_s:
                raise self._refusal()
            found = call(*args, **options)
            if clock.monotonic_s() >= self._until_s:
                raise self._refusal()
            return found

        return read

    def writing(self, call: Callable[P, R]) -> Callable[P, R]:
        """The same call, refused without a lease; UnknownOutcome if that has ended meanwhile. A write that comes back
        as a future is acknowledged by whoever asks `doubt` when it is done."""

        def write(*args: P.args, **options: P.kwargs) -> R:
            self.check()
            done, doubt = call(*args, **options), self.doubt()
            if doubt is not None:
                raise doubt
            return done

        return write

    def hurry(self) -> None:
        """Renew soon: something was refused because of the bound. From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and so has the shard
                self._loop.call_soon_threadsafe(self._hurried.set)

    def _refusal(self) -> Unavailable:
        reason = "" if self._trouble is None else f": {self._trouble}"
        return Unavailable(
            f"shard {self._fence.name} could not renew its lease, and answers nothing about rows until it can{reason}"
        )

    # -- renewing

    async def _go_on(self) -> None:
        while not self._is_deposed:
            parts = RENEWALS if self._trouble is None else _RETRIES
            with suppress(TimeoutError):
                async with asyncio.timeout(self._duration_s / parts):
                    await self._hurried.wait()
            await asyncio.sleep(self._stepped_s + self._duration_s / _STEPS_MAX - self._clock.monotonic_s())
            self._hurried.clear()
            await self._step()

    async def _step(self) -> None:
        self._stepped_s = self._clock.monotonic_s()
        try:
            self._check_log()
            if not await self._write(self._renewed):
                raise Unavailable("its lease was written by somebody else, who may not")
        except Deposed as error:
            self._is_deposed = self._is_lost = True
            self._trouble, self._until_s = error, float("-inf")
            self._tell(LeaseLost(self._fence.name, str(error), is_final=True))
            if self._end is not None:
                self._end()
        except StelaeError as error:  # the next step looks again; whoever asks is told
            self._trouble = error
            if not self._is_lost and not self.is_valid:
                self._is_lost = True
                self._tell(LeaseLost(self._fence.name, str(error), is_final=False))
        else:
            self._trouble = None
            if self._is_lost:
                self._is_lost = False
                self._tell(LeaseRegained(self._fence.name))

    def _check_log(self) -> None:
        now_s = self._clock.monotonic_s()
        self._pulse.note(self._log.end, self._log.queued_bytes, now_s)
        if self._pulse.is_stuck(now_s, self._duration_s):
            raise Unavailable(
                f"its log has taken nothing for {self._pulse.stood_s(now_s):.1f} s, though writes wait: look at the "
                "disk it lies on"
            )

    async def _write(self, following: Callable[[ShardLease], ShardLease]) -> bool:
        held = self._held
        if not await held.renew(self._store, self._clock, self._duration_s, following):
            return False
        self._time.limit(Txn(held.lease.bound))
        if not held.lease.is_over:
            self._until_s = held.until_s
        return True

    def _renewed(self, lease: ShardLease) -> ShardLease:
        wall_ms, duration_ms = self._clock.wall_ms(), int(self._duration_s * 1_000)
        return self._following(lease, next_bound(Txn(lease.bound), self._time.last, wall_ms, duration_ms))

    def _following(self, lease: ShardLease, bound: Txn, *, is_over: bool = False) -> ShardLease:
        me = self._fence.incarnation
        renewals = lease.renewals + 1 if lease.incarnation == me else 1
        return ShardLease(me, renewals, int(self._duration_s * 1_000), bound, is_over)
