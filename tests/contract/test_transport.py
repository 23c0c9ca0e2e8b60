"""What `ports.transport` and `ports.blocking` promise, of every transport that there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model.errors import AlreadyExists, Closed, InvalidArgument, Unavailable
from stelae.ports.blocking import BlockingConnection
from stelae.ports.transport import Address, Connection, Frame, FrameKind, Listener, RequestId
from tests.contract.transports import LIMITS, SPOKEN, WORLDS, TalkWorld, frame, talk_world
from tests.effort import examples

MIB = 2**20
UNTAKEN_BYTES_MAX = 8 * MIB
"""More than any transport lets a peer send that is not received: its own bounds, and the system's buffers."""

Talk = Callable[[Connection, Connection], Awaitable[None]]


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[TalkWorld]:
    with talk_world(request.param) as made:
        yield made


def talk(world: TalkWorld, both: Talk) -> None:
    """Two ends of one connection."""

    async def run() -> None:
        listener = await world.transport.listen(world.address("s"))
        here = await world.transport.connect(listener.address)
        there = await first(listener)
        try:
            await both(here, there)
        finally:
            await here.close()
            await there.close()
            await listener.close()

    world.run(run())


async def first(listener: Listener) -> Connection:
    return await anext(aiter(listener.accept()))


async def rest(connection: Connection) -> list[Frame]:
    """All up to the end, which is said as often as it is asked for."""
    found = []
    while (received := await connection.receive()) is not None:
        found.append(received)
    assert await connection.receive() is None
    return found


async def some(connection: Connection, count: int) -> list[Frame | None]:
    return [await connection.receive() for _ in range(count)]


async def numbers_until_gone(connection: Connection) -> list[int]:
    """What is received of a peer that died: it ends with None, or with Unavailable."""
    found: list[int] = []
    with suppress(Unavailable):
        while (received := await connection.receive()) is not None:
            found.append(received.request_id)
    return found


# -- connections


@pytest.mark.parametrize("name", WORLDS)
@given(st.lists(st.sampled_from([0, 1, 100, 20_000, 70_000, 300_000]), max_size=8))
@settings(max_examples=examples(25))
def test_frames_arrive_whole_and_in_order(name: str, sizes: list[int]) -> None:
    sent = [frame(n, bytes([n]) * size) for n, size in enumerate(sizes)]

    async def both(here: Connection, there: Connection) -> None:
        size = len(sent)
        by_there, by_here, *_ = await asyncio.gather(some(there, size), some(here, size), send(there), send(here))
        assert by_there == by_here == sent
        await here.close()
        assert await rest(there) == []

    async def send(by: Connection) -> None:
        for each in sent:
            await by.send(each)

    with talk_world(name) as world:
        talk(world, both)


def test_every_field_of_a_frame_arrives_and_nobody_can_change_it(world: TalkWorld) -> None:
    async def both(here: Connection, there: Connection) -> None:
        for kind in FrameKind:
            sent = Frame(kind, RequestId(2**64 - 1), "ü" * 64, b"\0message", b"\xffbody", 2**16 - 1)
            await here.send(sent)
            received = await there.receive()
            assert received == sent
            assert all(memoryview(part).readonly for part in (received.message, received.body))

    talk(world, both)


def test_what_was_sent_is_what_was_there_then(world: TalkWorld) -> None:
    """Views, parts and empty bodies are sent by their bytes."""

    async def both(here: Connection, there: Connection) -> None:
        await here.send(frame(1, memoryview(b"0123456789")[2:5]))  # type: ignore[arg-type]
        received = await there.receive()
        assert received is not None
        assert bytes(received.body) == b"234"

    talk(world, both)


def test_many_may_send_at_once(world: TalkWorld) -> None:
    async def both(here: Connection, there: Connection) -> None:
        called: list[int] = []

        async def send(number: int) -> None:
            called.append(number)
            await here.send(frame(number, bytes([number]) * 200_000))

        found, *_ = await asyncio.gather(some(there, 30), *(send(number) for number in range(30)))
        assert found == [frame(number, bytes([number]) * 200_000) for number in called]

    talk(world, both)


