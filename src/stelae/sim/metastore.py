"""A metastore under virtual time: requests and answers travel, get lost, and arrive after no one waits for them.

The server is the truth, and never wrong; all faults are between it and its clients, drawn from the seed. A transaction
whose request or answer is lost, or late, raises UnknownOutcome at the client's timeout: it never happened, or did, or
will. A call that is refused raises Unavailable, and never happened. A crash of the client's process recalls nothing
that it sent. Leases run on virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stelae.model.errors import Closed, StelaeError, Unavailable, UnknownOutcome
from stelae.ports.metastore import Change, Compare, Entry, LeaseId, RangeRead, Revision, TxnOutcome, WatchBatch
from stelae.ports.metastore_rules import (
    check_read_request,
    check_revision,
    check_ttl,
    check_txn_request,
    key_bytes,
    prefix_bytes,
)
from stelae.ports.rng import Rng
from stelae.sim.bell import Bell
from stelae.sim.loop import SimLoop
from stelae.sim.metastore_state import MetastoreState
from stelae.sim.process import outside

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MetastoreFaults:
    """How the way between server and clients behaves: rates are of calls, or of a watch's deliveries, from 0 to 1.

    A late request takes up to four timeouts, so that it happens while its client has long been told UnknownOutcome.
    """

    delay_s_max: float = 0.01
    refused: float = 0.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    watch_cut: float = 0.0


NO_FAULTS = MetastoreFaults()


class SimMetastoreServer:
    """One metastore of a simulated world, which outlives its clients' processes."""

    def __init__(self, loop: SimLoop, rng: Rng, faults: MetastoreFaults = NO_FAULTS, timeout_s: float = 1.0) -> None:
        self.faults = faults
        self._loop = loop
        self._rng = rng
        self._timeout_s = timeout_s
        self._state = MetastoreState()
        self._context = outside()
        self._partitioned: set[str] = set()
        self._is_away = False
        self._ttl_s: dict[LeaseId, float] = {}
        self._expiry: dict[LeaseId, asyncio.TimerHandle] = {}
        self._changed = Bell()
        """Something happened that a watch may want to look at."""

    @property
    def revision(self) -> Revision:
        return self._state.revision

    def client(self, name: str) -> SimMetastore:
        """A connection; those of one name are partitioned together."""
        return SimMetastore(self, name)

    def partition(self, name: str) -> None:
        """From now on nothing reaches the clients of this name, nor comes from them; also what is under way is lost."""
        self._partitioned.add(name)
        self._changed.ring()

    def heal(self, name: str) -> None:
        self._partitioned.discard(name)
        self._changed.ring()

    def go_away(self) -> None:
        """Nothing reaches it, nor comes from it, until `come_back`: as a cluster without majority. Leases run on."""
        self._is_away = True
        self._changed.ring()

    def come_back(self) -> None:
        """Answer again. Coming back from nowhere is no error."""
        self._is_away = False
        self._changed.ring()

    def restart(self) -> None:
        """Crash and come back: no acknowledged change is lost, leases start anew, watches are cut."""
        for lease in self._state.leases():
            self._start_ttl(lease)
        self._changed.ring()

    def _start_ttl(self, lease: LeaseId) -> None:
        if lease in self._expiry:
            self._expiry[lease].cancel()
        self._expiry[lease] = self._loop.call_later(self._ttl_s[lease], self._end_lease, lease, context=self._context)

    def _grant(self, ttl_s: float) -> LeaseId:
        lease = self._state.grant()
        self._ttl_s[lease] = ttl_s
        self._start_ttl(lease)
        return lease

    def _keep_alive(self, lease: LeaseId) -> float:
        self._state.check_lease(lease)
        self._start_ttl(lease)
        return self._ttl_s[lease]

    def _end_lease(self, lease: LeaseId) -> None:
        self._state.end_lease(lease)
        if lease in self._expiry:
            self._expiry.pop(lease).cancel()
            del self._ttl_s[lease]
        self._changed.ring()

    def _txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        outcome = self._state.txn(compares, changes)
        self._changed.ring()
        return outcome

    def _chance(self, rate: float) -> bool:
        return rate > 0 and self._rng.fraction() < rate

    def _delay_s(self) -> float:
        longest_s = 4 * self._timeout_s if self._chance(self.faults.late) else self.faults.delay_s_max
        return self._rng.fraction() * longest_s

    def _is_connected(self, name: str) -> bool:
        return not self._is_away and name not in self._partitioned

    def _reaches(self, name: str, lost: float) -> bool:
        return self._is_connected(name) and not self._chance(lost)

    def _send(self, name: str, action: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        """A request on its way. Where it is lost is decided when it arrives, and so for its answer."""

        def arrive() -> None:
            if not self._reaches(name, self.faults.request_lost):
                return
            try:
                result, error = action(), None
            except StelaeError as raised:
                result, error = None, raised
            self._loop.call_later(self._delay_s(), return_, result, error, context=self._context)

        def return_(result: Any, error: StelaeError | None) -> None:
            if not self._reaches(name, self.faults.answer_lost) or answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        self._loop.call_later(self._delay_s(), arrive, context=self._context)


class SimMetastore:
    """A connection to the simulated server. Made by `SimMetastoreServer.client`."""

    def __init__(self, server: SimMetastoreServer, name: str) -> None:
        self._server = server
        self._name = name
        self._closed = False

    async def get(self, key: str, revision: Revision | None = None) -> Entry | None:
        self._check_open()
        key_bytes(key)
        check_read_request(None, revision)
        return await self._call(lambda state: state.get(key, revision), Unavailable)

    async def range(
        self, prefix: str, *, start: str | None = None, limit: int | None = None, revision: Revision | None = None
    ) -> RangeRead:
        self._check_open()
        prefix_bytes(prefix)
        prefix_bytes(start or "")
        check_read_request(limit, revision)
        return await self._call(lambda state: state.range(prefix, start, limit, revision), Unavailable)

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        self._check_open()
        check_txn_request(compares, changes)
        asked = (tuple(compares), tuple(changes))
        return await self._call(lambda _: self._server._txn(*asked), UnknownOutcome if changes else Unavailable)

    def watch(self, prefix: str, from_revision: Revision) -> SimWatch:
        return SimWatch(self, prefix, from_revision)

    async def grant(self, ttl_s: float) -> LeaseId:
        self._check_open()
        check_ttl(ttl_s)
        return await self._call(lambda _: self._server._grant(ttl_s), UnknownOutcome)

    async def keep_alive(self, lease: LeaseId) -> float:
        self._check_open()
        return await self._call(lambda _: self._server._keep_alive(lease), UnknownOutcome)

    async def revoke(self, lease: LeaseId) -> None:
        self._check_open()
        await self._call(lambda _: self._server._end_lease(lease), UnknownOutcome)

    async def compact(self, revision: Revision) -> None:
        self._check_open()
        check_revision(revision)
        await self._call(lambda state: state.compact(revision), UnknownOutcome)

    async def close(self) -> None:
        self._closed = True
        self._server._changed.ring()

    async def _call(self, action: Callable[[MetastoreState], T], lost: type[Unavailable | UnknownOutcome]) -> T:
        server = self._server
        if server._chance(server.faults.refused):
            await asyncio.sleep(server._delay_s())
            raise Unavailable(f"the metastore refused the connection of {self._name}")
        answer: asyncio.Future[T] = server._loop.create_future()
        server._send(self._name, lambda: action(server._state), answer)
        try:
            async with asyncio.timeout(server._timeout_s):
                return await answer
        except TimeoutError:
            raise lost(f"no answer from the metastore to {self._name} in {server._timeout_s} s") from None

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the metastore connection of {self._name} was closed")


class SimWatch:
    """A watch that is delayed, cut and resumed. Cut, it goes on after the last batch it delivered, as a real one does:
    also a watch that missed nothing may find that place compacted."""

    def __init__(self, client: SimMetastore, prefix: str, from_revision: Revision) -> None:
        self._client = client
        self._prefix = prefix
        self._from = from_revision
        self._seen = Revision(from_revision - 1)
        self._failed: StelaeError | None = None

    def __aiter__(self) -> SimWatch:
        return self

    async def __anext__(self) -> WatchBatch:
        client, server = self._client, self._client._server
        while True:
            client._check_open()
            if self._failed is not None:
                raise self._failed
            prefix_bytes(self._prefix)
            check_revision(self._from)
            connected = server._is_connected(client._name)
            if not connected or server._state.revision <= self._seen:
                self._seen = self._seen if connected else Revision(self._from - 1)
                await server._changed.wait()
                continue
            await asyncio.sleep(server._delay_s())
            if not server._reaches(client._name, server.faults.watch_cut):
                self._seen = Revision(self._from - 1)
                await asyncio.sleep(server._delay_s())
                continue
            if (batch := self._take(server._state)) is not None:
                return batch

    def _take(self, state: MetastoreState) -> WatchBatch | None:
        try:
            batch = next(state.batches(self._prefix, Revision(self._seen + 1)), None)
        except StelaeError as error:
            self._failed = error
            return None
        if batch is None:
            self._seen = max(self._seen, state.revision)
            return None
        self._seen = batch.revision
        self._from = Revision(batch.revision + 1)
        return batch
