"""The nemesis: every kind of fault does what it says, is taken back, and is told; swarms differ; a service that is
right survives all of it, and one with a planted bug does not."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from stelae.sim.faults import FAULTS
from stelae.sim.nemesis import LOSSES, SAFE, Nemesis, Swarm, draw_settings, draw_swarm
from stelae.sim.rng import SimRng
from stelae.sim.world import ProcessPorts, SimWorld, WorldRun, run_world
from tests.sim.ledger import CLIENTS, NUMBERS, Ledger
from tests.sim.seeds import repeat, seeds

WORDS = ("killed", "power", "stopped", "cut off", "clock")
FOUND_WITHIN = 150
"""Seeds in which an answer before the sync is found: 22 were needed when this was written, and 4 of 60 find it."""


def run_ledger(seed: int, *, syncs_late: bool = False, kinds: tuple[str, ...] = SAFE) -> WorldRun[set[int]]:
    ledger = Ledger(syncs_late)
    settings = draw_settings(SimRng(seed))
    return run_world(lambda world: ledger.disturbed(world, kinds), seed, repeat=repeat(seed), settings=settings)


def test_nothing_acknowledged_is_lost_whatever_is_disturbed() -> None:
    kinds: Counter[str] = Counter()
    for seed in seeds(160):
        run = run_ledger(seed)
        assert len(run.result) == CLIENTS * NUMBERS
        kinds.update(word for line in run.story for word in WORDS if word in line)
    if len(seeds(160)) > 1:
        assert min(kinds.values()) > 3, kinds


def test_a_planted_bug_is_found_with_its_story_and_the_command_that_repeats_it() -> None:
    for seed in range(FOUND_WITHIN):
        try:
            run_ledger(seed, syncs_late=True, kinds=("power", "kill", "disk_slow"))
        except AssertionError as error:
            (note,) = error.__notes__
            assert str(error).startswith("acknowledged and lost")
            assert note.startswith(
                f"To repeat: STELAE_SEED={seed} make test ARGS='tests/sim/test_nemesis.py::test_a_pl"
            )
            assert "server lost power" in note or "server was killed" in note
            assert f"seed {seed} failed: AssertionError" in note.splitlines()[-1]
            return
    raise AssertionError(f"not found in {FOUND_WITHIN} seeds")


# -- each kind by itself


async def idle(ports: ProcessPorts) -> None:
    """Have something of everything: a listener, connections to all others, a synced group."""
    file = ports.disk.create(f"log-{ports.rng.below(2**30)}")
    file.append(b"bytes")
    file.sync()
    await asyncio.Event().wait()


async def quiet(world: SimWorld) -> Nemesis:
    for name in ("a", "b", "c"):
        world.add(name, idle, host=f"host-{name}")
        world.start(name)
    await asyncio.sleep(1)
    return Nemesis(world, Swarm((), 0, 0.0, 2.0), aims_at=["a"])


def looks(world: SimWorld) -> dict[str, object]:
    """What a fault can change, seen from outside."""
    links, a, disk, store = world.transport.links, world.process("a"), world.disk("a"), world.blobs_of("a")
    assert a is not None
    pairs = [(f"host-{one}", f"host-{other}") for one in "abc" for other in "abc" if one != other]
    return {
        "alive": world.is_alive("a"),
        "paused": a.is_paused,
        "cut": [pair for pair in pairs if links.link(*pair).is_cut],
        "slow": [pair for pair in pairs if links.link(*pair).bytes_per_s],
        "lag": [pair for pair in pairs if links.link(*pair).delays],
        "refuses": links.refuses("host-a"),
        "disk": (disk.size_bytes_max, disk.pace.hangs, disk.pace.slow_s_max),
        "files": (store.unavailable, store.pace.slow_s_max),
        "rate": world.clock("host-a").rate,
    }


LASTING = {
    "kill": "alive",
    "pause": "paused",
    "cut": "cut",
    "partition": "cut",
    "slow_link": "slow",
    "lag": "lag",
    "refuse": "refuses",
    "disk_full": "disk",
    "disk_hangs": "disk",
    "disk_slow": "disk",
    "blobs_fail": "files",
    "blobs_slow": "files",
    "clock_rate": "rate",
}


@pytest.mark.parametrize("kind", LASTING)
def test_a_fault_that_lasts_changes_one_thing_and_is_taken_back(kind: str) -> None:
    async def main(world: SimWorld) -> None:
        nemesis = await quiet(world)
        before = looks(world)
        hit = nemesis.strike(kind)
        assert hit is not None
        assert "a" in hit.touches
        after = looks(world)
        assert [what for what in before if before[what] != after[what]] == [LASTING[kind]]
        await asyncio.sleep(10)
        assert looks(world) == before
        told = [line.partition("s  ")[2] for line in world.story.lines]
        assert hit.words in told
        assert f"over: {hit.words}" in told

    for seed in range(5):
        run_world(main, seed, repeat="")


@pytest.mark.parametrize("kind", FAULTS)
def test_each_kind_happens_to_whom_it_may_touch_and_ends(kind: str) -> None:
    """At the end all is as it was: everybody runs, and nothing is cut."""

    async def main(world: SimWorld) -> int:
        nemesis = await quiet(world)
        for _ in range(5):
            hit = nemesis.strike(kind)
            assert hit is None or not hit.touches or "a" in hit.touches
            await asyncio.sleep(1)
        nemesis.end()
        await asyncio.sleep(10)
        assert {**looks(world), "rate": 1} == {
            **looks(world),
            "alive": True,
            "paused": False,
            "cut": [],
            "slow": [],
            "lag": [],
            "refuses": False,
            "rate": 1,
            "disk": (None, False, 0.0),
            "files": (0.0, 0.0),
        }
        return nemesis.done

    done = [run_world(main, seed, repeat="").result for seed in range(3)]
    needs_connections = kind in ("break", "half_open")
    assert (sum(done) == 0) == needs_connections


def test_clogs_come_one_after_another_and_go_in_another_order() -> None:
    orders: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    for seed in range(20):

        async def main(world: SimWorld) -> None:
            await quiet(world)
            nemesis = Nemesis(world, Swarm((), 0, 0.0, 100.0))
            links = world.transport.links
            came: list[str] = []
            went: list[str] = []
            hit = nemesis.strike("swizzle")
            assert hit is not None
            hosts = {name: f"host-{name}" for name in hit.touches}
            for _ in range(1000):
                await asyncio.sleep(0.1)
                for name, host in hosts.items():
                    others = [other for other in world.hosts if other != host]
                    is_clogged = all(links.link(host, other).is_cut for other in others)
                    if is_clogged and name not in came:
                        came.append(name)
                    if not is_clogged and name in came and name not in went:
                        went.append(name)
            assert not any(links.link(one, other).is_cut for one in world.hosts for other in world.hosts)
            orders.add((tuple(came), tuple(went)))

        run_world(main, seed, repeat="")
    assert any(len(came) > 1 and came != went for came, went in orders)


def test_crashes_that_are_still_to_come_do_not_come_after_the_end() -> None:
    async def main(world: SimWorld) -> None:
        async def work(ports: ProcessPorts) -> None:
            file = ports.disk.create(f"log-{ports.rng.below(2**30)}")
            while True:
                file.append(b"bytes")
                await asyncio.sleep(0.1)

        world.add("a", work)
        world.start("a")
        nemesis = Nemesis(world, Swarm((), 0, 0.0, 1.0))
        for kind in ("crash_at_step", "crash_in_effect"):
            assert nemesis.strike(kind) is not None
        nemesis.end()
        await asyncio.sleep(100)
        assert world.lives("a") == 1

    run_world(main, 1, repeat="")


# -- swarms


def test_swarms_switch_kinds_on_and_off_and_bound_what_they_do() -> None:
    swarms = [draw_swarm(SimRng(seed), SAFE, faults_max=10) for seed in range(300)]
    assert swarms == [draw_swarm(SimRng(seed), SAFE, faults_max=10) for seed in range(300)]
    used: Counter[str] = Counter(kind for swarm in swarms for kind in swarm.kinds)
    assert set(used) == set(SAFE)
    assert all(30 < count < 270 for count in used.values())
    assert {len(swarm.kinds) for swarm in swarms} >= {1, 2, len(SAFE) - 1}
    assert {swarm.count for swarm in swarms} == set(range(1, 11))
    assert LOSSES.isdisjoint(SAFE)
    assert set(FAULTS) >= LOSSES


def test_a_kind_that_is_not_there_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="no kind of fault is called earthquake; there are kill"):
        draw_swarm(SimRng(1), ["earthquake"])


def test_settings_differ_by_seed() -> None:
    drawn = [draw_settings(SimRng(seed)) for seed in range(50)]
    assert drawn == [draw_settings(SimRng(seed)) for seed in range(50)]
    assert {each.by_bytes for each in drawn} == {True, False}
    assert {each.delays.tail > 0 for each in drawn} == {True, False}
    assert {each.clock_rate_spread > 0 for each in drawn} == {True, False}


def test_at_the_end_a_core_is_whole_and_the_rest_is_broken_for_good() -> None:
    rests: set[tuple[bool, bool]] = set()
    for seed in range(30):

        async def main(world: SimWorld) -> None:
            await quiet(world)
            nemesis = Nemesis(world, Swarm(SAFE, 20, 0.1, 5.0))
            await asyncio.wait([asyncio.create_task(nemesis.run())], timeout=1)
            nemesis.end(core=["a", "b"])
            done = nemesis.done
            await asyncio.sleep(20)
            assert nemesis.done == done
            links = world.transport.links
            assert not links.link("host-a", "host-b").is_cut
            for name in ("a", "b"):
                process = world.process(name)
                assert process is not None
                assert process.alive
                assert not process.is_paused
            c = world.process("c")
            assert c is not None
            rests.add((c.alive, c.is_paused))

        run_world(main, seed, repeat="")
    assert rests == {(True, False), (False, False), (True, True)}