def test_a_peer_that_does_not_receive_is_waited_for(world: TalkWorld) -> None:
    """What was sent and not received is bounded, on both sides together."""

    async def both(here: Connection, there: Connection) -> None:
        body, sent = bytes(100_000), 0
        count = 2 * UNTAKEN_BYTES_MAX // len(body)

        async def send() -> None:
            nonlocal sent
            for number in range(count):
                await here.send(frame(number, body))
                sent += 1

        sending = asyncio.create_task(send())
        still = 0
        while still < 20:
            before = sent
            await asyncio.sleep(0.005)
            still = still + 1 if sent == before else 0
        assert 0 < sent * len(body) <= UNTAKEN_BYTES_MAX
        assert not sending.done()
        for number in range(count):
            assert await there.receive() == frame(number, body)
        await sending

    talk(world, both)


def test_frames_that_need_not_wait_are_sent_and_taken_at_once(world: TalkWorld) -> None:
    """In whichever way they are sent, they arrive in the order of the calls."""

    async def both(here: Connection, there: Connection) -> None:
        assert there.take() is None
        sent = [frame(number, bytes(size)) for number, size in enumerate([0, 10, 30_000, 10, 70_000, 0, 5_000, 1])]
        for at, each in enumerate(sent):
            if at % 3 == 2:
                await here.send(each)
            else:
                assert here.send_now(each)
        found = await some(there, 1)
        while len(found) < len(sent):
            taken = there.take()
            found.append(await there.receive() if taken is None else taken)
        assert found == sent
        assert there.take() is None
        with pytest.raises(InvalidArgument):
            here.send_now(frame(1, bytes(LIMITS.frame_bytes_max)))
        assert here.send_now(frame(9))
        assert await there.receive() == frame(9)
        await here.close()
        with pytest.raises(Closed):
            here.send_now(frame(10))
        assert await rest(there) == []
        assert there.take() is None

    talk(world, both)


def test_whoever_hears_of_frames_can_take_them_and_answer(world: TalkWorld) -> None:
    async def both(here: Connection, there: Connection) -> None:
        heard: list[Frame] = []

        def answer() -> None:
            while (come := there.take()) is not None:
                heard.append(come)
                assert there.send_now(come)

        there.hear(answer)
        sent = [frame(number, bytes(10 * number)) for number in range(40)]
        for each in sent:
            await here.send(each)
        assert await some(here, len(sent)) == sent == heard
        there.hear(None)
        await here.send(frame(99))
        assert await there.receive() == frame(99)
        assert heard == sent

    talk(world, both)


def test_what_is_heard_of_and_not_taken_is_received(world: TalkWorld) -> None:
    """In the order it came, whoever takes it; and so is the end."""

    async def both(here: Connection, there: Connection) -> None:
        found: list[Frame] = []

        def take_even() -> None:
            if len(found) % 2 == 0 and (come := there.take()) is not None:
                found.append(come)

        there.hear(take_even)

        async def receive() -> None:
            while (come := await there.receive()) is not None:
                found.append(come)

        receiving = asyncio.create_task(receive())
        sent = [frame(number, bytes(300 * number)) for number in range(100)]
        for each in sent:
            await here.send(each)
        closing = asyncio.create_task(here.close())
        await receiving
        await closing
        assert found == sent

    talk(world, both)


def test_frames_that_are_sent_aside_arrive_whole_or_were_refused(world: TalkWorld) -> None:
    async def both(here: Connection, there: Connection) -> None:
        body, sent = bytes(10_000), 0
        while here.send_aside(frame(sent, body)):
            sent += 1
            assert sent * len(body) <= UNTAKEN_BYTES_MAX
        assert await some(there, sent) == [frame(number, body) for number in range(sent)]
        await here.send(frame(7))
        assert await there.receive() == frame(7)
        is_sent = here.send_aside(frame(8))
        assert is_sent == bool(sent)  # not with TLS
        await here.close()
        assert not here.send_aside(frame(9))
        assert await rest(there) == [frame(8)] * is_sent

    talk(world, both)


