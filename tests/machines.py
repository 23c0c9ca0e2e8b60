"""A machine to open stores and servers on, all simulated: its log disk, its files, its metastore and its time, in one
thread.

Whatever a process does to any of them is an effect, counted in one order. `fork` copies the machine as it is in the
middle of an effect, so one run of a script gives a crash at each of its effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from copy import deepcopy
from typing import Any, Self, TypeVar

from stelae.model.errors import StelaeError, UnknownOutcome
from stelae.ports.metastore import Change, Compare, Entry, LeaseId, RangeRead, Revision, TxnOutcome, WatchBatch
from stelae.ports.metastore_rules import check_txn_request
from stelae.sim.blobs import SimBlobStore
from stelae.sim.disk import SimDisk
from stelae.sim.effects import Effect, Effects, Faults
from stelae.sim.loop import SimLoop
from stelae.sim.loop_clock import SkewedClock
from stelae.sim.metastore_state import MetastoreState
from stelae.sim.rng import SimRng
from stelae.sim.threads.blocking import run_blocking
from stelae.storage.files.trash import TRASH

T = TypeVar("T")


class PlainMetastore:
    """A `Metastore` that answers at once, and lives as long as its process. `faults` of kind "txn" refuse one that was
    never made, of kind "answer" lose the answer of one that was. `refuses`: what all are met by, from now on."""

    def __init__(self, state: MetastoreState, effects: Effects) -> None:
        self.faults = Faults()
        self.refuses: type[StelaeError] | None = None
        self.tried = 0
        self.txns = 0
        self._state = state
        self._effects = effects
        self._waiting: list[asyncio.Future[None]] = []

    async def get(self, key: str, revision: Revision | None = None) -> Entry | None:
        self._effects.check_alive()
        return self._state.get(key, revision)

    async def range(
        self, prefix: str, *, start: str | None = None, limit: int | None = None, revision: Revision | None = None
    ) -> RangeRead:
        self._effects.check_alive()
        return self._state.range(prefix, start, limit, revision)

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        check_txn_request(compares, changes)
        self.tried += 1
        if refusal := self.faults.due("txn") or self.refuses:
            raise refusal("simulated fault: the metastore refuses")
        self._happen("txn")
        outcome = self._state.txn(compares, changes)
        self.txns += 1
        self._wake()
        if self.faults.due("answer"):
            raise UnknownOutcome("simulated fault: the answer was lost")
        return outcome

    async def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        while True:
            self._effects.check_alive()
            for batch in list(self._state.batches(prefix, from_revision)):
                from_revision = Revision(batch.revision + 1)
                yield batch
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    async def grant(self, ttl_s: float) -> LeaseId:
        self._happen("grant")
        return self._state.grant()

    async def keep_alive(self, lease: LeaseId) -> float:
        self._effects.check_alive()
        self._state.check_lease(lease)
        return 60.0

    async def revoke(self, lease: LeaseId) -> None:
        self._happen("revoke")
        self._state.end_lease(lease)
        self._wake()

    async def compact(self, revision: Revision) -> None:
        self._happen("compact")
        self._state.compact(revision)

    async def close(self) -> None:
        self._wake()

    def _happen(self, kind: str) -> None:
        self._effects.happen(kind, "metastore")

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class OneThread:
    """A `Loop` in the caller's own thread and in virtual time. What the loop itself calls may ask for no more than what
    can be had without waiting."""

    def __init__(self, seed: int, loop: SimLoop | None = None) -> None:
        self.loop = SimLoop(seed) if loop is None else loop

    def run(self, job: Awaitable[T]) -> T:
        if self.loop.is_running():
            return _at_once(job)
        return run_blocking(self.loop, job if asyncio.iscoroutine(job) else _awaited(job))

    def drop(self) -> None:
        """What runs on it ends where it is."""
        self.loop._drop()


async def _awaited(job: Awaitable[T]) -> T:
    return await job


def _at_once(job: Awaitable[T]) -> T:
    steps = job.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("a job on the loop waits for a job on the loop")


class SimMachine:
    """Outlives its processes. `start` begins one, `end` ends it."""

    def __init__(self, seed: int, on_effect: Callable[[Effect], None] | None = None) -> None:
        self.chance = SimRng(seed)
        self.effects = Effects(on_effect=on_effect)
        self.disk = SimDisk(self.chance, (64, 4096, 256)[seed % 3], self.effects)
        self.blobs = SimBlobStore(self.chance, self.effects)
        self.metastate = MetastoreState()
        self.elapsed_ms = 0
        self.lives = 0
        self.metastore: PlainMetastore
        self.clock: SkewedClock
        self._loop: OneThread | None = None

    def fork(self, seed: int) -> Self:
        """A copy of all that outlives a process, as it is now. The seed says what is left of what is not durable."""
        other = type(self)(seed)
        memo: dict[int, Any] = {id(self.effects): other.effects, id(self.chance): other.chance}
        other.disk, other.blobs = deepcopy((self.disk, self.blobs), memo)
        other.metastate = copy_of(self.metastate)
        other.elapsed_ms, other.lives = self._now_ms(), self.lives
        return other

    def _now_ms(self) -> int:
        return self.elapsed_ms + (int(self._loop.loop.time() * 1_000) if self._loop is not None else 0)

    def start(self) -> OneThread:
        """The loop of a new process."""
        self.lives += 1
        self._loop = OneThread(self.lives)
        self.clock = SkewedClock(self._loop.loop, self.elapsed_ms)
        self.metastore = PlainMetastore(self.metastate, self.effects)
        return self._loop

    def pass_s(self, seconds: int) -> None:
        self.clock.step_wall_ms(seconds * 1_000)
        self.elapsed_ms += seconds * 1_000

    def end(self, how: str) -> None:
        """`how`: "closed" if the store was, "kill" of the process, "power" loss. The next begins a second later."""
        self.elapsed_ms = self._now_ms() + 1_000
        if self._loop is not None:
            self._loop.drop()
            self._loop = None
        if how == "kill":
            self.disk.kill()
            self.blobs.crash()
        elif how == "power":
            self.disk.crash()
            self.blobs.crash()
        self.effects.restart()

    def files(self) -> set[str]:
        """Without those that were put aside."""
        return {info.name for info in self.blobs.list() if not info.name.startswith(TRASH)}


def copy_of(state: MetastoreState) -> MetastoreState:
    """Its entries are immutable: only what holds them is copied."""
    other = MetastoreState()
    for name, value in vars(state).items():
        match value:
            case list():
                setattr(other, name, list(value))
            case dict():
                setattr(other, name, {key: type(inner)(inner) for key, inner in value.items()})
            case _:
                setattr(other, name, value)
    return other
