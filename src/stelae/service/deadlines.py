"""Until when a caller waits: one deadline for each call, made by the client and passed down, over connections too.

Whoever would wait below asks how much time is left, and gives up when none is: a server answers Overloaded or
TabletAway at once, and the client's own loop tries again. On a connection the seconds that are left travel, not a time
of day, so clocks that differ do no harm.
"""

from __future__ import annotations

from stelae.model.errors import DeadlineExceeded
from stelae.ports.clock import Clock

SECONDS_MAX = 14 * 24 * 3_600.0
"""Whoever would wait for longer waits so long: more is too much for the timers of some systems."""

_SILENCE_S_MAX = 15.0


class Deadline:
    """A moment on one process's own clock. Immutable, and safe for threads."""

    __slots__ = ("_clock", "seconds", "until_s")

    def __init__(self, clock: Clock, seconds: float) -> None:
        """A deadline that is so many seconds away from now."""
        self._clock = clock
        self.seconds = min(seconds, SECONDS_MAX)
        self.until_s = clock.monotonic_s() + self.seconds

    @property
    def left_s(self) -> float:
        """How many seconds are left, never less than none."""
        return max(0.0, self.until_s - self._clock.monotonic_s())

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic_s() >= self.until_s

    @property
    def silence_s(self) -> float:
        """How long nothing may be heard of long work that has given a sign of life: until the deadline, and if that is
        near or over, a while longer."""
        return max(self.left_s, silence_s_max(self.seconds))

    def anew(self) -> Deadline:
        """As many seconds as this one was given, from now on."""
        return Deadline(self._clock, self.seconds)

    def within(self, seconds: float) -> Deadline:
        """This one, or one that is so many seconds from now if that is earlier."""
        return Deadline(self._clock, seconds) if seconds < self.left_s else self

    def check(self, what: str) -> float:
        """The seconds that are left to wait for something; DeadlineExceeded if there are none."""
        left_s = self.until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise DeadlineExceeded(f"{what}: the {self.seconds:g} s that were given for it are over")
        return left_s


def silence_s_max(seconds: float) -> float:
    """How long nothing may be heard of long work beyond the deadline of a caller that gave it so many seconds: in half
    of them it gives several signs of life."""
    return min(seconds / 2, _SILENCE_S_MAX)


def left_of(deadline: Deadline | None) -> float | None:
    """The seconds that are left; None for as long as it takes."""
    return None if deadline is None else deadline.left_s
