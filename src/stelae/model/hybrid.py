"""Hybrid timestamps: one 64-bit number that is both a wall time and a logical counter.

A `Txn` holds 47 bits of milliseconds since 1970 (enough until the year 6429) above 16 bits of counter, so it is a
positive signed 64-bit number and compares as a plain integer. Time given out by one `HybridClock` always grows:
- while the wall clock moves on, the milliseconds follow it;
- while it stands still or steps back, the counter grows, and carries into the milliseconds when it is full;
- a time seen from elsewhere is merged, so whatever happens after seeing it sorts after it.

A remote time too far ahead is refused: accepting it would drag this clock, and every clock it talks to, into the
future for good. How far that is, is said once, by the clock. And a clock may have a *bound*, which others were
promised: it gives out no time above it, and nothing is answered at one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from stelae.model.errors import ClockTooFarAhead, InvalidArgument, Unavailable
from stelae.model.ids import Micros, Txn
from stelae.model.values import show

COUNTER_BITS = 16
COUNTER_MAX = (1 << COUNTER_BITS) - 1
MILLIS_MAX = (1 << 47) - 1
TXN_MIN = Txn(0)
TXN_MAX = Txn((MILLIS_MAX << COUNTER_BITS) | COUNTER_MAX)

AHEAD_MS_MAX = 30_000
"""How far ahead of a wall clock times of other processes may be: wall clocks differ, and a process that was started
again skips a lease's length (`registry.leases.shard`)."""
AHEAD_MS_MAX_ALONE = 1_000
"""The same for one whose clock gives out all times of a store: then only programs of the same machine name others."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pack(millis: int, counter: int = 0) -> Txn:
    if not 0 <= millis <= MILLIS_MAX or not 0 <= counter <= COUNTER_MAX:
        raise InvalidArgument(f"no hybrid time has {show(millis)} milliseconds and counter {show(counter)}")
    return Txn((millis << COUNTER_BITS) | counter)


def millis_of(txn: Txn) -> int:
    return txn >> COUNTER_BITS


def counter_of(txn: Txn) -> int:
    return txn & COUNTER_MAX


def micros_of(txn: Txn) -> Micros:
    """The user time a commit at this txn gets when none is given."""
    return Micros((txn >> COUNTER_BITS) * 1000)


def at_datetime(moment: datetime) -> Txn:
    """The last txn not after an aware moment: `at=` that moment sees every commit of its millisecond."""
    if moment.utcoffset() is None:
        raise InvalidArgument(f"{moment.isoformat()} has no time zone; give an aware datetime, e.g. with tzinfo=UTC")
    return pack((moment - _EPOCH) // timedelta(milliseconds=1), COUNTER_MAX)


def to_datetime(txn: Txn) -> datetime:
    return _EPOCH + timedelta(milliseconds=millis_of(txn))


def show_moment(txn: Txn) -> str:
    """The time of a txn to the millisecond, as people read it."""
    return f"{to_datetime(txn):%Y-%m-%d %H:%M:%S}.{millis_of(txn) % 1_000:03d}Z"


def show_txn(txn: Txn) -> str:
    """For a message: when it was, and the number that stands for it."""
    return f"{show_moment(txn)} (txn {txn})"


def check_txn(value: object) -> Txn:
    if type(value) is not int or not TXN_MIN <= value <= TXN_MAX:
        raise InvalidArgument(f"{show(value)} is not a txn: expected a whole number from 0 to {TXN_MAX}")
    return Txn(value)


def after(last: Txn, wall_ms: int) -> Txn:
    """The next time to give out: above `last`, at the wall clock if that is ahead."""
    wall = Txn(wall_ms << COUNTER_BITS)
    following = max(wall, Txn(last + 1))
    if following > TXN_MAX:
        raise InvalidArgument(f"hybrid time is exhausted at {last}")
    return following


def _call_nobody() -> None:
    """Do nothing: nobody wants to hear that this clock met its bound."""


class HybridClock:
    """Gives out growing times; safe for threads. A restart must hand in the largest time ever given out as `last`."""

    def __init__(self, wall_ms: Callable[[], int], ahead_max_ms: int = AHEAD_MS_MAX, last: Txn = TXN_MIN) -> None:
        self._wall_ms = wall_ms
        self._ahead_max_ms = ahead_max_ms
        self._last = check_txn(last)
        self._heard = TXN_MIN
        self._bound = TXN_MAX
        self.on_bound: Callable[[], None] = _call_nobody
        """Called when something was refused because of the bound, under the clock's lock: it must not ask the clock."""
        self._lock = threading.Lock()

    @property
    def last(self) -> Txn:
        """The largest time given out or merged; reading it gives out nothing."""
        return self._last

    @property
    def heard(self) -> Txn:
        """The largest time that others have named (`merge`): whatever they know to be done is at or below it."""
        return self._heard

    def tick(self) -> Txn:
        """A time above every one given out or merged before. Unavailable, and nothing is changed, if that is above the
        bound."""
        with self._lock:
            following = after(self._last, self._wall_ms())
            if following > self._bound:
                raise self._refusal(following)
            self._last = following
            return following

    def limit(self, bound: Txn) -> None:
        """Give out nothing above this from here on; a later call sets another bound."""
        with self._lock:
            self._bound = check_txn(bound)

    def resume(self, last: Txn) -> None:
        """From here on, every tick is above a time that this store itself gave out before it was restarted, even if
        the wall clock has been set back since."""
        with self._lock:
            self._last = max(self._last, check_txn(last))

    def merge(self, remote: Txn) -> None:
        """From here on, every tick is above `remote`. Raises ClockTooFarAhead, and changes nothing, if it is too far
        ahead of the wall clock."""
        check_txn(remote)
        with self._lock:
            self._merge(remote)
            self._heard = max(self._heard, remote)

    def reach(self, at: Txn) -> None:
        """The same for a time that something is to be answered at; Unavailable if that is above the bound, which is
        moved, if somebody moves it, until it is asked again."""
        check_txn(at)
        with self._lock:
            self._merge(at)
            if at > self._bound:
                raise self._refusal(at)

    def too_far_ms(self, at: Txn) -> int:
        """How far a time lies ahead, if `merge` refuses it; 0: it does not."""
        ahead_ms = millis_of(at) - self._wall_ms()
        return ahead_ms if at > self._last and ahead_ms > self._ahead_max_ms else 0

    def _merge(self, remote: Txn) -> None:
        if remote <= self._last:
            return
        ahead_ms = self.too_far_ms(remote)
        if ahead_ms:
            raise ClockTooFarAhead(
                f"time {remote} is {ahead_ms} ms ahead of this clock; at most {self._ahead_max_ms} ms are accepted"
            )
        self._last = remote

    def _refusal(self, txn: Txn) -> Unavailable:
        self.on_bound()
        return Unavailable(
            f"{show_txn(txn)} lies above {show_txn(self._bound)}, up to which this process may give out and answer "
            "times: it asks for more; try again"
        )
