"""Many requests at once on one connection, in the simulated world: every request ends, in the right words, and none is
answered with another's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from stelae.model.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    Deposed,
    InternalFault,
    NotFound,
    PermissionDenied,
    ProtocolError,
    StelaeError,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import TableId, Txn
from stelae.ports.transport import Address, Connection, Frame, FrameKind, RequestId
from stelae.registry.peers import Peer, PeerSettings
from stelae.service.deadlines import Deadline
from stelae.service.messages import Item, ItemKind, WriteMessage
from stelae.service.operations import COMPACT, FLUSH, NAMES, NOW, STORE_FAULTS, TRUNCATE, TXN, WRITE
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.loop_clock import SkewedClock
from stelae.sim.network import SimTransport
from stelae.sim.process import SimProcess
from stelae.sim.rng import SimRng
from stelae.wire.handshake import Introduction
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello
from stelae.wire.messages import end_frame, error_frame
from stelae.wire.proofs import ClusterToken
from tests.effort import tries

ADDRESS = Address("shard:1")
CLIENT = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "", "client")
SHARD = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "a-store", "shard")
TOKEN = ClusterToken("3f1c" * 8)
A_WRITE = WriteMessage(7, None, (1,))

Answer = Callable[[Connection, Frame], Awaitable[None]]


def txn_frame(request: RequestId, txn: int) -> Frame:
    return Frame(FrameKind.ANSWER, request, "", b"", TXN.encode(Txn(txn)))


async def answer_own_id(connection: Connection, frame: Frame) -> None:
    """With the number of the request, so that a mix-up shows."""
    await connection.send(txn_frame(frame.request_id, frame.request_id))


async def never(_: Connection, __: Frame) -> None:
    await asyncio.Event().wait()


@dataclass
class Server:
    """Says hello to whoever connects, and answers each frame in a task of its own."""

    transport: SimTransport
    answer: Answer = answer_own_id
    token: ClusterToken | None = None
    connections: list[Connection] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)

    async def serve(self) -> None:
        listener = await self.transport.listen(ADDRESS)
        async with asyncio.TaskGroup() as group:
            async for connection in listener.accept():
                self.connections.append(connection)
                group.create_task(self._serve(connection, group))

    async def _serve(self, connection: Connection, group: asyncio.TaskGroup) -> None:
        with suppress(StelaeError):
            handshake = Introduction(SHARD, self.token, SimRng(2)).accept(STORE_FAULTS)
            hello = await connection.receive()
            assert hello is not None
            try:
                await connection.send(handshake.take_hello(hello))
                if handshake.wants_proof:
                    proof = await connection.receive()
                    assert proof is not None
                    await connection.send(handshake.take_proof(proof))
            except PermissionDenied as error:
                await connection.send(error_frame(RequestId(0), error, STORE_FAULTS))
                await connection.close()
                return
            while (frame := await connection.receive()) is not None:
                self.frames.append(frame)
                if frame.kind is FrameKind.REQUEST:
                    group.create_task(self._answer(connection, frame))

    async def _answer(self, connection: Connection, frame: Frame) -> None:
        with suppress(StelaeError):
            await self.answer(connection, frame)

    def methods(self, kind: FrameKind = FrameKind.REQUEST) -> list[str]:
        return [frame.method for frame in self.frames if frame.kind is kind]


@dataclass
class World:
    loop: SimLoop
    server: Server
    process: SimProcess
    """The server's."""
    peer: Peer
    clock: SkewedClock
    dialled: list[float]

    def until(self, seconds: float = 5.0) -> Deadline:
        return Deadline(self.clock, seconds)


def play(
    main: Callable[[World], Awaitable[Any]],
    answer: Answer = answer_own_id,
    *,
    seed: int = 1,
    settings: PeerSettings | None = None,
    tokens: tuple[ClusterToken | None, ClusterToken | None] = (None, None),
) -> Any:
    async def run(loop: SimLoop) -> Any:
        clock = SkewedClock(loop)
        transport = SimTransport(loop)
        server = Server(transport, answer, tokens[1])
        process = loop.spawn("server", server.serve())
        dialled: list[float] = []

        async def dial(_: Deadline) -> Connection:
            dialled.append(loop.time())
            return await transport.connect(ADDRESS)

        me = Introduction(CLIENT, tokens[0], SimRng(seed))
        peer = Peer("the shard", dial, me, clock, SimRng(seed), settings or PeerSettings())
        try:
            return await main(World(loop, server, process, peer, clock, dialled))
        finally:
            await peer.close()

    return simulate(run, seed)


