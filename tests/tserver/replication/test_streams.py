"""What a leader sends to whom, in which order and how much at once; the shard that it is sent to is a real one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.format.log.copies import encode_kept
from stelae.format.log.records import LogRecord
from stelae.model.errors import StelaeError, Unavailable, UnknownOutcome
from stelae.model.ids import Index, TabletId, Txn
from stelae.registry.control import Lead
from stelae.registry.replication.appending import APPEND, HOST, AppendPart
from stelae.tserver.replication import streams as module
from stelae.tserver.replication.led import Member
from stelae.tserver.replication.streams import Streams
from tests.storage.replicas.records import TABLE, TABLET, block
from tests.tserver.replication.test_following import Follower
from tests.tserver.replication.test_leading import Leader

NEW = "new/0@log"


class FollowerPeer:
    """A shard that is asked without a network. `asked`: how many bytes each request had. A request connects, if need
    be."""

    def __init__(self) -> None:
        self.follower = Follower()
        self.connections = 0
        self.is_connected = False
        self.is_silent = False
        self.asked: list[tuple[str, int]] = []
        self.refuses_whole = 0
        self.refusal: StelaeError = Unavailable("it is busy")

    async def ask(self, operation: Any, _: Any, __: str, *arguments: Any) -> Any:
        following = self.follower.following
        self.connections += not self.is_connected
        self.is_connected = True
        if self.is_silent:
            raise UnknownOutcome("no answer")
        if operation is HOST:
            self.asked.append((operation.name, len(encode_kept(arguments[-1]))))
            if self.refuses_whole:
                self.refuses_whole -= 1
                raise self.refusal
            return following.host(*arguments)
        assert operation is APPEND
        parts, copies = arguments
        self.asked.append((operation.name, sum(len(copy.payload) for some in copies for copy in some)))
        return following.append(parts, copies)

    async def close(self) -> None:
        return None


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.mark.parametrize("refusals", [0, 2])
def test_a_member_that_has_nothing_gets_a_long_tail_in_parts(leader: Leader, refusals: int) -> None:
    """All of it at once would be larger than a message may be."""
    leader.leading.lead([Lead(TABLET, TABLE, 2, 1, ("me",), 1, Txn(0))])
    shard, led = leader.engine.shard, leader.leading.led[TABLET]
    with shard.lock:
        for index in range(2, 12):
            record = block(2, index, bytes(2**20))
            shard.wal.enqueue(record, (led.state.commits,))
            led.state.commits.index = Index(index)
            led.replica.take(record, shard.wal.end)
    shard.drain()
    leader.leading.add([(TABLET, 2, NEW)])
    peer, nobody = FollowerPeer(), FollowerPeer()
    peer.refuses_whole = refusals

    async def story() -> None:
        opened: Any = lambda _: peer  # noqa: E731
        master: Any = nobody
        streams = Streams(shard, leader.engine.clock, opened, master)
        await streams.start()
        for _ in range(100):
            streams.step(leader.leading)
            await asyncio.sleep(0.01)
            leader.leading.look(0.0, 3.0, 9.0)
            if led.others[NEW].matched == led.quorum.here:
                break
        await streams.close()

    asyncio.run(story())
    assert peer.follower.replica.tail == led.replica.tail
    assert max(size for _, size in peer.asked) <= module._REQUEST_BYTES_MAX
    assert [name for name, _ in peer.asked].count("host") == refusals + 1


class Waiting:
    """A tablet of which a member lacks so many bytes, in records of 1 MiB."""

    def __init__(self, tablet: int, mib: int, *, is_pending: bool = False) -> None:
        self.tablet = TabletId(tablet)
        self.others = {NEW: Member(Index(0), is_pending=is_pending)}
        self.mib = mib

    def next_part(self, _: str, bytes_max: int) -> tuple[AppendPart, list[LogRecord]] | None:
        count = min(self.mib, max(1, bytes_max // 2**20))
        self.mib -= count
        return (AppendPart(self.tablet, TABLE, 1, (0, 0), 0), [block(1, 1, bytes(2**20))] * count) if count else None


def rounds(count: int, *waiting: Waiting) -> list[list[int]]:
    nothing: Any = None
    streams, leading = Streams(nothing, nothing, nothing, nothing), SimpleNamespace(led={w.tablet: w for w in waiting})
    hot: Any = leading
    return [[part.tablet for _, part, _ in streams._gather(hot, NEW)] for _ in range(count)]


def test_a_tablet_that_always_has_more_holds_up_no_other() -> None:
    found = rounds(3, Waiting(1, 100), Waiting(2, 1), Waiting(3, 1))
    assert found == [[1], [2, 3, 1], [1]]


def test_whoever_is_brought_up_to_date_comes_last_and_has_room_all_the_same() -> None:
    found = rounds(3, Waiting(1, 100, is_pending=True), Waiting(2, 100), Waiting(3, 1))
    assert found == [[2, 1], [3, 2, 1], [2, 1]]
