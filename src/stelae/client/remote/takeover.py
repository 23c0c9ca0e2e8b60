"""A store of several processes: one of them has it, the others are attached to it, and one of these takes over when it
ends.

When the connection to the owner is lost, the next call tries to own the store itself: if nobody else has it, it is
opened in this process, and everything goes on here; else the process that was faster is connected to. Snapshots are
pinned again wherever the store goes, so reads go on at them, scans in the middle included. A write whose answer was
lost is sent again to whoever has the store then, which knows whether it is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from threading import Lock, RLock
from weakref import WeakKeyDictionary

from stelae.client.remote.cluster.pins import ClusterPin
from stelae.client.remote.pins import RemotePin
from stelae.client.remote.places import DistantStore, StorePlace
from stelae.model.errors import ConnectionLost, DeadlineExceeded, Overloaded, StelaeError
from stelae.model.events import Listener, OwnerLost, TookOver, tell_nobody
from stelae.model.ids import TableId, Txn
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.service.backend import Backend, Pin
from stelae.service.deadlines import Deadline, left_of


class KeptPin:
    """A snapshot that is pinned again wherever the store goes."""

    def __init__(self, pin: Pin) -> None:
        self.txn: Txn = pin.txn
        self._pin: Pin | None = pin
        self._lock = Lock()

    @property
    def is_held(self) -> bool:
        pin = self._pin
        return not isinstance(pin, RemotePin | ClusterPin) or pin.is_held

    @property
    def is_of_cluster(self) -> bool:
        """Then it knows by itself which of several shards have lost it, and none of them is ever taken over."""
        return isinstance(self._pin, ClusterPin)

    def look_again(self, looked: set[TableId], deadline: Deadline | None) -> None:
        """See whether others have the rows by now; of the tables in `looked` that is known."""
        pin = self._pin
        with suppress(StelaeError):  # as below: reads at the snapshot say what is wrong
            if isinstance(pin, ClusterPin):
                pin.look_again(looked, deadline)

    def pin_again(self, store: Backend, deadline: Deadline | None) -> None:
        """At another owner, or where it was lost. Where that cannot be done, reads at the snapshot say what is
        wrong."""
        before, pin = self._pin, None
        with suppress(StelaeError):
            if isinstance(before, ClusterPin):
                before.hold_again(deadline)
            elif before is not None:
                pin = store.pin(self.txn, deadline=deadline)
        if pin is not None and not self._take(pin):
            pin.close()  # nobody wants it any more

    def _take(self, pin: Pin) -> bool:
        """Keep the new pin, unless this one was closed meanwhile; whether it was kept."""
        with self._lock:
            is_wanted = self._pin is not None
            self._pin = pin if is_wanted else None
            return is_wanted

    def close(self) -> None:
        with self._lock:
            pin, self._pin = self._pin, None
        if pin is not None:
            pin.close()


class AttachedStore:
    """What finds a store again (a `Finder` of `calls.session`). Safe for threads. `watch_pins` is to be called every
    second or so by whoever has a thread for it. `tell` hears of owners that are lost, and of the take-over.

    The store is opened on the `executor`, which ends with this: however long that takes, each caller waits for it only
    until its own deadline, and the next ones find it further on, or done."""

    def __init__(
        self,
        place: StorePlace[Backend, DistantStore],
        remote: DistantStore,
        clock: Clock,
        executor: Executor,
        tell: Listener = tell_nobody,
    ) -> None:
        self._place = place
        self._remote = remote
        self._clock = clock
        self._executor = executor
        self._tell = tell
        self._told_of = 0
        self._current: Backend = remote
        self._lock = RLock()
        self._owning: Future[None] | None = None
        self._pins: WeakKeyDictionary[KeptPin, None] = WeakKeyDictionary()
        self._is_closed = False

    @property
    def store(self) -> Backend:
        """As it can be reached now: in this process after a take-over, else by connections."""
        return self._current

    def find_again(self, lost: Backend, deadline: Deadline | None) -> Backend:
        """Own the store, if nobody has it: begun by one thread, and waited for by all who ask meanwhile, each until
        its deadline."""
        with self._locked(deadline):
            if self._current is not lost or self._is_closed:
                return self._current
            if self._owning is None:
                self._owning = self._executor.submit(self._own)
            owning = self._owning
        with suppress(TimeoutError, CancelledError):
            owning.exception(left_of(deadline))
        if not owning.done():
            raise _taking_all_the_time()
        with self._lock:
            if self._owning is owning:
                self._owning = None
        try:
            owning.result()
        finally:
            del owning  # an error refers to this frame, and must not be referred to by it
        return self._current

    def _own(self) -> None:
        """Open the store here, unless another process has it; its snapshots are pinned here then."""
        began, made = self._clock.monotonic_s(), self._remote.connections_made
        own = self._place.own()
        is_news, self._told_of = made > self._told_of, made
        if own is not None:
            with self._lock:
                self._current = own
                for pin in list(self._pins):
                    pin.pin_again(own, None)
        if is_news:
            self._tell(OwnerLost())
        if own is not None:
            self._tell(TookOver(self._clock.monotonic_s() - began))

    def keep(self, pin: Pin, store: Backend, deadline: Deadline | None) -> Pin:
        """The pin, which a store has given, asked for again wherever the store goes, or has gone since then."""
        kept = KeptPin(pin)
        with self._locked(deadline):
            if self._current is not store:
                kept.pin_again(self._current, deadline)
            self._pins[kept] = None
        return kept

    def watch_pins(self, deadline: Deadline | None = None) -> None:
        """Whoever holds snapshots notices the end of the owner without asking for anything, and pins them again:
        another owner keeps the history of snapshots for a few seconds only unless somebody says that it is needed."""
        store = self._current
        if not self._pins or self._is_closed or store.is_local:
            return
        # An owner that has too much to do is alive, and a store that is being opened is there the next time.
        with suppress(DeadlineExceeded, Overloaded):
            self._pin_lost(store, deadline)

    def _pin_lost(self, store: Backend, deadline: Deadline | None) -> None:
        if not all(pin.is_of_cluster for pin in list(self._pins)):
            try:
                store.now(deadline=deadline)
            except ConnectionLost:
                store = self.find_again(store, deadline)
        looked = set[TableId]()
        for pin in list(self._pins):
            pin.look_again(looked, deadline)
        with self._locked(deadline):
            for pin in list(self._pins):
                if not pin.is_held:
                    pin.pin_again(store, deadline)

    def close(self) -> None:
        """Waits for changes under way, and for the store if it is being opened. Closing twice is no error."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._executor.close()
        if self._current is not self._remote:
            self._current.close()
        self._remote.close()

    @contextmanager
    def _locked(self, deadline: Deadline | None) -> Iterator[None]:
        if not self._lock.acquire(timeout=-1 if deadline is None else deadline.left_s):
            raise _taking_all_the_time()
        try:
            yield
        finally:
            self._lock.release()


def _taking_all_the_time() -> DeadlineExceeded:
    return DeadlineExceeded("the store is being taken over by this process, which took all the time")
