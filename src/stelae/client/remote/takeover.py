"""A store of several processes: one of them has it, the others are attached to it, and one of these takes over when it
ends.

When the connection to the owner is lost, the next call tries to own the store itself: if nobody else has it, it is
opened in this process, and everything goes on here; else the process that was faster is connected to. Snapshots are
pinned again wherever the store goes, so reads go on at them, scans in the middle included. A write whose answer was
lost may or may not have happened, and its caller is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Protocol
from weakref import WeakSet

from stelae.client.remote.pins import RemotePin
from stelae.client.remote.store import RemoteStore
from stelae.model.errors import ConnectionLost, DeadlineExceeded, StelaeError, Unavailable
from stelae.model.events import Listener, OwnerLost, TookOver, tell_nobody
from stelae.model.ids import Txn
from stelae.ports.clock import Clock
from stelae.service.backend import Backend, Pin
from stelae.service.deadlines import Deadline

_PAUSE_S = 0.02


class StorePlace(Protocol):
    """Where a store is kept, of which one process at a time is the owner."""

    def own(self) -> Backend | None:
        """The store in this process, with all that others did to it before; None if another process has it."""
        ...

    def attach(self, deadline: Deadline) -> RemoteStore:
        """A connection to the process that has the store: Unavailable if nobody answers there."""
        ...


def own_or_attach(place: StorePlace, deadline: Deadline, pause: Callable[[float], object]) -> Backend | RemoteStore:
    """The store, one way or the other; while its owner is coming or going, again and again, until the deadline."""
    while True:
        store = place.own()
        if store is not None:
            return store
        try:
            return place.attach(deadline)
        except Unavailable as error:
            if deadline.is_over:
                raise Unavailable(f"another process has the store, and does not let others in: {error}") from None
            pause(min(_PAUSE_S, deadline.left_s))


class KeptPin:
    """A snapshot that is pinned again wherever the store goes."""

    def __init__(self, pin: Pin) -> None:
        self.txn: Txn = pin.txn
        self._pin: Pin | None = pin

    @property
    def is_held(self) -> bool:
        pin = self._pin
        return not isinstance(pin, RemotePin) or pin.is_held

    def pin_again(self, store: Backend, deadline: Deadline | None) -> None:
        """At another owner. Where that cannot be done, reads at the snapshot say what is wrong."""
        if self._pin is not None:
            try:
                self._pin = store.pin(self.txn, deadline=deadline)
            except StelaeError:
                return

    def close(self) -> None:
        pin, self._pin = self._pin, None
        if pin is not None:
            pin.close()


class AttachedStore:
    """What finds a store again (a `Finder` of `calls.session`). Safe for threads. `watch_pins` is to be called every
    second or so by whoever has a thread for it. `tell` hears of owners that are lost, and of the take-over."""

    def __init__(self, place: StorePlace, remote: RemoteStore, clock: Clock, tell: Listener = tell_nobody) -> None:
        self._place = place
        self._remote = remote
        self._clock = clock
        self._tell = tell
        self._told_of = 0
        self._current: Backend = remote
        self._lock = RLock()
        self._pins: WeakSet[KeptPin] = WeakSet()
        self._is_closed = False

    @property
    def store(self) -> Backend:
        """As it can be reached now: in this process after a take-over, else by connections."""
        return self._current

    def find_again(self, lost: Backend, deadline: Deadline | None) -> Backend:
        """Own the store, if nobody has it. Only one thread does that; others wait for it, until their deadline."""
        with self._locked(deadline):
            if self._current is not lost or self._is_closed:
                return self._current
            began = self._clock.monotonic_s()
            own = self._place.own()
            is_news, self._told_of = self._remote.connections_made > self._told_of, self._remote.connections_made
            if own is not None:
                self._current = own
                for pin in list(self._pins):
                    pin.pin_again(own, deadline)
            current = self._current
        if is_news:
            self._tell(OwnerLost())
        if own is not None:
            self._tell(TookOver(self._clock.monotonic_s() - began))
        return current

    def keep(self, pin: Pin) -> Pin:
        """The pin, asked for again wherever the store goes."""
        kept = KeptPin(pin)
        with self._lock:
            self._pins.add(kept)
        return kept

    def watch_pins(self, deadline: Deadline | None = None) -> None:
        """Whoever holds snapshots notices the end of the owner without asking for anything, and pins them again:
        another owner keeps the history of snapshots for a few seconds only unless somebody says that it is needed."""
        store = self._current
        if not self._pins or self._is_closed or store.is_local:
            return
        try:
            store.now(deadline=deadline)
        except ConnectionLost:
            store = self.find_again(store, deadline)
        except DeadlineExceeded:
            return
        with self._locked(deadline):
            for pin in list(self._pins):
                if not pin.is_held:
                    pin.pin_again(store, deadline)

    def close(self) -> None:
        """Waits for changes under way. Closing twice is no error."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._current is not self._remote:
            self._current.close()
        self._remote.close()

    @contextmanager
    def _locked(self, deadline: Deadline | None) -> Iterator[None]:
        if not self._lock.acquire(timeout=-1 if deadline is None else deadline.left_s):
            raise DeadlineExceeded("the store is being taken over by this process, which took all the time")
        try:
            yield
        finally:
            self._lock.release()