async def reach(world: World) -> None:
    """The server may not listen yet."""
    while True:
        with suppress(ConnectionLost):
            await world.peer.ask(NOW, world.until())
            return


@pytest.mark.parametrize("seed", range(tries(20)))
def test_answers_come_in_any_order_and_go_to_those_who_asked(seed: int) -> None:
    async def late(connection: Connection, frame: Frame) -> None:
        await asyncio.sleep(frame.request_id % 7 / 100)
        await answer_own_id(connection, frame)

    async def main(world: World) -> None:
        await reach(world)
        found = await asyncio.gather(*(world.peer.ask(NOW, world.until()) for _ in range(50)))
        assert len(set(found)) == 50
        asked = [frame.request_id for frame in world.server.frames if frame.kind is FrameKind.REQUEST]
        assert set(found) <= set(asked)
        assert len(world.server.connections) == 1

    play(main, late, seed=seed)


def test_an_answer_in_pieces_and_one_that_is_an_error() -> None:
    async def answer(connection: Connection, frame: Frame) -> None:
        if frame.method == NAMES.name:
            data = NAMES.result.encode(("a", "b"))
            for part in (data[:1], data[1:]):
                await connection.send(NAMES.method.answer(frame.request_id, Item(ItemKind.PIECE), bytes(part)))
            await connection.send(end_frame(frame.request_id))
        elif frame.method == FLUSH.name:
            await connection.send(error_frame(frame.request_id, NotFound("no such table"), STORE_FAULTS))
        else:
            await answer_own_id(connection, frame)

    async def main(world: World) -> None:
        await reach(world)
        assert await world.peer.ask(NAMES, world.until()) == ("a", "b")
        with pytest.raises(NotFound, match="no such table"):
            await world.peer.ask(FLUSH, world.until(), TableId(7))

    play(main, answer)


def test_a_mistake_of_the_peer_leaves_open_what_is_not_safe_to_repeat() -> None:
    async def answer(connection: Connection, frame: Frame) -> None:
        if frame.method == NOW.name:
            await answer_own_id(connection, frame)
        else:
            await connection.send(error_frame(frame.request_id, KeyError("no such thing"), STORE_FAULTS))

    async def main(world: World) -> None:
        await reach(world)
        with pytest.raises(InternalFault, match="KeyError"):
            await world.peer.ask(FLUSH, world.until(), TableId(7))
        with pytest.raises(UnknownOutcome, match=r"truncate may or may not have happened: .*KeyError") as caught:
            await world.peer.ask(TRUNCATE, world.until(), TableId(7))
        assert caught.value.is_fault

    play(main, answer)


def test_who_says_that_another_one_leads_is_not_asked_again() -> None:
    """On a connection that is made anew, whoever is found then; what is under way on the old one still gets its
    answer."""

    async def answer(connection: Connection, frame: Frame) -> None:
        if frame.method == FLUSH.name:
            await connection.send(error_frame(frame.request_id, Deposed("another one does"), STORE_FAULTS))
        else:
            await asyncio.sleep(0.2 if frame.method == NAMES.name else 0)
            data = NAMES.result.encode(("a",)) if frame.method == NAMES.name else TXN.encode(Txn(frame.request_id))
            await connection.send(Frame(FrameKind.ANSWER, frame.request_id, "", b"", data))

    async def main(world: World) -> None:
        await reach(world)
        before = len(world.server.connections)
        slow = asyncio.create_task(world.peer.ask(NAMES, world.until()))
        with pytest.raises(Deposed):
            await world.peer.ask(FLUSH, world.until(), TableId(7))
        await world.peer.ask(NOW, world.until())
        assert len(world.server.connections) == before + 1
        assert await slow == ("a",)

    play(main, answer)


