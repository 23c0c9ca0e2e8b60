"""Which of several masters leads, as one of them sees it: it follows the lease of whoever leads, takes it when that was
not renewed for long enough, and renews it while it has it.

Taking it is one transaction: the lease and another guard. From then on every other master's transactions fail, whatever
they believe. A master that cannot renew in time leads no more until it can, and if nobody took its place it goes on as
before; if somebody did, it is told so (`tell` hears None) and follows again.

A master that cannot do what leading takes gives the lease back, and leaves it to others for twice as long as it lasts.

Crash points: before the transaction nothing happened; after it, a lease that nobody renews, which the next one takes.
An answer that was lost: whoever does not know that it took the lease finds it under its own id, and takes it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from stelae.model.errors import Deposed, StelaeError
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore, PutKey
from stelae.ports.rng import Rng
from stelae.registry.leases.held import LOOKS, RENEWALS, HeldLease, relied_on_until_s
from stelae.registry.masters.guard import GUARD_KEY, HeldGuard, next_guard
from stelae.registry.masters.lease import LEASE_KEY, MasterLease, SeenLease, lease_of

_LEFT_TO_OTHERS = 2.0
"""So many times as long as a lease lasts does a master that gave it up leave it to others."""


class MasterIdentity(msgspec.Struct, frozen=True):
    """`id`: lies in the master's directory, which one process at a time has. `name`: what people call it."""

    id: str
    name: str


class _Holding(msgspec.Struct, frozen=True):
    held: HeldGuard
    lease: HeldLease[MasterLease]


class Leadership:
    """For the tasks of one event loop; `held` and `check` may be asked from anywhere."""

    def __init__(
        self,
        store: Metastore,
        clock: Clock,
        rng: Rng,
        me: MasterIdentity,
        duration_s: float,
        tell: Callable[[HeldGuard | None], None],
    ) -> None:
        """`tell` hears on the loop of each guard that this master begins to lead with, and None when it does no more,
        because another one does."""
        self._store = store
        self._clock = clock
        self._me = me
        self._life = rng.token(8).hex()
        self._duration_s = duration_s
        self._tell = tell
        self._seen = SeenLease()
        self._holding: _Holding | None = None
        self._address = ""
        self._trouble = ""
        self._given_up: tuple[HeldGuard, str] | None = None
        self._others_until_s = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def start(self, address: str) -> None:
        """Serving at that address, take the lease if it is free now. From then on follow it, or renew it."""
        self._address = address
        await self._step()
        self._task = asyncio.create_task(self._go_on(), name="leadership")

    async def close(self) -> None:
        """The lease is given back, so that nobody waits for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        holding, self._holding = self._holding, None
        if holding is not None:
            with suppress(StelaeError):  # then it ends by itself
                await self._write(holding, is_over=True)

    def give_up(self, held: HeldGuard, why: str) -> None:
        """At the next step, if this master leads with that guard then: let another lead. `why`: what this one says to
        whoever asks it until it leads again."""
        self._given_up = held, why

    @property
    def held(self) -> HeldGuard | None:
        """What this master leads with, if it does now."""
        holding = self._holding
        if holding is None or self._clock.monotonic_s() >= holding.lease.until_s:
            return None
        return holding.held

    def check(self, held: HeldGuard) -> None:
        """Deposed if this master does not lead (any more) with that guard, or does not know: whoever asks is to look
        who does."""
        holding = self._holding
        if holding is None or holding.held != held:
            raise self.refusal()
        if self._clock.monotonic_s() >= holding.lease.until_s:
            raise Deposed(f"master {self._me.name} could not renew its lease{self._trouble}")

    def refusal(self) -> Deposed:
        lease = self._seen.lease
        who = "nobody leads yet" if lease is None else f"{lease.master} led last"
        why = "" if self._given_up is None else f"; this one gave up leading: {self._given_up[1]}"
        return Deposed(f"master {self._me.name} stands by: {who}{why}{self._trouble}")

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(self._duration_s / (LOOKS if self._holding is None else RENEWALS))
            await self._step()

    async def _step(self) -> None:
        try:
            if self._holding is None:
                await self._follow()
            elif self._given_up is not None and self._given_up[0] == self._holding.held:
                await self._give_back(self._holding)
            else:
                await self._renew(self._holding)
        except StelaeError as error:  # the next step looks again; whoever asks is told
            self._trouble = f": {error}"
        else:
            self._trouble = ""

    async def _follow(self) -> None:
        entry = await self._store.get(LEASE_KEY)
        self._seen.note(entry, self._clock.monotonic_s())
        now_s = self._clock.monotonic_s()
        if not self._seen.is_free(self._me.id, now_s) or now_s < self._others_until_s:
            return
        guard_entry = await self._store.get(GUARD_KEY)
        guard, guard_unchanged = next_guard(guard_entry, self._me.name, self._address)
        lease = MasterLease(self._me.name, self._me.id, self._life, 1, int(self._duration_s * 1_000))
        revision = None if entry is None else entry.mod_revision
        taken, asked_s = HeldLease(LEASE_KEY, lease_of, lease, revision), self._clock.monotonic_s()
        outcome = await self._store.txn(
            [taken.unchanged, guard_unchanged], [PutKey(LEASE_KEY, lease.value), PutKey(GUARD_KEY, guard.value)]
        )
        if outcome.succeeded:
            held = HeldGuard(guard, outcome.revision)
            taken.revision, taken.until_s = outcome.revision, relied_on_until_s(asked_s, self._duration_s)
            self._holding, self._given_up = _Holding(held, taken), None
            self._tell(held)

    async def _renew(self, holding: _Holding) -> None:
        if not await self._write(holding):
            self._holding = None
            self._tell(None)
            self._seen.note(await self._store.get(LEASE_KEY), self._clock.monotonic_s())

    async def _give_back(self, holding: _Holding) -> None:
        """What this master was at is refused from the moment that another takes the lease. If this cannot be written
        now, the lease ends by itself."""
        self._others_until_s = self._clock.monotonic_s() + _LEFT_TO_OTHERS * self._duration_s
        self._holding = None
        self._tell(None)
        await self._write(holding, is_over=True)

    async def _write(self, holding: _Holding, *, is_over: bool = False) -> bool:
        """Whether this master still had the lease. Raises if that is not known."""
        following = partial(MasterLease.following, is_over=is_over)
        compares = (holding.held.unchanged,)
        return await holding.lease.renew(self._store, self._clock, self._duration_s, following, compares)
