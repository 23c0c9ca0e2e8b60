"""What can be wrong between two hosts of the simulated network, and what both ends hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from stelae.model.errors import Unavailable
from stelae.ports.transport import Address, Connection, Frame, FrameKind, RequestId
from stelae.sim.connections import CLOSE_S_MAX
from stelae.sim.links import Delays
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.network import CONNECT_S_MAX, SILENCE_S, SimTransport
from stelae.sim.process import SimProcess
from tests.effort import tries

A, B = "a", "b"
ADDRESS = Address("b:1")


def frame(number: int, body: bytes = b"") -> Frame:
    return Frame(FrameKind.REQUEST, RequestId(number), "m", b"", body)


class Talk:
    """One connection from host a to host b, with both ends in the hands of the test, which is nobody's."""

    def __init__(self, loop: SimLoop, transport: SimTransport) -> None:
        self.loop = loop
        self.transport = transport
        self.links = transport.links
        self.here: Connection
        self.there: Connection
        self.a: SimProcess
        self.b: SimProcess

    async def begin(self) -> None:
        ready = asyncio.Event()

        async def live_there() -> None:
            listener = await self.transport.listen(ADDRESS)
            ready.set()
            async for connection in listener.accept():
                if not met.is_set():
                    self.there = connection
                    met.set()
            await asyncio.Event().wait()

        async def live_here() -> None:
            self.here = await self.transport.connect(ADDRESS)
            connected.set()
            await asyncio.Event().wait()

        met, connected = asyncio.Event(), asyncio.Event()
        self.b = self.loop.spawn("there", live_there(), host=B)
        await ready.wait()
        self.a = self.loop.spawn("here", live_here(), host=A)
        await met.wait()
        await connected.wait()

    async def connect(self) -> Connection:
        """Another one from host a."""
        return await self.transport.connect_as(self.a, ADDRESS)


def talk(job: Callable[[Talk], Awaitable[None]], seed: int = 1, **options: object) -> None:
    async def main(loop: SimLoop) -> None:
        made = Talk(loop, SimTransport(loop, **options))  # type: ignore[arg-type]
        await made.begin()
        await job(made)

    simulate(main, seed)


async def heard(connection: Connection) -> tuple[list[int], str]:
    """The numbers up to the end, and how it ended."""
    found: list[int] = []
    try:
        while (received := await connection.receive()) is not None:
            found.append(received.request_id)
    except Unavailable:
        return found, "broken"
    return found, "closed"


# -- delays


def test_a_long_tail_delays_few_frames_by_much() -> None:
    async def job(it: Talk) -> None:
        late: list[float] = []
        for number in range(1000):
            before = it.loop.time()
            await it.here.send(frame(number))
            await it.there.receive()
            late.append(it.loop.time() - before)
        assert 5 < sum(seconds > 0.01 for seconds in late) < 100
        assert 0.1 < max(late) <= 2.0

    talk(job, delays=Delays(0.01, tail=0.05, tail_s_max=2.0))


def test_a_late_frame_makes_those_behind_it_late() -> None:
    async def job(it: Talk) -> None:
        it.links.lag(A, B, Delays(1e6))
        await it.here.send(frame(1))
        it.links.lag(A, B, None)
        await it.here.send(frame(2))
        before = it.loop.time()
        assert await it.there.receive() == frame(1)
        assert it.loop.time() - before > 1
        assert await it.there.receive() == frame(2)

    talk(job)


def test_frames_of_one_connection_keep_their_order_whatever_the_delays() -> None:
    async def job(it: Talk) -> None:
        async def send() -> None:
            for number in range(300):
                await it.here.send(frame(number))

        sending = asyncio.create_task(send())
        found = [await it.there.receive() for _ in range(300)]
        await sending
        assert [each.request_id for each in found if each] == list(range(300))

    for seed in range(5):
        for by_bytes in (False, True):
            talk(job, seed, delays=Delays(0.01, tail=0.2), by_bytes=by_bytes)