def test_whoever_cannot_wait_does_not_overtake_those_who_do(world: TalkWorld) -> None:
    async def both(here: Connection, there: Connection) -> None:
        body, sent = bytes(100_000), 0
        while here.send_now(frame(sent, body)):
            sent += 1
            assert sent * len(body) <= UNTAKEN_BYTES_MAX
        is_sending = asyncio.Event()

        async def send() -> None:
            is_sending.set()
            await here.send(frame(sent, body))

        sending = asyncio.create_task(send())
        await is_sending.wait()
        assert not sending.done()
        assert not here.send_now(frame(sent + 1))
        assert [await there.receive() for _ in range(sent)] == [frame(number, body) for number in range(sent)]
        await sending
        assert await there.receive() == frame(sent, body)
        assert here.send_now(frame(sent + 1))
        assert await there.receive() == frame(sent + 1)

    talk(world, both)


def test_a_frame_larger_than_the_bound_goes_alone(world: TalkWorld) -> None:
    async def both(here: Connection, there: Connection) -> None:
        sent = [frame(1, b"x" * 1000), frame(2, bytes(range(256)) * 20_000), frame(3)]

        async def send() -> None:
            for each in sent:
                await here.send(each)

        found, _ = await asyncio.gather(some(there, 3), send())
        assert found == sent

    talk(world, both)