def test_each_request_has_its_own_deadline() -> None:
    async def answer(connection: Connection, frame: Frame) -> None:
        if frame.method == NOW.name:
            await answer_own_id(connection, frame)
        else:
            await never(connection, frame)

    async def main(world: World) -> None:
        await reach(world)
        begun = world.loop.time()
        with pytest.raises(DeadlineExceeded, match=r"names was not answered within 0\.5 s"):
            await world.peer.ask(NAMES, world.until(0.5))
        assert 0.5 <= world.loop.time() - begun < 0.6
        with pytest.raises(UnknownOutcome, match="write was sent"):
            await world.peer.receive(WRITE, A_WRITE, b"x", world.until(0.5))
        await world.peer.ask(NOW, world.until())
        # What only reads is called off; what changes something is not.
        assert world.server.methods(FrameKind.CANCEL) == [""]
        assert len(world.server.connections) == 1
        left = [frame.message for frame in world.server.frames if frame.method == WRITE.name]
        assert WRITE.method.read_request(Frame(FrameKind.REQUEST, RequestId(1), WRITE.name, left[0])).left_ms in (
            499,
            500,
        )

    play(main, answer)


def test_long_work_may_take_long_as_long_as_it_is_heard_of() -> None:
    async def answer(connection: Connection, frame: Frame) -> None:
        if frame.method != COMPACT.name:
            await answer_own_id(connection, frame)
            return
        for _ in range(5):
            await asyncio.sleep(0.25)
            await connection.send(COMPACT.method.answer(frame.request_id, Item(ItemKind.PROGRESS)))
        await connection.send(Frame(FrameKind.ANSWER, frame.request_id, "", b"", COMPACT.result.encode(("f",))))

    async def main(world: World) -> None:
        await reach(world)
        assert await world.peer.ask(COMPACT, world.until(0.6), TableId(7), False) == ("f",)
        with pytest.raises(DeadlineExceeded):
            await world.peer.ask(COMPACT, world.until(0.3), TableId(7), False)

    play(main, answer)


@pytest.mark.parametrize("seed", range(tries(20)))
def test_when_the_connection_breaks_every_request_ends_and_the_next_connects_anew(seed: int) -> None:
    async def answer(connection: Connection, frame: Frame) -> None:
        if frame.method == NOW.name:
            await answer_own_id(connection, frame)

    async def main(world: World) -> None:
        await reach(world)
        asked: list[Coroutine[Any, Any, Any]] = [
            world.peer.ask(NAMES, world.until()),
            world.peer.receive(WRITE, A_WRITE, b"x", world.until()),
            world.peer.ask(TRUNCATE, world.until(), TableId(7)),
        ]
        waiting = [asyncio.ensure_future(each) for each in asked]
        while len(world.server.methods()) < 4:
            await asyncio.sleep(0.001)
        await world.server.connections[0].close()
        kinds = [type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)]
        assert kinds == [ConnectionLost, UnknownOutcome, UnknownOutcome]
        await world.peer.ask(NOW, world.until())
        assert len(world.server.connections) == 2

    play(main, answer, seed=seed)


def test_whoever_cannot_connect_waits_longer_each_time_and_all_wait_together() -> None:
    async def main(loop: SimLoop) -> None:
        clock, dialled = SkewedClock(loop), list[float]()

        async def dial(_: Deadline) -> Connection:
            dialled.append(loop.time())
            raise Unavailable("nobody listens there")

        peer = Peer("the shard", dial, Introduction(CLIENT), clock, SimRng(3))
        for _ in range(8):
            calls = [peer.ask(NOW, Deadline(clock, 60)) for _ in range(5)]
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(error) for error in errors} == {ConnectionLost}
        pauses = [later - earlier for earlier, later in pairwise(dialled)]
        assert len(dialled) == 8
        assert all(0.01 <= pause <= 1.5 for pause in pauses)
        assert pauses[-1] > 4 * pauses[0]
        # Whoever has less time than the pause gives up alone.
        with pytest.raises(DeadlineExceeded, match=r"connecting to the shard took more than 0\.001 s"):
            await peer.ask(NOW, Deadline(clock, 0.001))
        await peer.close()
        with pytest.raises(Closed):
            await peer.ask(NOW, Deadline(clock, 1))

    simulate(main, 4)


