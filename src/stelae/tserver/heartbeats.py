"""A shard's heartbeats: every second the master that leads is told what has changed since it last answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

from stelae.model.errors import StelaeError
from stelae.model.events import ClockIsOff, Listener
from stelae.model.ids import TabletId
from stelae.registry.control import ReportedTablet
from stelae.registry.masters.heartbeats import HEARTBEAT_S, Heartbeat, HeartbeatAnswer, Registration

Send = Callable[[Heartbeat], Awaitable[HeartbeatAnswer]]


class ShardNow(msgspec.Struct, frozen=True):
    """What there is to tell of a shard at one moment. `leapt_ms`: how far its machine's clock has leapt, which is not
    believed yet."""

    wall_ms: int
    catalog: int
    tablets: Mapping[TabletId, ReportedTablet]
    log_bytes: int = 0
    unflushed_bytes: int = 0
    leapt_ms: int = 0


class HeartbeatWriter:
    """What each heartbeat says, and what follows from its answer. Pure."""

    def __init__(self, server: str, incarnation: int, registration: Registration) -> None:
        self._server = server
        self._incarnation = incarnation
        self._registration = registration
        self._registers = True
        self._number = 0
        self._answered: tuple[int, Mapping[TabletId, ReportedTablet]] | None = None
        """The last that was answered, and what there was then; None: the next one tells everything."""

    def write(self, now: ShardNow) -> Heartbeat:
        self._number += 1
        since, before = (None, {}) if self._answered is None else self._answered
        return Heartbeat(
            self._server,
            self._incarnation,
            self._number,
            now.wall_ms,
            now.catalog,
            since,
            tuple(each for tablet, each in now.tablets.items() if before.get(tablet) != each),
            tuple(tablet for tablet in before if tablet not in now.tablets),
            self._registration if self._registers else None,
            now.log_bytes,
            now.unflushed_bytes,
        )

    def take(self, beat: Heartbeat, now: ShardNow, answer: HeartbeatAnswer) -> None:
        """The answer to what was written of that moment."""
        self._registers = answer.register
        known = not (answer.report_all or answer.is_late)
        self._answered = (beat.number, now.tablets) if known else None

    def take_failure(self) -> None:
        """Nobody knows what arrived: whoever leads then is told everything."""
        self._registers, self._answered = True, None


class Heartbeats:
    """For the tasks of one event loop. `look` must not wait. `believe` is called with how far the clock has leapt that
    a master has found right."""

    def __init__(
        self,
        writer: HeartbeatWriter,
        look: Callable[[], ShardNow],
        send: Send,
        tell: Listener,
        believe: Callable[[int], None],
    ) -> None:
        self._writer = writer
        self._look = look
        self._send = send
        self._tell = tell
        self._believe = believe
        self._is_off = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._go_on(), name="heartbeats")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _go_on(self) -> None:
        while True:
            with suppress(StelaeError):  # the next one tries again, with whoever leads then
                await self._beat()
            await asyncio.sleep(HEARTBEAT_S)

    async def _beat(self) -> None:
        now = self._look()
        beat = self._writer.write(now)
        try:
            answer = await self._send(beat)
        except BaseException:
            self._writer.take_failure()
            raise
        self._writer.take(beat, now, answer)
        if not (answer.clock_off_ms or answer.is_late):
            self._believe(now.leapt_ms)
        if answer.clock_off_ms and not self._is_off:
            self._tell(ClockIsOff(beat.server, answer.clock_off_ms))
        self._is_off = bool(answer.clock_off_ms)
