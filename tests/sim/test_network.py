"""What the simulated network does beyond the contract of a transport: its chances, its crashes and its time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from stelae.model.errors import Closed, Unavailable
from stelae.ports.transport import Address, Connection, Frame, FrameKind, RequestId
from stelae.sim.effects import SimCrash
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.network import BACKLOG, SimTransport
from stelae.sim.process import SimProcess, inside
from tests.effort import tries

ADDRESS = Address("store")


def frame(number: int, body: bytes = b"") -> Frame:
    return Frame(FrameKind.REQUEST, RequestId(number), "m", b"", body)


async def count(transport: SimTransport, numbers: int) -> None:
    """Tell each who connects so many numbers, then wait for an end of theirs."""
    listener = await transport.listen(ADDRESS)
    async with asyncio.TaskGroup() as group:
        async for connection in listener.accept():
            group.create_task(_tell(connection, numbers))


async def _tell(connection: Connection, numbers: int) -> None:
    for number in range(numbers):
        await connection.send(frame(number))
    with suppress(Unavailable):
        await connection.receive()
    await connection.close()


async def connected(transport: SimTransport) -> Connection:
    while True:
        with suppress(Unavailable):
            return await transport.connect(ADDRESS)
        await asyncio.sleep(0.001)


async def heard(connection: Connection) -> tuple[list[int], bool]:
    """The numbers up to the end, and whether it was said that the connection broke off."""
    found: list[int] = []
    try:
        while (received := await connection.receive()) is not None:
            found.append(received.request_id)
    except Unavailable:
        return found, True
    return found, False


# -- chances


def times(seed: int) -> list[tuple[str, int, float]]:
    """When each of two listeners heard what."""

    async def main(loop: SimLoop) -> list[tuple[str, int, float]]:
        transport = SimTransport(loop)
        found: list[tuple[str, int, float]] = []
        loop.spawn("teller", count(transport, 5))

        async def listen(name: str) -> None:
            connection = await connected(transport)
            for _ in range(5):
                received = await connection.receive()
                assert received is not None
                found.append((name, received.request_id, loop.time()))
            await connection.close()

        await asyncio.gather(listen("one"), listen("other"))
        return found

    return simulate(main, seed)


def test_a_seed_repeats_and_others_differ() -> None:
    runs = [times(seed) for seed in range(30)]
    assert runs == [times(seed) for seed in range(30)]
    assert len({tuple((name, number) for name, number, _ in run) for run in runs}) > 10
    for run in runs:
        for name in ("one", "other"):
            assert [number for who, number, _ in run if who == name] == list(range(5))


def test_no_frame_takes_longer_than_the_longest_delay() -> None:
    async def main(loop: SimLoop) -> None:
        transport = SimTransport(loop, delay_s_max=0.5)
        listener = await transport.listen(ADDRESS)
        here = await transport.connect(ADDRESS)
        there = await anext(aiter(listener.accept()))
        delays = []
        for number in range(200):
            before = loop.time()
            await here.send(frame(number))
            await there.receive()
            delays.append(loop.time() - before)
        assert 0.4 < max(delays) <= 0.5
        assert min(delays) < 0.1
        await asyncio.gather(here.close(), there.close(), listener.close())

    simulate(main, seed=3)


# -- crashes


def story(seed: int) -> tuple[list[int], bool]:
    """What is heard of a process that is killed while it speaks."""

    async def main(loop: SimLoop) -> tuple[list[int], bool]:
        transport = SimTransport(loop)
        teller = loop.spawn("teller", count(transport, 6))
        connection = await connected(transport)
        loop.call_later(0.005 * loop.draw(), teller.crash)
        found = await heard(connection)
        await connection.close()
        return found

    return simulate(main, seed)


def test_of_a_killed_process_a_beginning_is_heard() -> None:
    endings = set()
    for seed in range(tries(400)):
        found, was_broken = story(seed)
        assert found == list(range(len(found)))
        endings.add((len(found) == 6, was_broken))
    assert endings >= {(True, True), (True, False), (False, True)}


def test_a_process_that_is_killed_at_any_step_leaves_no_one_waiting() -> None:
    """Whoever has a connection to it, or wants one, hears of its end; and another may listen there at once."""
    for seed in range(tries(5)):
        for crash_at in range(1, 60):

            async def main(loop: SimLoop, crash_at: int = crash_at) -> None:
                transport = SimTransport(loop)
                teller = loop.spawn("teller", count(transport, 6), crash_at=crash_at)
                loop.call_later(1, teller.crash)
                while teller.alive:
                    with suppress(Unavailable):
                        connection = await transport.connect(ADDRESS)
                        found, _ = await heard(connection)
                        assert found == list(range(len(found)))
                        await connection.close()
                    await asyncio.sleep(0.01)
                await (await transport.listen(ADDRESS)).close()

            simulate(main, seed)


def test_who_waits_for_room_hears_that_the_other_is_gone() -> None:
    async def main(loop: SimLoop) -> None:
        transport = SimTransport(loop, unread_bytes_max=1000)
        deaf = loop.spawn("deaf", _deaf(transport))
        connection = await connected(transport)
        await connection.send(frame(1, bytes(5000)))
        sending = asyncio.create_task(connection.send(frame(2)))
        await asyncio.sleep(60)
        assert not sending.done()
        deaf.crash()
        with pytest.raises(Unavailable):
            await sending
        await connection.close()

    simulate(main, seed=1)


async def _deaf(transport: SimTransport) -> None:
    async for _ in (await transport.listen(ADDRESS)).accept():
        await asyncio.Event().wait()


def test_connections_that_a_dead_process_has_not_taken_end_too() -> None:
    async def main(loop: SimLoop) -> None:
        transport = SimTransport(loop)
        deaf = loop.spawn("deaf", _deaf(transport))
        connections = [await connected(transport) for _ in range(5)]
        deaf.crash()
        for each in connections:
            assert (await heard(each))[0] == []
            await each.close()

    simulate(main, seed=1)


def test_connections_that_nobody_takes_are_bounded() -> None:
    async def main(loop: SimLoop) -> None:
        transport = SimTransport(loop)
        listener = await transport.listen(ADDRESS)
        connections = [await transport.connect(ADDRESS) for _ in range(BACKLOG)]
        with pytest.raises(Unavailable, match="nobody answers"):
            await transport.connect(ADDRESS)
        taken = await anext(aiter(listener.accept()))
        connections.append(await transport.connect(ADDRESS))
        await listener.close()
        for each in (taken, *connections):
            await each.close()

    simulate(main, seed=1)


# -- callers that block


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop(seed=5)
    yield made
    made._drop()


def started(loop: SimLoop, transport: SimTransport) -> SimProcess:
    process = loop.spawn("teller", count(transport, 2))
    loop.run_until_complete(asyncio.sleep(0.001))
    return process


def test_blocking_takes_virtual_time(loop: SimLoop) -> None:
    transport = SimTransport(loop)
    started(loop, transport)
    here = transport.connector(ADDRESS).connect(1)
    assert [here.receive(1), here.receive(1)] == [frame(0), frame(1)]
    before = loop.time()
    with pytest.raises(Unavailable, match="more than 3600 s"):
        here.receive(3600)
    assert loop.time() - before == pytest.approx(3600)


def test_others_go_on_while_one_blocks(loop: SimLoop) -> None:
    transport = SimTransport(loop)
    teller = started(loop, transport)
    here = transport.connector(ADDRESS).connect(1)
    loop.call_later(7, teller.crash)
    numbers = []
    with suppress(Unavailable):
        while (received := here.receive(None)) is not None:
            numbers.append(received.request_id)
    assert numbers == [0, 1]
    assert loop.time() > 7


def test_a_process_that_blocks_can_be_killed(loop: SimLoop) -> None:
    """Its blocking call ends with it, and none is made after; its peer hears of it."""
    transport = SimTransport(loop)
    started(loop, transport)
    client = loop.spawn("client", asyncio.Event().wait())
    connector = transport.connector(ADDRESS)
    here = inside(client).run(connector.connect, 1)
    assert [here.receive(1), here.receive(1)] == [frame(0), frame(1)]
    loop.call_later(5, client.crash)
    with pytest.raises(SimCrash):
        here.receive(None)
    with pytest.raises(SimCrash):
        inside(client).run(here.send, frame(1), 1)
    with pytest.raises(Closed):
        here.send(frame(1), 1)
    with pytest.raises(SimCrash):
        inside(client).run(connector.connect, 1)
    assert not here.is_quiet()
    here.close()
    other = connector.connect(1)
    assert other.receive(1) == frame(0)
    other.close()


def test_what_the_loop_runs_cannot_block(loop: SimLoop) -> None:
    transport = SimTransport(loop)
    started(loop, transport)
    here = transport.connector(ADDRESS).connect(1)

    async def block() -> None:
        here.receive(1)

    with pytest.raises(RuntimeError, match="must await"):
        loop.run_until_complete(block())
    assert here.receive(1) == frame(0)