def test_a_new_connection_may_overtake_an_old_one() -> None:
    overtaken = 0
    for seed in range(40):

        async def job(it: Talk) -> None:
            nonlocal overtaken
            old = it.there
            await it.here.send(frame(1))
            await it.transport.connect_as(it.a, ADDRESS)
            arrived = asyncio.create_task(old.receive())
            await asyncio.sleep(0)
            overtaken += not arrived.done()
            await arrived

        talk(job, seed, delays=Delays(0.01, tail=0.5))
    assert 3 < overtaken < 40


def test_a_slow_link_takes_the_time_that_its_bytes_need() -> None:
    async def job(it: Talk) -> None:
        it.links.slow(A, B, 1000)
        before = it.loop.time()
        for number in range(3):
            await it.here.send(frame(number, bytes(1000)))
        for number in range(3):
            assert await it.there.receive() == frame(number, bytes(1000))
            assert number + 1 < it.loop.time() - before < number + 1.2
        await it.there.send(frame(9, bytes(1000)))
        before = it.loop.time()
        await it.here.receive()
        assert it.loop.time() - before <= 0.01
        it.links.slow(A, B, None)
        await it.here.send(frame(4, bytes(100_000)))
        await it.there.receive()
        assert it.loop.time() - before < 0.1

    talk(job)


def test_a_link_may_lag_alone() -> None:
    async def job(it: Talk) -> None:
        it.links.lag(A, B, Delays(1e6))
        before = it.loop.time()
        await it.here.send(frame(1))
        await it.there.send(frame(2))
        await it.here.receive()
        assert it.loop.time() - before <= 0.01
        await it.there.receive()
        assert it.loop.time() - before > 1

    talk(job)


# -- cuts


@pytest.mark.parametrize("by_bytes", [False, True])
def test_what_is_cut_in_one_direction_waits_and_goes_on(*, by_bytes: bool) -> None:
    async def job(it: Talk) -> None:
        it.links.cut(A, B)
        for number in range(3):
            await it.here.send(frame(number))
            await it.there.send(frame(number))
            assert await it.here.receive() == frame(number)
        waiting = asyncio.create_task(it.there.receive())
        await asyncio.sleep(5)
        assert not waiting.done()
        it.links.heal(A, B)
        assert await waiting == frame(0)
        assert [await it.there.receive(), await it.there.receive()] == [frame(1), frame(2)]

    talk(job, by_bytes=by_bytes)


def test_cuts_that_overlap_are_healed_one_by_one() -> None:
    async def job(it: Talk) -> None:
        it.links.partition([A], [B])
        it.links.cut(A, B)
        it.links.join([A], [B])
        await it.here.send(frame(1))
        waiting = asyncio.create_task(it.there.receive())
        await asyncio.sleep(5)
        assert not waiting.done()
        it.links.heal(A, B)
        it.links.heal(A, B)
        assert await waiting == frame(1)

    talk(job)


def test_both_ends_of_a_cut_connection_give_up_each_at_its_time() -> None:
    """Frames that waited are lost then, and a heal afterwards brings back nothing."""

    async def job(it: Talk) -> None:
        it.links.cut(A, B)
        before = it.loop.time()
        await it.here.send(frame(1))
        ends: list[float] = []

        async def end(connection: Connection) -> None:
            assert await heard(connection) == ([], "broken")
            ends.append(it.loop.time() - before)
            with pytest.raises(Unavailable):
                await connection.send(frame(2))

        await asyncio.gather(end(it.here), end(it.there))
        assert SILENCE_S[0] <= ends[0] < ends[1] <= SILENCE_S[1]
        it.links.heal(A, B)
        await asyncio.sleep(60)
        assert await heard(it.there) == ([], "broken")
        await asyncio.gather(it.here.close(), it.there.close())

    talk(job)


def test_without_a_bound_on_silence_a_cut_is_borne_for_ever() -> None:
    async def job(it: Talk) -> None:
        it.links.partition([A], [B])
        await it.here.send(frame(1))
        await asyncio.sleep(1e6)
        it.links.join([A], [B])
        assert await it.there.receive() == frame(1)

    talk(job, silence_s=None)


def test_a_heal_in_time_keeps_the_connection_though_it_is_cut_again() -> None:
    async def job(it: Talk) -> None:
        for number in range(10):
            it.links.partition([A], [B])
            await it.here.send(frame(number))
            await asyncio.sleep(SILENCE_S[0] - 1)
            it.links.join([A], [B])
            assert await it.there.receive() == frame(number)

    talk(job)


