"""Processes of a whole world: what each gets, what outlives it, how it ends and is started again."""

from __future__ import annotations

import asyncio

import pytest

from stelae.model.errors import Closed, Unavailable
from stelae.ports.transport import Address
from stelae.sim.effects import SimCrash
from stelae.sim.loop import SimUnhandled
from stelae.sim.world import ProcessPorts, SimWorld, WorldSettings, run_world

SOON = WorldSettings(restart_s=(1.0, 1.0))


async def wait(_: ProcessPorts) -> None:
    await asyncio.Event().wait()


def test_a_disk_outlives_its_process_and_loses_what_the_end_says() -> None:
    kept: dict[str, set[bytes]] = {"kill": set(), "power": set()}
    for seed in range(20):
        for how, found in kept.items():

            async def write(ports: ProcessPorts) -> None:
                file = ports.disk.create("log")
                file.append(b"synced,")
                file.sync()
                file.append(b"unsynced")
                await asyncio.Event().wait()

            async def main(world: SimWorld, how: str = how, found: set[bytes] = found) -> None:
                world.add("one", write, restarts=False)
                world.add("other", wait)
                for name in world.names:
                    world.start(name)
                await asyncio.sleep(1)
                world.kill("one") if how == "kill" else world.lose_power("one")
                assert not world.is_alive("one")
                assert world.is_alive("other")
                assert world.disk("other").list() == []
                found.add(world.disk("one").read("log").rstrip(b"\0"))

            run_world(main, seed, repeat="")
    assert kept["kill"] == {b"synced,unsynced"}
    assert all(data.startswith(b"synced,") for data in kept["power"])
    assert len(kept["power"]) > 1


def test_a_process_that_is_over_is_started_again_with_new_ports() -> None:
    async def main(world: SimWorld) -> None:
        seen: list[tuple[int, float]] = []

        async def live(ports: ProcessPorts) -> None:
            seen.append((ports.rng.below(2**40), ports.loop.now_ns / 1e9))
            match len(seen):
                case 1:
                    return
                case 2:
                    raise Unavailable("no luck")
                case 3:
                    raise SimCrash("here")
                case _:
                    await asyncio.Event().wait()

        world.add("one", live)
        world.start("one")
        await asyncio.sleep(10)
        assert world.is_alive("one")
        assert world.lives("one") == len(seen) == 4
        assert [round(when) for _, when in seen] == [0, 1, 2, 3]
        assert len({number for number, _ in seen}) == 4
        told = [line.partition("s  ")[2] for line in world.story.lines]
        assert told[0].startswith("one ended, at step ")
        assert told[2].startswith("one ended with Unavailable: no luck, at step ")
        assert told[4].startswith("one was killed, at step ")
        assert told[5] == "one is started again"

    run_world(main, 1, repeat="", settings=SOON)


def test_what_a_process_left_running_ends_with_it() -> None:
    async def main(world: SimWorld) -> None:
        ran: list[str] = []

        async def live(ports: ProcessPorts) -> None:
            ports.loop.call_later(5, ran.append, "timer")
            ports.jobs.submit(ran.append, "job")
            await ports.transport.listen(Address("one:1"))

        world.add("one", live, restarts=False)
        world.start("one")
        await asyncio.sleep(10)
        assert ran == []
        with pytest.raises(Unavailable, match="nobody listens"):
            await world.transport.connect(Address("one:1"))

    run_world(main, 1, repeat="")


def test_an_error_that_is_not_the_stores_fails_the_run_at_once_and_tells_the_story() -> None:
    async def fail(_: ProcessPorts) -> None:
        await asyncio.sleep(3)
        raise KeyError("x")

    async def main(world: SimWorld) -> None:
        world.add("one", fail)
        world.start("one")
        await asyncio.sleep(1000)

    with pytest.raises(SimUnhandled, match=r"at 3\.0 s") as caught:
        run_world(main, 7, repeat="run it again")
    assert isinstance(caught.value.__cause__, KeyError)
    (note,) = caught.value.__notes__
    assert note.splitlines()[0] == "To repeat: run it again"
    assert "one failed with KeyError: 'x'" in note
    assert "seed 7 failed: SimUnhandled" in note


def test_what_is_kept_down_stays_down() -> None:
    async def main(world: SimWorld) -> None:
        world.add("one", wait)
        world.start("one")
        world.keep_down("one")
        await asyncio.sleep(100)
        assert not world.is_alive("one")
        world.let_up("one")
        assert world.is_alive("one")
        first = world.process("one")
        assert world.start("one") is first

    run_world(main, 1, repeat="")


def test_processes_of_one_host_share_its_clock_and_its_power() -> None:
    async def main(world: SimWorld) -> None:
        rates: dict[str, float] = {}

        async def live(ports: ProcessPorts) -> None:
            rates[ports.name] = ports.clock.rate
            await asyncio.Event().wait()

        for name, host in (("a", "h1"), ("b", "h1"), ("c", "h2")):
            world.add(name, live, host=host, restarts=False)
            world.start(name)
        await asyncio.sleep(1)
        assert rates["a"] == rates["b"] != rates["c"]
        assert all(0.9 <= rate <= 1.1 for rate in rates.values())
        world.lose_power("h1")
        assert [world.is_alive(name) for name in "abc"] == [False, False, True]
        assert world.hosts == ["h1", "h2"]

    run_world(main, 1, repeat="", settings=WorldSettings(clock_rate_spread=0.1))


def test_a_crash_closes_the_handles_of_its_process_alone() -> None:
    async def main(world: SimWorld) -> None:
        ports: dict[str, ProcessPorts] = {}

        async def live(own: ProcessPorts) -> None:
            ports[own.name] = own
            await asyncio.Event().wait()

        for name in ("a", "b"):
            world.add(name, live, restarts=False)
            world.start(name)
        await asyncio.sleep(1)
        writers = {name: own.blobs.create(name) for name, own in ports.items()}
        world.kill("a")
        with pytest.raises(Closed):
            writers["a"].commit()
        writers["b"].commit()
        assert list(world.blobs) == ["b"]

    run_world(main, 1, repeat="")


def test_a_name_is_given_once() -> None:
    async def main(world: SimWorld) -> None:
        world.add("a", wait)
        with pytest.raises(ValueError, match="a process a already"):
            world.add("a", wait)

    run_world(main, 1, repeat="")


def test_the_trace_covers_disks_files_and_the_metastore() -> None:
    def trace(data: bytes, *, keeps_file: bool = True) -> str:
        async def live(ports: ProcessPorts) -> None:
            file = ports.disk.create("log")
            file.append(data)
            if keeps_file:
                ports.blobs.create("file").commit()
            await asyncio.Event().wait()

        async def main(world: SimWorld) -> None:
            world.add("one", live)
            world.start("one")
            await asyncio.sleep(1)

        return run_world(main, 1, repeat="").trace

    assert trace(b"1") == trace(b"1")
    assert len({trace(b"1"), trace(b"2"), trace(b"1", keeps_file=False)}) == 3
