"""Stores that other processes have, as a program holds them: their threads, and what a fork does to them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from threading import Lock

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.adapters.threads import StepThread
from stelae.client.remote.asking import Asker
from stelae.client.remote.cluster.store import ClusterStore
from stelae.client.remote.store import RemoteStore
from stelae.client.remote.takeover import AttachedStore
from stelae.ports.blocking import BlockingConnector
from stelae.registry.peers import Dial, Peer, Sign
from stelae.service.backend import Backend, Pin
from stelae.service.deadlines import Deadline
from stelae.wire.handshake import Introduction

CLOCK = SystemClock()
_WRITERS = 16
_CALLERS = 64
_QUEUED_MAX = 100_000
_WATCH_S = 1.0


class ConnectedStore(RemoteStore):
    """With the threads that submitted writes run on, which end with it."""

    def __init__(
        self, connector: BlockingConnector, me: Introduction, place: str, make_dial: Callable[[], Dial]
    ) -> None:
        """`make_dial`: for the running event loop."""

        def open_peer() -> Peer:
            return Peer(connector.address, make_dial(), me, CLOCK, SystemRng())

        self._threads = ThreadExecutor(_WRITERS, _QUEUED_MAX)
        super().__init__(connector, self._threads, me, CLOCK, open_peer=open_peer)
        self.place = place
        _connected.add(self)

    def close(self) -> None:
        super().close()
        self._threads.close()


class ConnectedCluster(ClusterStore):
    """With the threads that submitted writes run on, and those that ask several shards at once, which end with it."""

    def __init__(
        self,
        place: str,
        masters: Asker,
        leading: Asker,
        connect: Callable[[str], BlockingConnector],
        me: Introduction,
        make_dial: Callable[[str], Dial],
    ) -> None:
        """`connect`, `make_dial`: to a shard, by its name; `make_dial` for the running event loop."""

        def open_peer(shard: str, sign: Sign) -> Peer:
            return Peer(connect(shard).address, make_dial(shard), me, CLOCK, SystemRng(), sign=sign)

        self._threads = ThreadExecutor(_WRITERS, _QUEUED_MAX), ThreadExecutor(_CALLERS, _QUEUED_MAX)
        super().__init__(place, masters, leading, connect, me, CLOCK, SystemRng(), *self._threads, open_peer=open_peer)
        _connected.add(self)

    def close(self) -> None:
        super().close()
        for threads in self._threads:
            threads.close()


class WatchedStore(AttachedStore):
    """A thread looks after its pins, from the first one on."""

    _watching: StepThread | None = None

    def keep(self, pin: Pin, store: Backend, deadline: Deadline | None) -> Pin:
        kept = super().keep(pin, store, deadline)
        with _beginning:
            if self._watching is None:
                self._watching = StepThread("stelae-pins", self._watch, _WATCH_S)
        return kept

    def _watch(self) -> bool:
        self.watch_pins(Deadline(CLOCK, _WATCH_S * 2))
        return False

    def close(self) -> None:
        if self._watching is not None:
            self._watching.close()
        super().close()


_connected: weakref.WeakSet[ConnectedStore | ConnectedCluster] = weakref.WeakSet()
_beginning = Lock()


def _abandon_connections() -> None:
    """In a forked child: connections are the parent's, and locks may be held for ever."""
    for remote in list(_connected):
        remote.abandon(f"the store {remote.place} was opened before this process was forked: open it again here")


os.register_at_fork(after_in_child=_abandon_connections)
