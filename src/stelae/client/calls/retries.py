"""When to try again, and for how long: jittered waits that double, within the caller's deadline.

There is one loop that repeats what failed (`Session.run`, and its twin for event loops): it repeats whatever raised
something Retryable, which says that nothing happened. Only a full disk and a clock that is far off are told at once: it
takes people to mend them.
What is between clients and servers, and would mean nothing to users, is told as what they know it by.
"""

from __future__ import annotations

from dataclasses import dataclass

from stelae.model.errors import (
    ClockTooFarAhead,
    ConnectionLost,
    DeadlineExceeded,
    Deposed,
    DiskFull,
    InvalidArgument,
    Retryable,
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


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client goes on trying, and what it measures and draws that with."""

    clock: Clock
    rng: Rng
    timeout_s: float = TIMEOUT_S_DEFAULT

    def __post_init__(self) -> None:
        number: object = self.timeout_s
        if isinstance(number, bool) or not isinstance(number, int | float) or not number >= 0:
            raise InvalidArgument(f"timeout_s is a number of seconds, not {show(number)}")

    def deadline(self) -> Deadline:
        """Of a call that begins now."""
        return Deadline(self.clock, self.timeout_s)


class Attempts:
    """The tries of one call. `delay_s` says how long to wait before the next one, or raises the error again once the
    deadline has passed; at once if waiting does not help: it makes no room, and sets no clock right."""

    __slots__ = ("_deadline", "_rng", "_wait_s")

    def __init__(self, deadline: Deadline, rng: Rng) -> None:
        self._deadline = deadline
        self._rng = rng
        self._wait_s = _WAIT_S_MIN

    def delay_s(self, error: StelaeError) -> float:
        if isinstance(error, DiskFull | ClockTooFarAhead):
            raise error
        left_s = self._deadline.left_s
        if left_s <= 0:
            told = Unavailable(str(error)) if isinstance(error, Deposed | TabletAway | StaleSchema) else error
            told.add_note(f"it was tried again and again for {self._deadline.seconds:g} s")
            raise told
        delay_s = self._wait_s * (0.5 + self._rng.fraction())
        self._wait_s = min(2 * self._wait_s, _WAIT_S_MAX)
        return min(delay_s, left_s)


def say_more(error: Retryable, before: Retryable | None) -> Retryable:
    """Of the errors of two tries, the one to tell: the last, unless that only says that there was no time left: then
    what the store had answered before, or that it could not be reached."""
    if before is None or not isinstance(error, DeadlineExceeded):
        return error
    if isinstance(before, ConnectionLost):
        return DeadlineExceeded(f"{error}; before that: {before}")
    return before
