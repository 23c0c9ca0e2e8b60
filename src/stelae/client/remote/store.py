"""A store that another process has: the same interface, over connections to that process.

    store = RemoteStore(connector, executor, hello, clock)

The process that has the rows has the tables, too: what it is asked, and how, is in `tablets` and `tables`. When it is
gone, the next call connects anew: to whoever has the store by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from stelae.client.remote.lines import DEFAULT_LINE_SETTINGS, LineSettings
from stelae.client.remote.on_loop import RemoteRowsOnLoop
from stelae.client.remote.tables import RemoteTables
from stelae.client.remote.tablets import RemoteTablets
from stelae.client.remote.writes import write_groups
from stelae.model.ids import TableId, Txn
from stelae.ports.blocking import BlockingConnector
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.registry.peers import Peer
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline
from stelae.wire.handshake import Introduction
from stelae.wire.hello import Hello


class RemoteStore(RemoteTables, RemoteTablets):
    """A `Backend`. `executor` runs what is submitted. `hello` says who attaches, and to which store. A call without a
    deadline has that of `settings.answer_s`. `open_peer`: connects the running event loop to the one that has the
    store. Safe for threads; not after a fork: attach again in the child."""

    is_local = False
    quick = None

    def __init__(
        self,
        connector: BlockingConnector,
        executor: Executor,
        hello: Hello | Introduction,
        clock: Clock,
        settings: LineSettings = DEFAULT_LINE_SETTINGS,
        *,
        open_peer: Callable[[], Peer] | None = None,
    ) -> None:
        RemoteTablets.__init__(self, connector, hello, clock, settings)
        RemoteTables.__init__(self, self._rows, self._changes)
        self._open_peer = open_peer
        self._executor = executor

    @property
    def connections(self) -> int:
        """How many connections to the store are open now."""
        return self.lines.count

    @property
    def connections_made(self) -> int:
        """How many connections were opened since this object was made."""
        return self.lines.made

    def open_rows(self) -> RemoteRowsOnLoop | None:
        """For the tasks of the running event loop; None if it has no way to the store but threads."""
        if self._open_peer is None:
            return None
        return RemoteRowsOnLoop(self._open_peer(), self._changes)

    def submit(
        self,
        table: TableId,
        blocks: Sequence[OrderedBlock],
        max_txn: Txn | None = None,
        *,
        must_show: bool = False,
        deadline: Deadline | None = None,
    ) -> Future[Txn]:
        self._changes.begin()
        try:
            groups = write_groups(table, blocks, max_txn, must_show)
            future = self._executor.submit(self._write, groups, self._rows.until(deadline))
        except BaseException:
            self._changes.end()
            raise
        future.add_done_callback(lambda _: self._changes.end())
        return future

    def wait_for_room(self, seconds: float) -> None:
        """How the owner fares is not known here: it is asked again after that time."""
        self._changes.ended.wait(seconds)
