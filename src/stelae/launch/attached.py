"""Stores that other processes have, as a program holds them: their threads, and what a fork does to them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from threading import Lock
from typing import Protocol

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.adapters.threads import StepThread
from stelae.client.remote.store import RemoteStore
from stelae.client.remote.takeover import AttachedStore
from stelae.ports.blocking import BlockingConnector
from stelae.registry.peers import Dial, Peer
from stelae.service.backend import Backend, Pin
from stelae.service.deadlines import Deadline
from stelae.wire.handshake import Introduction

CLOCK = SystemClock()
WRITERS = 16
QUEUED_MAX = 100_000
_WATCH_S = 1.0


class ConnectedStore(RemoteStore):
    """With the threads that submitted writes run on, which end with it."""

    def __init__(
        self, connector: BlockingConnector, me: Introduction, place: str, make_dial: Callable[[], Dial]
    ) -> None:
        """`make_dial`: for the running event loop."""

        def open_peer() -> Peer:
            return Peer(connector.address, make_dial(), me, CLOCK, SystemRng())

        self._threads = ThreadExecutor(WRITERS, QUEUED_MAX)
        super().__init__(connector, self._threads, me, CLOCK, open_peer=open_peer)
        self.place = place
        abandon_in_children(self)

    def close(self) -> None:
        super().close()
        self._threads.close()


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


class _Connected(Protocol):
    place: str

    def abandon(self, reason: str) -> None: ...


_connected: weakref.WeakSet[_Connected] = weakref.WeakSet()
_beginning = Lock()


def abandon_in_children(remote: _Connected) -> None:
    """Have the children that this process forks know that the connections of a store are none of theirs."""
    _connected.add(remote)


def _abandon_connections() -> None:
    """In a forked child: connections are the parent's, and locks may be held for ever."""
    for remote in list(_connected):
        remote.abandon(f"the store {remote.place} was opened before this process was forked: open it again here")


os.register_at_fork(after_in_child=_abandon_connections)