def test_a_task_that_is_cancelled_waits_no_longer_and_harms_no_other() -> None:
    async def answer(connection: Connection, frame: Frame) -> None:
        await asyncio.sleep(0.2)
        await answer_own_id(connection, frame)

    async def main(world: World) -> None:
        await reach(world)
        tasks = [asyncio.create_task(world.peer.ask(NOW, world.until())) for _ in range(10)]
        await asyncio.sleep(0.1)
        for task in tasks[::2]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(each, asyncio.CancelledError) for each in found] == [True, False] * 5
        await world.peer.ask(NOW, world.until())
        assert len(world.server.methods(FrameKind.CANCEL)) == 5

    play(main, answer)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_nothing_piles_up_behind_a_peer_that_takes_nothing(is_cancelled: bool) -> None:
    """Its machine still acknowledges what it is sent, so no silence ends the connection."""

    async def main(world: World) -> None:
        await reach(world)
        world.process.pause()
        before = len(asyncio.all_tasks())
        for _ in range(3):
            tasks = [asyncio.create_task(world.peer.ask(NOW, world.until(1.0))) for _ in range(100)]
            await asyncio.sleep(0.5)
            for task in tasks if is_cancelled else []:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(each) for each in found} == {asyncio.CancelledError if is_cancelled else DeadlineExceeded}
            assert len(asyncio.all_tasks()) == before
        world.process.resume()
        await world.peer.ask(NOW, world.until())
        await asyncio.sleep(1.0)
        asked = [each.request_id for each in world.server.frames if each.kind is FrameKind.REQUEST]
        called_off = [each.request_id for each in world.server.frames if each.kind is FrameKind.CANCEL]
        assert len(asked) == len(set(asked)) < 300  # those for which there was no room were never sent
        assert set(called_off) <= set(asked)
        assert len(called_off) == len(set(called_off))

    play(main)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_peer_that_retires_ends_what_is_under_way_first(is_cancelled: bool) -> None:
    async def answer(connection: Connection, frame: Frame) -> None:
        await asyncio.sleep(0.2)
        await answer_own_id(connection, frame)

    async def main(world: World) -> None:
        await reach(world)
        write = asyncio.create_task(world.peer.receive(WRITE, A_WRITE, b"x", world.until()))
        await asyncio.sleep(0.1)
        retiring = asyncio.create_task(world.peer.retire())
        await asyncio.sleep(0.01)  # it has begun: in one turn of this loop it may not have
        with pytest.raises(Closed):
            await world.peer.ask(NOW, world.until())
        if is_cancelled:
            retiring.cancel()
            with pytest.raises(UnknownOutcome):
                await write
        else:
            assert await write > 0
            await retiring

    play(main, answer)


def test_requests_are_bounded_in_number() -> None:
    async def answer(connection: Connection, frame: Frame) -> None:
        await asyncio.sleep(0.1)
        await answer_own_id(connection, frame)

    async def main(world: World) -> None:
        await reach(world)
        begun = world.loop.time()
        await asyncio.gather(*(world.peer.ask(NOW, world.until()) for _ in range(12)))
        assert world.loop.time() - begun >= 0.3

    play(main, answer, settings=PeerSettings(requests_max=4))


# -- requests that are sent without waiting


@dataclass
class Ends:
    """Which requests have ended."""

    count: int = 0

    def __call__(self, _: object) -> None:
        self.count += 1