def test_other_links_are_left_alone() -> None:
    async def job(it: Talk) -> None:
        it.links.partition(["c"], [A, B])
        it.links.slow("c", A, 1)
        await it.here.send(frame(1))
        assert await it.there.receive() == frame(1)
        assert it.loop.time() < 0.1

    talk(job)


def test_a_close_over_a_cut_link_is_bounded() -> None:
    async def job(it: Talk) -> None:
        it.links.cut(A, B)
        before = it.loop.time()
        await it.here.send(frame(1))
        await it.here.close()
        assert 0 < it.loop.time() - before <= CLOSE_S_MAX

    talk(job)


def test_whole_again() -> None:
    async def job(it: Talk) -> None:
        it.links.partition([A], [B])
        it.links.cut(A, B)
        it.links.slow(B, A, 0.001)
        it.links.lag(A, B, Delays(1000))
        it.links.refuse(B)
        it.links.heal_all()
        await (await it.connect()).close()
        await it.here.send(frame(1))
        assert await it.there.receive() == frame(1)
        assert it.loop.time() < 1

    talk(job)


def test_a_link_that_carries_nothing_is_not_slow() -> None:
    async def job(it: Talk) -> None:
        with pytest.raises(ValueError, match="is cut, not slow"):
            it.links.slow(A, B, 0)

    talk(job)


# -- connecting


def test_connections_are_refused() -> None:
    async def job(it: Talk) -> None:
        it.links.refuse(B)
        with pytest.raises(Unavailable, match="nobody listens"):
            await it.connect()
        await it.here.send(frame(1))
        assert await it.there.receive() == frame(1)
        it.links.admit(B)
        await (await it.connect()).close()

    talk(job)


@pytest.mark.parametrize(("source", "target"), [(A, B), (B, A)])
def test_connecting_over_a_cut_hangs_and_is_bounded(source: str, target: str) -> None:
    async def job(it: Talk) -> None:
        it.links.cut(source, target)
        before = it.loop.time()
        with pytest.raises(Unavailable, match="nobody answers"):
            await it.connect()
        assert CONNECT_S_MAX <= it.loop.time() - before < CONNECT_S_MAX + 0.1
        it.loop.call_later(5, it.links.heal, source, target)
        await (await it.connect()).close()

    talk(job)


# -- breaks


def test_of_a_broken_connection_both_ends_hear_a_beginning_and_then_know() -> None:
    kept: set[int] = set()
    for seed in range(tries(60)):

        async def job(it: Talk) -> None:
            for number in range(4):
                await it.here.send(frame(number))
                await it.there.send(frame(number))
            assert it.transport.break_between(A, B) == 1
            with suppress(Unavailable):
                await it.here.send(frame(99))
            for connection in (it.there, it.here):
                found, ending = await heard(connection)
                assert ending == "broken"
                assert found == list(range(len(found)))
                kept.add(len(found))
                with pytest.raises(Unavailable):
                    await connection.send(frame(1))
            assert it.transport.break_between(A, B) == 0

        talk(job, seed, by_bytes=seed % 2 == 1)
    assert kept == {0, 1, 2, 3, 4}


def test_of_a_half_open_connection_one_end_knows_and_the_other_learns_when_it_sends() -> None:
    async def job(it: Talk) -> None:
        await it.there.send(frame(1))
        assert await it.here.receive() == frame(1)
        await it.here.send(frame(2))
        assert it.transport.half_open(A, B) == 1
        assert await heard(it.here) == ([], "broken")
        waiting = asyncio.create_task(heard(it.there))
        await asyncio.sleep(SILENCE_S[0] - 1)
        assert not waiting.done()
        before = it.loop.time()
        await it.there.send(frame(3))
        assert await waiting == ([], "broken")
        assert it.loop.time() - before < 0.1
        await asyncio.gather(it.here.close(), it.there.close())

    talk(job)


def test_who_only_listens_to_a_half_open_connection_gives_up_in_time() -> None:
    async def job(it: Talk) -> None:
        it.transport.half_open(B, A)
        assert await heard(it.there) == ([], "broken")
        before = it.loop.time()
        assert await heard(it.here) == ([], "broken")
        assert SILENCE_S[0] <= it.loop.time() - before <= SILENCE_S[1]

    talk(job)


