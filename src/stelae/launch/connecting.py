"""Connects to a cluster: one or more masters are known by their addresses, and say where the shards are.

A program that connects is attached to a store that other processes have, as one that opened a directory second is
(`client.remote.takeover`), but it never becomes the owner.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Event

from stelae.adapters.event_log import EventLog
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.adapters.sockets.tcp import TcpConnector, TcpTransport
from stelae.adapters.threads import AlarmThread
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.remote.asking import Asker
from stelae.client.remote.cluster.masters import AnyMaster, ask_leading, brief_masters
from stelae.client.remote.cluster.store import ClusterStore
from stelae.client.remote.finding import FoundConnector
from stelae.client.remote.places import attach_patiently
from stelae.launch.access import NO_ACCESS, Access
from stelae.launch.attached import CLOCK, QUEUED_MAX, WRITERS, WatchedStore, abandon_in_children
from stelae.model.errors import InvalidArgument, Unavailable
from stelae.model.values import show
from stelae.ports.blocking import BlockingConnector
from stelae.registry.control_operations import PLACES
from stelae.registry.peers import Dial, Peer, Sign
from stelae.registry.wires.dialling import FoundDial
from stelae.service.deadlines import Deadline
from stelae.wire.handshake import Introduction
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello

_ALARMS = "stelae-batches"
_CALLERS = 64
_nap = Event()


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

        self._threads = ThreadExecutor(WRITERS, QUEUED_MAX), ThreadExecutor(_CALLERS, QUEUED_MAX)
        super().__init__(place, masters, leading, connect, me, CLOCK, SystemRng(), *self._threads, open_peer=open_peer)
        abandon_in_children(self)

    def close(self) -> None:
        super().close()
        for threads in self._threads:
            threads.close()


class ClusterPlace:
    """A `StorePlace` that is never owned: other processes have the store."""

    def __init__(self, masters: str, release: str, access: Access = NO_ACCESS) -> None:
        given: object = masters
        if not isinstance(given, str) or not given.strip():
            raise InvalidArgument(f"name a cluster's masters, as host:port, comma-separated: not {show(masters)}")
        self.addresses = tuple(each.strip() for each in masters.split(","))
        self.words = f"the cluster {','.join(self.addresses)}"
        self._tls = access.tls
        # One for all connections: a program that has met one cluster talks to no other.
        hello = Hello(PROTOCOL_MIN, PROTOCOL_MAX, release, "", "client")
        self._me = Introduction(hello, access.token, SystemRng())
        for address in self.addresses:
            self._connector(address)  # InvalidArgument of what is no address
        # One for all tries: who was silent is tried last from then on.
        self._masters = brief_masters(self.addresses, self._connector, CLOCK)

    def own(self) -> None:
        return None

    def attach(self, deadline: Deadline | None) -> ConnectedCluster:
        remote = self.prepare()
        try:
            remote.attach(deadline)
        except BaseException:
            remote.close()
            raise
        return remote

    def prepare(self) -> ConnectedCluster:
        """Not connected yet: the first call connects."""
        masters = AnyMaster(self._masters, self._me, CLOCK)

        def find(shard: str, until: Deadline | None) -> str:
            for each in masters.ask(PLACES, until).shards:
                if each.name == shard:
                    return each.address
            raise Unavailable(f"{self.words}: no shard is called {shard}")

        def connect(shard: str) -> FoundConnector:
            return FoundConnector(self._words_of(shard), partial(find, shard), self._connector, CLOCK)

        def make_dial(shard: str) -> FoundDial:
            def find_on_loop(until: Deadline | None) -> Awaitable[str]:
                return asyncio.to_thread(find, shard, until)

            return FoundDial(self._words_of(shard), find_on_loop, TcpTransport(tls=self._tls).connect)

        leading = ask_leading(masters, self.words, self._connector, self._me, CLOCK)
        return ConnectedCluster(",".join(self.addresses), masters, leading, connect, self._me, make_dial)

    def _words_of(self, shard: str) -> str:
        return f"shard {shard} of {self.words}"

    def away_words(self) -> str:
        return f"{self.words} cannot be reached"

    def _connector(self, address: str) -> BlockingConnector:
        return TcpConnector(address, tls=self._tls)


def connect_session(masters: str, patience: Patience, *, access: Access = NO_ACCESS, release: str = "") -> Session:
    """The store that a cluster serves. Unavailable if no master answers, or no shard is there, within the patience;
    PermissionDenied at once if this program is not let in, or does not believe the servers."""
    place = ClusterPlace(masters, release, access)
    opened = attach_patiently(place, patience.deadline(), _nap.wait)
    finder, alarms = _finder(place, opened), AlarmThread(_ALARMS)
    session = Session(opened, patience, finder, alarms=alarms, cluster=",".join(place.addresses))
    _sessions[session] = place
    return session


def _finder(place: ClusterPlace, opened: ConnectedCluster) -> WatchedStore:
    return WatchedStore(place, opened, CLOCK, ThreadExecutor(1, 1), EventLog(place.words))


_sessions: weakref.WeakKeyDictionary[Session, ClusterPlace] = weakref.WeakKeyDictionary()


def _connect_again() -> None:
    """In a forked child: connections and threads are the parent's, so each session gets its own."""
    for session, place in list(_sessions.items()):
        if not session.is_closed:
            remote = place.prepare()
            session.begin_anew(remote, _finder(place, remote), AlarmThread(_ALARMS))


os.register_at_fork(after_in_child=_connect_again)