def test_what_need_not_wait_is_sent_at_once() -> None:
    async def main(world: World) -> None:
        ended = Ends()
        assert world.peer.begin(WRITE, A_WRITE, b"x", world.until(), ended) is None, "there is no connection yet"
        await reach(world)
        begun = [world.peer.begin(WRITE, A_WRITE, b"x", world.until(), ended) for _ in range(5)]
        assert begun[4] is None, "as many as may be are under way"
        answers = await asyncio.gather(*(each.result() for each in begun if each is not None))
        assert answers == [Txn(number) for number in range(2, 6)]
        assert ended.count == 4
        assert not any(each.is_open for each in begun if each is not None)
        await world.peer.close()
        assert world.peer.begin(WRITE, A_WRITE, b"x", world.until(), ended) is None

    play(main, settings=PeerSettings(requests_max=4))


def test_nobody_has_to_wait_for_what_was_sent() -> None:
    """It is under way until it is answered, and whoever counts it is told then."""
    is_answered = asyncio.Event()

    async def answer(connection: Connection, frame: Frame) -> None:
        if frame.method == WRITE.name:
            await is_answered.wait()
        await answer_own_id(connection, frame)

    async def main(world: World) -> None:
        await reach(world)
        ended = Ends()
        begun = world.peer.begin(WRITE, A_WRITE, b"x", world.until(), ended)
        assert begun is not None
        waiting = asyncio.create_task(begun.result())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (begun.is_open, ended.count) == (True, 0)
        retiring = asyncio.create_task(world.peer.retire())
        await asyncio.sleep(0.5)
        assert not retiring.done()
        is_answered.set()
        await retiring
        assert (begun.is_open, ended.count) == (False, 1)

    play(main, answer)


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_was_sent_ends_with_its_time_or_its_connection(is_closed: bool) -> None:
    async def main(world: World) -> None:
        ended = Ends()
        world.server.answer = answer_own_id
        await reach(world)
        world.server.answer = never
        until = [world.until(seconds) for seconds in (3.0, 1.0, 2.0)]
        begun = [world.peer.begin(WRITE, A_WRITE, b"x", each, ended) for each in until]
        began_s = world.loop.time()

        async def took_s(at: int) -> float:
            write = begun[at]
            assert write is not None
            with pytest.raises(UnknownOutcome):
                await write.result()
            return world.loop.time() - began_s

        if is_closed:
            world.loop.call_later(0.5, lambda: world.loop.create_task(world.server.connections[0].close()))
        found = await asyncio.gather(*map(took_s, range(3)))
        assert ended.count == 3
        assert found == pytest.approx([3.0, 1.0, 2.0], abs=0.01) if not is_closed else max(found) < 1.0

    play(main)


@pytest.mark.parametrize(
    "forged",
    [
        Frame(FrameKind.ANSWER, RequestId(99)),
        Frame(FrameKind.REQUEST, RequestId(2), "now"),
        Frame(FrameKind.ITEM, RequestId(2), "", b"\xc1"),
        Frame(FrameKind.ANSWER, RequestId(2), "", b"", b"\xc1"),
        Frame(FrameKind.ERROR, RequestId(2), "", b"\xc1"),
    ],
)
def test_what_makes_no_sense_ends_the_connection(forged: Frame) -> None:
    async def answer(connection: Connection, frame: Frame) -> None:
        await (answer_own_id(connection, frame) if frame.request_id == 1 else connection.send(forged))

    async def main(world: World) -> None:
        await reach(world)
        with pytest.raises((ProtocolError, ConnectionLost)):
            await world.peer.ask(NOW, world.until())
        world.server.answer = answer_own_id
        await world.peer.ask(NOW, world.until())
        assert len(world.server.connections) == 2

    play(main, answer)


@pytest.mark.parametrize("tokens", [(TOKEN, None), (None, TOKEN), (TOKEN, ClusterToken("5d2e" * 8))])
def test_who_is_not_let_in_is_told_why(tokens: tuple[ClusterToken | None, ClusterToken | None]) -> None:
    async def main(world: World) -> None:
        for _ in range(200):
            try:
                await world.peer.ask(NOW, world.until())
            except ConnectionLost:
                continue
            except PermissionDenied as error:
                assert "token" in str(error)
                return
        raise AssertionError("it was let in")

    play(main, tokens=tokens)


def test_who_knows_the_token_is_let_in() -> None:
    async def main(world: World) -> None:
        await reach(world)

    play(main, tokens=(TOKEN, TOKEN))
