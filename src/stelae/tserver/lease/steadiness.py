"""A shard's clock, whose wall time does not leap with the machine's until the leading master's clock agrees.

What a shard gives out and answers is promised for ever, and whoever leads its tablets next goes on above it
(`registry.leases.shard`). So a clock that is set ahead by minutes, by mistake, would hold up everybody for as long. A
leap is seen by the monotonic clock, which has none. Wall time goes on from where it was, until the master finds in a
heartbeat that the machine's is right: after a machine has slept that takes a second.

Nor is a clock believed that is wrong when the shard begins, as those of machines are that have just been switched on:
the master is asked what time it is before the first lease (`set_by_master`).
"""

from __future__ import annotations

from typing import NamedTuple

from stelae.model.errors import StelaeError
from stelae.model.events import ClockIsOff, Listener
from stelae.ports.clock import Clock
from stelae.registry.control_operations import PLACES
from stelae.registry.masters.heartbeats import CLOCK_OFF_MS_MAX
from stelae.registry.peers import Peer
from stelae.service.deadlines import Deadline

_ASK_S = 2.0
"""How long a shard that begins waits for a master to say what time it is."""
LEAP_MS_MIN = 5_000
"""What is less is followed at once: time services set clocks, too. Half of what a clock may be off."""


class _Look(NamedTuple):
    """What both clocks showed, and how much of the wall clock's time is not believed."""

    wall_ms: int
    monotonic_s: float
    leapt_ms: int


class SteadyClock:
    """A `Clock`. Safe for threads: what one of them has seen may be replaced by what another saw a little earlier, and
    the next look finds the same leap again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = _Look(clock.wall_ms(), clock.monotonic_s(), 0)

    @property
    def leapt_ms(self) -> int:
        """How far the machine's wall clock is ahead of this one, because it has leapt."""
        self.wall_ms()
        return self._last.leapt_ms

    def believe(self, leapt_ms: int) -> None:
        """Follow leaps that were seen: the machine's clock is right."""
        if leapt_ms:
            last = self._last
            self._last = last._replace(leapt_ms=last.leapt_ms - leapt_ms)

    def doubt(self, ahead_ms: int) -> None:
        """The machine's clock is ahead of the right time by so much: it is not believed from the beginning."""
        self._last = self._last._replace(leapt_ms=self._last.leapt_ms + ahead_ms)

    def wall_ms(self) -> int:
        last, wall_ms, now_s = self._last, self._clock.wall_ms(), self._clock.monotonic_s()
        leap_ms = wall_ms - last.wall_ms - int((now_s - last.monotonic_s) * 1_000)
        leapt_ms = last.leapt_ms + (leap_ms if abs(leap_ms) >= LEAP_MS_MIN else 0)
        self._last = _Look(wall_ms, now_s, leapt_ms)
        return wall_ms - leapt_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


async def set_by_master(clock: SteadyClock, master: Peer, server: str, tell: Listener) -> None:
    """Before a shard takes its first lease: have its clock go by the master's if it is far off. Where no master answers
    soon, the machine's clock counts: of a cluster that starts as a whole none may be there yet. Closes the peer."""
    try:
        places = await master.ask(PLACES, Deadline(clock, _ASK_S))
    except StelaeError:
        return
    finally:
        await master.close()
    ahead_ms = clock.wall_ms() - places.wall_ms if places.wall_ms else 0
    if abs(ahead_ms) > CLOCK_OFF_MS_MAX:
        clock.doubt(ahead_ms)
        tell(ClockIsOff(server, ahead_ms))