# -- processes


def test_a_machine_that_loses_power_is_silence() -> None:
    """Nothing tells its peers, and nothing answers there until a process lives on that host again."""

    async def job(it: Talk) -> None:
        before = it.loop.time()
        it.b.lose_power()
        await it.here.send(frame(1))
        with pytest.raises(Unavailable, match="nobody answers"):
            await it.connect()
        assert it.loop.time() - before > CONNECT_S_MAX - 1
        assert await heard(it.here) == ([], "broken")
        assert SILENCE_S[0] <= it.loop.time() - before <= SILENCE_S[1]

    talk(job)


def test_a_machine_that_comes_back_knows_nothing_of_its_connections() -> None:
    async def job(it: Talk) -> None:
        it.b.lose_power()
        await it.here.send(frame(1))
        await asyncio.sleep(3)
        again = it.loop.spawn("again", _listen(it.transport), host=B)
        assert await heard(it.here) == ([], "broken")
        assert it.loop.time() < 4
        await (await it.connect()).close()
        assert again.alive

    talk(job)


async def _listen(transport: SimTransport) -> None:
    listener = await transport.listen(ADDRESS)
    async for connection in listener.accept():
        await connection.receive()


def test_a_killed_process_behind_a_cut_is_heard_of_after_it() -> None:
    async def job(it: Talk) -> None:
        it.links.cut(B, A)
        it.b.crash()
        waiting = asyncio.create_task(heard(it.here))
        await asyncio.sleep(5)
        assert not waiting.done()
        it.links.heal(B, A)
        assert (await waiting)[0] == []
        assert it.loop.time() < 6

    talk(job)


def test_frames_arrive_at_a_paused_process_and_it_answers_afterwards() -> None:
    async def main(loop: SimLoop) -> None:
        transport = SimTransport(loop)
        server = loop.spawn("server", _echo(transport))
        await asyncio.sleep(0.001)
        server.pause()
        connection = await transport.connect(ADDRESS)
        await connection.send(frame(1))
        waiting = asyncio.create_task(connection.receive())
        await asyncio.sleep(3600)
        assert not waiting.done()
        server.resume()
        assert await waiting == frame(1)
        await connection.close()

    simulate(main, seed=1)


async def _echo(transport: SimTransport) -> None:
    async for connection in (await transport.listen(ADDRESS)).accept():
        while (received := await connection.receive()) is not None:
            await connection.send(received)
        await connection.close()


# -- all of it at once


@pytest.mark.parametrize("by_bytes", [False, True])
def test_whatever_is_wrong_a_receiver_has_a_beginning_of_what_was_sent(*, by_bytes: bool) -> None:
    """And after everything is healed, everybody hears an end, and new connections work."""
    lengths: set[int] = set()
    for seed in range(tries(80)):

        async def job(it: Talk) -> None:
            async def send(connection: Connection) -> None:
                with suppress(Unavailable):
                    for number in range(20):
                        await connection.send(frame(number, bytes(50)))
                        await asyncio.sleep(it.loop.draw())

            async def disturb() -> None:
                for _ in range(6):
                    await asyncio.sleep(it.loop.draw() * 6)
                    match int(it.loop.draw() * 5):
                        case 0:
                            it.links.cut(A, B)
                        case 1:
                            it.links.partition([A], [B])
                        case 2:
                            it.links.slow(B, A, 100)
                        case 3 if it.loop.draw() < 0.3:
                            it.transport.break_between(A, B)
                        case 4 if it.loop.draw() < 0.3:
                            it.transport.half_open(B, A)
                        case _:
                            it.links.heal_all()
                it.links.heal_all()

            async def send_and_close() -> None:
                await send(it.here)
                await it.here.close()

            _, _, (found, _) = await asyncio.gather(send_and_close(), disturb(), heard(it.there))
            assert found == list(range(len(found)))
            lengths.add(len(found))
            await (await it.connect()).close()

        talk(job, seed, by_bytes=by_bytes, delays=Delays(0.01, tail=0.05))
    assert 20 in lengths
    assert len(lengths) > 5
