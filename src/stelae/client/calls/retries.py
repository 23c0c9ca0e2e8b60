"""When to try again, and for how long: jittered waits that double, within the caller's deadline.

There is one loop that repeats what failed (`Session.run`, and its twin for event loops): it repeats whatever raised
something Retryable, which says that nothing happened, and writes whose outcome is unknown, which are numbered so that
they happen once (`lanes`). Only a full disk and a clock that is far off are told at once: it takes people to mend them.
Who else tries again after a while, and why, stands in `tests/tidy/waiting`: running scans, whoever opens or looks for a
store, reports of a cluster some shards of which are away, event loops whose threads are busy.
What is between clients and servers, and would mean nothing to users, is told as what they know it by.
"""

from __future__ import annotations

import msgspec

from stelae.model.errors import (
    ClockTooFarAhead,
    ConnectionLost,
    DeadlineExceeded,
    Deposed,
    DiskFull,
    InvalidArgument,
    StaleSchema,
    StelaeError,
    TabletAway,
    Unavailable,
)
from stelae.model.values import show
from stelae.ports.clock import Clock
from stelae.ports.rng import Rng
from stelae.service.deadlines import Deadline

TIMEOUT_S_DEFAULT = 30.0
_WAIT_S_MIN = 0.001
_WAIT_S_MAX = 0.5
_TRY_S_MIN = 0.1
_TRY_SHARE_MIN, _TRY_SHARE_MAX = 1 / 20, 1 / 4


class Patience(msgspec.Struct, frozen=True):
    """How long a client goes on trying, and what it measures and draws that with."""

    clock: Clock
    rng: Rng
    timeout_s: float = TIMEOUT_S_DEFAULT

    def __post_init__(self) -> None:
        number: object = self.timeout_s
        if isinstance(number, bool) or not isinstance(number, int | float) or not number >= 0:
            raise InvalidArgument(f"timeout_s is a number of seconds, not {show(number)}")

    def deadline(self) -> Deadline:
        """The deadline of a call that begins now."""
        return Deadline(self.clock, self.timeout_s)


class Attempts:
    """The tries of one call. `delay_s` says how long to wait before the next one, or raises the error again once too
    little time is left for one; at once if waiting does not help: it makes no room, and sets no clock right.

    A try that begins with almost no time left is worse than none: of a write that was refused in words so far, it
    leaves open what happened. So the last one begins with twice the time that the one before took to be refused, a
    quarter of all time at most."""

    __slots__ = ("_began_left_s", "_deadline", "_rng", "_wait_s")

    def __init__(self, deadline: Deadline, rng: Rng) -> None:
        self._deadline = deadline
        self._rng = rng
        self._wait_s = _WAIT_S_MIN
        self._began_left_s = deadline.left_s

    def left_s(self, error: StelaeError) -> float:
        """The seconds that may be waited after an error until the last try has to begin."""
        left_s, seconds = self._deadline.left_s, self._deadline.seconds
        took_s = 0.0 if isinstance(error, ConnectionLost) else self._began_left_s - left_s  # it was not even asked
        least_s = min(_TRY_S_MIN, seconds * _TRY_SHARE_MIN)
        return left_s - max(least_s, min(2 * took_s, seconds * _TRY_SHARE_MAX))

    def delay_s(self, error: StelaeError) -> float:
        if isinstance(error, DiskFull | ClockTooFarAhead):
            raise error
        left_s = self.left_s(error)
        if left_s < _WAIT_S_MIN / 2:
            told = Unavailable(str(error)) if isinstance(error, Deposed | TabletAway | StaleSchema) else error
            told.add_note(f"it was tried again and again for {self._deadline.seconds:g} s")
            raise told
        delay_s = self._wait_s * (0.5 + self._rng.fraction())
        self._wait_s = min(2 * self._wait_s, _WAIT_S_MAX)
        delay_s = min(delay_s, left_s)
        self._began_left_s = self._deadline.left_s - delay_s
        return delay_s


def say_more(error: StelaeError, before: StelaeError | None) -> StelaeError:
    """Of the errors of two tries, the one to tell: the last, unless that only says that there was no time left: then
    what the store had answered before, or that it could not be reached."""
    if before is None or not isinstance(error, DeadlineExceeded):
        return error
    if isinstance(before, ConnectionLost):
        return DeadlineExceeded(f"{error}; before that: {before}")
    return before
