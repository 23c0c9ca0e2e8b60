"""How a server reaches its master: in the same process, or over connections."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from stelae.model.errors import StelaeError, Unavailable
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.clock import Clock
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.registry.control_operations import ANSWER_S, JOIN_TABLETS, SPLIT_TABLET, TABLETS_AT_REST, TabletsAtRest
from stelae.registry.masters.guard import MasterGuard, read_guard
from stelae.registry.masters.heartbeats import HEARTBEAT, Heartbeat, HeartbeatAnswer
from stelae.registry.peers import Peer
from stelae.registry.senders import Sender
from stelae.registry.tablet_records import TabletRecord, read_tablets
from stelae.service.deadlines import Deadline

_HEARTBEAT_ANSWER_S = 5.0


class RemoteMasterLink:
    """A `MasterLink` over connections; what is recorded is read from the metastore, whoever leads."""

    def __init__(self, master: Peer, find: MasterFinder, metastore: Metastore, loop: Loop, clock: Clock) -> None:
        """`find`: with which the master's connections are made."""
        self._master = master
        self._find = find
        self._metastore = metastore
        self._loop = loop
        self._clock = clock

    def split(self, tablet: TabletId, at: Row) -> None:
        self._loop.run(self._master.ask(SPLIT_TABLET, self._until(), tablet, at))

    def join(self, left: TabletId, right: TabletId) -> None:
        self._loop.run(self._master.ask(JOIN_TABLETS, self._until(), left, right))

    def records(self, table: TableId) -> Mapping[TabletId, TabletRecord]:
        return {record.tablet: record for record in self._loop.run(read_tablets(self._metastore, table))}

    def tablets_at_rest(self, deadline: Deadline | None = None) -> TabletsAtRest:
        """What the master has recorded while it changes nothing."""
        return self._loop.run(self._master.ask(TABLETS_AT_REST, self._until() if deadline is None else deadline))

    async def send_heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        """A master that is stopped keeps its connections, and says nothing: once another one leads, all that is asked
        of it ends, and that one is asked from then on."""
        try:
            return await self._master.ask(HEARTBEAT, Deadline(self._clock, _HEARTBEAT_ANSWER_S), beat)
        except StelaeError:
            if await self._find.has_moved():
                self._master.give_up("another master leads by now")
            raise

    async def close(self) -> None:
        await self._master.close()

    def _until(self) -> Deadline:
        return Deadline(self._clock, ANSWER_S)


class MasterFinder:
    """Finds where the leading master serves, by its guard in the metastore, which the sender gets to know."""

    def __init__(self, metastore: Metastore, sender: Sender) -> None:
        self._metastore = metastore
        self._sender = sender
        self._found = ""

    async def guard(self) -> MasterGuard | None:
        """None: no master has led yet."""
        guard = await read_guard(self._metastore)
        if guard is not None:
            self._sender.note_guard(guard.number)
        return guard

    async def __call__(self, _: Deadline | None) -> str:
        guard = await self.guard()
        if guard is None:
            raise Unavailable("no master has been started yet")
        self._found = guard.address
        return guard.address

    async def has_moved(self) -> bool:
        """Whether a master leads that serves elsewhere than the one that was found last."""
        guard = await self.guard()
        return guard is not None and guard.address != self._found


Recorded = Callable[[TableId], Iterable[TabletRecord]]
"""What a master has recorded of a table's tablets."""


class NearMaster(Protocol):
    """A master on the loop of the same process."""

    def split(self, tablet: TabletId, at: Row) -> Coroutine[Any, Any, None]: ...

    def join(self, left: TabletId, right: TabletId) -> Coroutine[Any, Any, None]: ...


class LocalMasterLink:
    """A `MasterLink`. The master is made after its server: until `connect`, nothing is asked of it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._master: NearMaster | None = None
        self._recorded: Recorded = _nothing

    def connect(self, master: NearMaster, recorded: Recorded) -> None:
        self._master = master
        self._recorded = recorded

    def split(self, tablet: TabletId, at: Row) -> None:
        if self._master is not None:
            self._loop.run(self._master.split(tablet, at))

    def join(self, left: TabletId, right: TabletId) -> None:
        if self._master is not None:
            self._loop.run(self._master.join(left, right))

    def records(self, table: TableId) -> Mapping[TabletId, TabletRecord]:
        return {record.tablet: record for record in self._recorded(table)}


def _nothing(_: TableId) -> Iterable[TabletRecord]:
    return ()
