"""Shards that do not answer the tasks of an event loop: who is stopped or cut off is not waited for once others have
its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from stelae.client.remote.cluster.routing import Routing
from stelae.registry.peers import Peer
from stelae.registry.wires.wire import Wire

SILENCE_S = 2.0
"""After so long without an answer it is found out whether another is to be asked."""


class SilentPeers:
    """Looks at the peers of one event loop from time to time, while requests are under way."""

    def __init__(self, peers: Mapping[str, Peer], routing: Routing) -> None:
        self._peers = peers
        self._routing = routing
        self._heard: dict[str, tuple[Wire, int]] = {}
        """How often anything had come when they were last looked at."""
        self._timer: asyncio.TimerHandle | None = None
        self._asking: dict[str, asyncio.Task[None]] = {}

    def watch(self) -> None:
        """A request is sent now: have a look soon, if none is planned."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SILENCE_S, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for asking in list(self._asking.values()):
            asking.cancel()

    def _look(self) -> None:
        self._timer = None
        awaited = {name: wire for name, peer in self._peers.items() if (wire := peer.awaited) is not None}
        before, self._heard = self._heard, {name: (wire, wire.heard) for name, wire in awaited.items()}
        for name, wire in awaited.items():
            if before.get(name) == (wire, wire.heard) and name not in self._asking:
                asking = self._asking[name] = asyncio.create_task(self._ask(name, wire))
                asking.add_done_callback(lambda _, name=name: self._asking.pop(name, None))  # type: ignore[misc]
        if awaited:
            self.watch()

    async def _ask(self, shard: str, wire: Wire) -> None:
        heard = wire.heard
        has_moved = self._routing.has_moved
        until = self._routing.until(None).within(SILENCE_S)
        if await asyncio.to_thread(has_moved, shard, until) and wire.heard == heard:
            wire.give_up("it is silent, and another has its place by now")