def test_cancelled_sends_and_receives_lose_nothing(world: TalkWorld) -> None:
    async def both(here: Connection, there: Connection) -> None:
        waiting = asyncio.create_task(there.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        called: list[int] = []

        async def send(number: int) -> None:
            called.append(number)
            await here.send(frame(number, bytes(400_000)))

        sends = {number: asyncio.create_task(send(number)) for number in range(2 * UNTAKEN_BYTES_MAX // 400_000)}
        await asyncio.wait(sends.values(), return_when=asyncio.FIRST_COMPLETED)
        stuck = [task for task in sends.values() if not task.done()]
        assert stuck
        for task in stuck:
            task.cancel()
        await asyncio.wait(sends.values())
        whole = [number for number in called if not sends[number].cancelled()]
        last = asyncio.create_task(here.send(frame(99)))
        found = await some(there, len(whole) + 1)
        await last
        assert [each.request_id for each in found if each] == [*whole, 99]

    talk(world, both)


def test_what_cannot_be_sent_is_refused_and_the_connection_goes_on(world: TalkWorld) -> None:
    bad = [
        frame(1, bytes(LIMITS.frame_bytes_max)),
        Frame(FrameKind.REQUEST, RequestId(1), "m", bytes(LIMITS.message_bytes_max + 1)),
        Frame(FrameKind.REQUEST, RequestId(-1)),
        Frame(FrameKind.REQUEST, RequestId(1), "m" * 65),
        Frame(FrameKind.REQUEST, RequestId(1), "m", flags=2**16),
    ]

    async def both(here: Connection, there: Connection) -> None:
        for number, each in enumerate(bad):
            with pytest.raises(InvalidArgument):
                await here.send(each)
            await here.send(frame(number))
            assert await there.receive() == frame(number)

    talk(world, both)


def test_closing_sends_what_was_gathered(world: TalkWorld) -> None:
    async def both(here: Connection, there: Connection) -> None:
        sent = [frame(number) for number in range(9)]
        for each in sent:
            assert here.send_now(each)
        _, found = await asyncio.gather(here.close(), rest(there))
        assert found == sent

    talk(world, both)


def test_closing_sends_what_was_accepted(world: TalkWorld) -> None:
    async def both(here: Connection, there: Connection) -> None:
        sent = [frame(number, bytes(50_000)) for number in range(4)]
        for each in sent:
            await here.send(each)
        waiting = asyncio.create_task(here.receive())
        await asyncio.sleep(0)
        _, __, found = await asyncio.gather(here.close(), here.close(), rest(there))
        assert found == sent
        with pytest.raises(Closed):
            await waiting
        for late in (here.receive, lambda: here.send(frame(1))):
            with pytest.raises(Closed):
                await late()
        with pytest.raises(Unavailable):
            await there.send(frame(1))

    talk(world, both)


def test_a_waiting_send_ends_with_the_connection(world: TalkWorld) -> None:
    async def send_for_ever(by: Connection) -> None:
        while True:
            await by.send(frame(1, bytes(MIB)))

    async def close_here(here: Connection, there: Connection) -> None:
        sending = asyncio.create_task(send_for_ever(here))
        await there.receive()
        closing = asyncio.create_task(here.close())
        with pytest.raises(Closed):
            await sending
        await rest(there)
        await closing

    async def close_there(here: Connection, there: Connection) -> None:
        sending = asyncio.create_task(send_for_ever(here))
        await there.receive()
        await there.close()
        with pytest.raises(Unavailable):
            await sending

    talk(world, close_here)
    talk(world, close_there)


def test_a_cancelled_close_ends_at_once(world: TalkWorld) -> None:
    """What was not sent is dropped, and the peer does not take that for a whole: it hears that it broke off."""

    async def both(here: Connection, there: Connection) -> None:
        for number in range(2):
            await here.send(frame(number, bytes(100_000)))
        begun = asyncio.Event()

        async def close() -> None:
            begun.set()
            await here.close()

        closing = asyncio.create_task(close())
        await begun.wait()
        closing.cancel()
        with suppress(asyncio.CancelledError):  # or it was done before
            await closing
        found: list[int] = []
        with suppress(Unavailable):
            while (received := await there.receive()) is not None:
                found.append(received.request_id)
            assert found == [0, 1]
        assert found == [0, 1][: len(found)]
        with pytest.raises(Closed):
            await here.receive()

    talk(world, both)


# -- listeners


def test_connections_wait_to_be_taken_from_the_first_moment(world: TalkWorld) -> None:
    async def run() -> None:
        listener = await world.transport.listen(world.address("s"))
        here = await world.transport.connect(listener.address)
        await here.send(frame(1))
        await here.close()
        there = await first(listener)  # it is gone by now, and is taken all the same
        assert await rest(there) == [frame(1)]
        await there.close()
        await listener.close()

    world.run(run())


def test_giving_up_waiting_for_a_connection_loses_none(world: TalkWorld) -> None:
    async def run() -> None:
        listener = await world.transport.listen(world.address("s"))
        waiting = asyncio.create_task(first(listener))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        here = await world.transport.connect(listener.address)
        there = await first(listener)
        await here.send(frame(1))
        assert await there.receive() == frame(1)
        await here.close()
        await there.close()
        await listener.close()

    world.run(run())


def test_an_address_is_taken_once_and_free_again(world: TalkWorld) -> None:
    async def run() -> None:
        address = world.address("s")
        with pytest.raises(Unavailable):
            await world.transport.connect(address)
        listener = await world.transport.listen(address)
        with pytest.raises(AlreadyExists):
            await world.transport.listen(address)
        other = await world.transport.listen(world.address("t"))
        assert (listener.address, other.address) == (address, world.address("t"))
        await listener.close()
        await listener.close()
        with pytest.raises(Unavailable):
            await world.transport.connect(address)
        again = await world.transport.listen(address)
        here = await world.transport.connect(address)
        there = await first(again)
        for each in (here, there, again, other):
            await each.close()

    world.run(run())


@pytest.mark.parametrize("address", ["", "a\0b"], ids=["nothing", "zero"])
def test_addresses_that_make_no_sense(world: TalkWorld, address: str) -> None:
    with pytest.raises(InvalidArgument):
        world.run(world.transport.listen(Address(address)))
    with pytest.raises(InvalidArgument):
        world.run(world.transport.connect(Address(address)))
    with pytest.raises(InvalidArgument):
        world.connector(Address(address))


def test_closing_a_listener_ends_what_was_not_taken_and_nothing_else(world: TalkWorld) -> None:
    async def run() -> None:
        listener = await world.transport.listen(world.address("s"))
        ours = await world.transport.connect(listener.address)
        taken = await first(listener)
        untaken = await world.transport.connect(listener.address)
        waiting = asyncio.create_task(first(listener))
        theirs = await waiting
        more = await world.transport.connect(listener.address)
        await listener.close()
        assert await numbers_until_gone(more) == []
        assert [each async for each in listener.accept()] == []
        await taken.send(frame(1))
        assert await ours.receive() == frame(1)
        await theirs.send(frame(2))
        assert await untaken.receive() == frame(2)
        for each in (ours, taken, untaken, theirs, more):
            await each.close()

    world.run(run())


def test_who_waits_for_connections_hears_that_none_will_come(world: TalkWorld) -> None:
    async def run() -> None:
        listener = await world.transport.listen(world.address("s"))

        async def all_of_them() -> list[Connection]:
            return [each async for each in listener.accept()]

        waiting = asyncio.create_task(all_of_them())
        await asyncio.sleep(0)
        await listener.close()
        assert await waiting == []

    world.run(run())


def test_a_cancelled_connect_leaves_nothing_open(world: TalkWorld) -> None:
    async def run() -> None:
        listener = await world.transport.listen(world.address("s"))
        opening = asyncio.create_task(world.transport.connect(listener.address))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().close()
        here = await world.transport.connect(listener.address)
        await here.send(frame(1))
        there = await first(listener)
        while (received := await _one_or_gone(there)) is None:  # the one that was given up
            await there.close()
            there = await first(listener)
        assert received == frame(1)
        for each in (here, there, listener):
            await each.close()

    world.run(run())


async def _one_or_gone(connection: Connection) -> Frame | None:
    try:
        return await connection.receive()
    except Unavailable:
        return None


# -- peers that die


def test_a_killed_peer_ends_its_connections_and_frees_its_address(world: TalkWorld) -> None:
    address = world.address("s")
    talker = world.talker(address)
    spoken = list(range(SPOKEN))

    async def connected() -> tuple[Connection, list[int]]:
        here = await world.transport.connect(address)
        return here, [each.request_id for each in await some(here, SPOKEN) if each]

    async def afterwards(here: Connection) -> None:
        found = await numbers_until_gone(here)
        assert found == list(range(100, 100 + len(found)))
        with pytest.raises(Unavailable):
            await here.send(frame(1))
        await here.close()
        with pytest.raises(Unavailable):
            await world.transport.connect(address)
        listener = await world.transport.listen(address)
        await listener.close()

    here, heard = world.run(connected())
    assert heard == spoken
    with pytest.raises(AlreadyExists):
        world.run(world.transport.listen(address))
    for number in range(100, 120):
        world.run(here.send(frame(number)))
    talker.kill()
    world.run(afterwards(here))


def test_of_what_a_killed_peer_said_a_beginning_is_heard(world: TalkWorld) -> None:
    """Nobody has received when it dies: whatever comes, it comes in order and from the first on."""
    address = world.address("s")
    talker = world.talker(address)
    here = world.run(world.transport.connect(address))
    talker.kill()
    found = world.run(numbers_until_gone(here))
    assert found == list(range(len(found)))
    world.run(here.close())


# -- callers that block


class Ends:
    """A connection that blocks, and the end of it that does not."""

    def __init__(self, world: TalkWorld) -> None:
        self.world = world
        self.listener = world.run(world.transport.listen(world.address("s")))
        self.here = world.connector(self.listener.address).connect(60)
        self.there = world.run(first(self.listener))

    def close(self) -> None:
        self.here.close()
        self.world.run(self.there.close())
        self.world.run(self.listener.close())


@pytest.fixture
def ends(world: TalkWorld) -> Iterator[Ends]:
    made = Ends(world)
    yield made
    made.close()


def test_blocking_frames_both_ways(world: TalkWorld, ends: Ends) -> None:
    sent = [frame(n, bytes([n]) * size) for n, size in enumerate([0, 10, 100_000, 5 * MIB])]
    reading = world.start(some(ends.there, len(sent)))
    for each in sent:
        ends.here.send(each, 60)
    assert world.run(reading) == sent

    async def answer() -> None:
        for each in sent:
            await ends.there.send(each)

    answering = world.start(answer())
    assert [ends.here.receive(60) for _ in sent] == sent
    world.run(answering)
    assert ends.here.peer
    assert world.connector(ends.listener.address).address == ends.listener.address


def test_blocking_waits_end_in_time(world: TalkWorld, ends: Ends) -> None:
    with pytest.raises(Unavailable, match=r"more than 0\.01 s"):
        ends.here.receive(0.01)
    other = world.connector(ends.listener.address).connect(60)
    with pytest.raises(Unavailable, match=r"sending to it took more than 0\.01 s"):
        _send_until_it_waits(other, 0.01, [])
    other.close()


def _send_until_it_waits(by: BlockingConnection, timeout_s: float, sent: list[int]) -> None:
    for number in range(2 * UNTAKEN_BYTES_MAX // MIB):
        by.send(frame(number, bytes(MIB)), timeout_s)
        sent.append(number)


def test_a_send_that_was_too_late_never_arrives(world: TalkWorld, ends: Ends) -> None:
    sent: list[int] = []
    with pytest.raises(Unavailable):
        _send_until_it_waits(ends.here, 0.05, sent)
    ends.here.close()
    assert world.run(numbers_until_gone(ends.there)) == sent


def test_whether_a_connection_is_quiet(world: TalkWorld, ends: Ends) -> None:
    here, there = ends.here, ends.there
    assert here.is_quiet()
    world.run(there.send(frame(1)))
    world.run(there.send(frame(2)))
    assert here.receive(60) == frame(1)
    _wait_until(world, here)
    assert here.receive(60) == frame(2)
    assert here.is_quiet()
    world.run(there.close())
    _wait_until(world, here)
    assert here.receive(60) is None
    assert here.receive(60) is None
    assert not here.is_quiet()
    with pytest.raises(Unavailable):
        here.send(frame(1), 60)


def _wait_until(world: TalkWorld, here: BlockingConnection) -> None:
    """What was sent arrives some time, and then the connection is not quiet."""
    while here.is_quiet():
        world.run(asyncio.sleep(0.001))


def test_blocking_connections_that_were_closed(world: TalkWorld, ends: Ends) -> None:
    ends.here.send(frame(1), 60)
    ends.here.close()
    ends.here.close()
    with pytest.raises(Closed):
        ends.here.receive(60)
    with pytest.raises(Closed):
        ends.here.send(frame(1), 60)
    assert not ends.here.is_quiet()
    assert world.run(rest(ends.there)) == [frame(1)]


def test_closing_wakes_who_blocks(world: TalkWorld, ends: Ends) -> None:
    async def close() -> None:
        await asyncio.sleep(0.01)
        ends.here.close()

    closing = world.start(close())
    with pytest.raises(Closed):
        ends.here.receive(None)
    world.run(closing)


def test_what_cannot_be_sent_blocking_is_refused_and_the_connection_goes_on(world: TalkWorld, ends: Ends) -> None:
    with pytest.raises(InvalidArgument):
        ends.here.send(frame(1, bytes(LIMITS.frame_bytes_max)), 60)
    ends.here.send(frame(2), 60)
    assert world.run(ends.there.receive()) == frame(2)


def test_nobody_is_there_for_who_blocks(world: TalkWorld) -> None:
    with pytest.raises(Unavailable):
        world.connector(world.address("s")).connect(60)


def test_a_killed_peer_of_who_blocks(world: TalkWorld) -> None:
    address = world.address("s")
    talker = world.talker(address)
    here = world.connector(address).connect(60)
    assert [each.request_id for each in (here.receive(60) for _ in range(SPOKEN)) if each] == list(range(SPOKEN))
    here.send(frame(7), 60)
    assert here.receive(60) == frame(7)
    talker.kill()
    _hear_the_end(here)
    with pytest.raises(Unavailable):
        here.send(frame(8), 60)
    here.close()
    again = world.talker(address)
    here = world.connector(address).connect(60)
    assert here.receive(60) == frame(0)
    here.close()
    again.kill()


def _hear_the_end(here: BlockingConnection) -> None:
    with suppress(Unavailable):
        assert here.receive(60) is None
