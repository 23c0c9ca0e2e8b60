"""Several masters on one metastore: who leads, for how long, and what becomes of those who did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest

from stelae.master.leadership import Leadership, MasterIdentity
from stelae.model.errors import (
    Corruption,
    Deposed,
    Overloaded,
    PermissionDenied,
    StelaeError,
    Unavailable,
    UnknownOutcome,
)
from stelae.ports.metastore import Entry, KeyPut, PutKey, Revision
from stelae.registry.leases import held as leases
from stelae.registry.masters.guard import GuardedStore, HeldGuard
from stelae.registry.masters.lease import MasterLease, SeenLease
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import NO_FAULTS, MetastoreFaults, SimMetastore, SimMetastoreServer
from stelae.sim.process import ProcessClock, SimProcess
from stelae.sim.rng import SimRng
from tests.cluster.planted import Planted
from tests.sim.seeds import repeat, seeds

LEASE_S = 2.0
NAMES = ("one", "two", "three")
JOURNAL = "journal"
SEEDS = 100


@dataclass
class Masters:
    """Masters as processes, each of which writes into a journal with its guard while it leads."""

    loop: SimLoop
    rng: SimRng
    server: SimMetastoreServer
    leaderships: dict[str, Leadership] = field(default_factory=dict)
    processes: dict[str, SimProcess] = field(default_factory=dict)
    heard: list[tuple[str, int | None]] = field(default_factory=list)
    guards: dict[str, HeldGuard] = field(default_factory=dict)
    together: list[list[str]] = field(default_factory=list)

    def start(self, name: str) -> None:
        rate = 0.96 + 0.08 * self.rng.fraction()
        clock = ProcessClock(self.loop, self.rng.below(10_000), rate)
        self.processes[name] = self.loop.spawn(name, self._live(name, clock), clock=clock)

    async def _live(self, name: str, clock: ProcessClock) -> None:
        store = self.server.client(name)

        def tell(held: HeldGuard | None) -> None:
            self.heard.append((name, None if held is None else held.guard.number))
            if held is not None:
                self.guards[name] = held

        identity = MasterIdentity(f"id of {name}", name)
        leadership = Leadership(store, clock, SimRng(self.rng.below(2**30)), identity, LEASE_S, tell)
        self.leaderships[name] = leadership
        await leadership.start(f"{name}:1")
        while True:
            held = leadership.held
            if held is not None:
                with suppress(Deposed, Unavailable, UnknownOutcome):
                    await self._change(GuardedStore(store, held), held.guard.number)
            await asyncio.sleep(0.02)

    async def _change(self, store: GuardedStore, number: int) -> None:
        """Of several steps: once it is begun, nobody looks at the lease again."""
        for _ in range(3):
            await store.txn([], [PutKey(JOURNAL, b"%d" % number)])
            await asyncio.sleep(LEASE_S / 2 * self.rng.fraction())

    def leading(self) -> list[str]:
        """By their own clocks, also those that are stopped."""
        return [name for name in self.leaderships if self.processes[name].alive and self.leaderships[name].held]

    async def until(self, holds: Callable[[], bool], leases: float = 2.0) -> float:
        """How many leases it took."""
        begun_ns = self.loop.now_ns
        async with asyncio.timeout(leases * LEASE_S):
            while not holds():
                await asyncio.sleep(0.01)
        return (self.loop.now_ns - begun_ns) / 1e9 / LEASE_S

    async def observe(self) -> None:
        while True:
            self.together.append(self.leading())
            await asyncio.sleep(0.01)


def play(script: Callable[[Masters], Awaitable[None]], seed: int = 1) -> Masters:
    async def main(loop: SimLoop) -> Masters:
        rng = SimRng(seed)
        masters = Masters(loop, rng, SimMetastoreServer(loop, rng, timeout_s=LEASE_S / 8))
        observer = asyncio.create_task(masters.observe())
        await script(masters)
        observer.cancel()
        for process in masters.processes.values():
            process.crash()
        return masters

    return simulate(main, seed)


# -- as stories


def test_the_first_leads_and_the_others_stand_by() -> None:
    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        masters.start("two")
        await asyncio.sleep(5 * LEASE_S)
        assert masters.leading() == ["one"]
        with pytest.raises(Deposed, match="master two stands by: one led last"):
            raise masters.leaderships["two"].refusal()

    assert play(story).heard == [("one", 1)]


def test_one_that_is_killed_is_followed_within_two_leases() -> None:
    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        masters.start("two")
        await asyncio.sleep(LEASE_S)
        masters.processes["one"].crash()
        took = await masters.until(lambda: masters.leading() == ["two"])
        assert took > 0.7, "it was not waited for"

    assert play(story).heard == [("one", 1), ("two", 2)]


def test_one_that_closes_gives_its_lease_back() -> None:
    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        masters.start("two")
        await asyncio.sleep(LEASE_S)
        await masters.leaderships["one"].close()
        await masters.until(lambda: masters.leading() == ["two"], 0.3)

    play(story)


def test_one_that_gives_up_is_followed_soon_and_says_why() -> None:
    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        masters.start("two")
        await asyncio.sleep(LEASE_S)
        masters.leaderships["one"].give_up(masters.guards["one"], "it cannot read a record")
        await masters.until(lambda: masters.leading() == ["two"], 0.6)
        await asyncio.sleep(5 * LEASE_S)
        with pytest.raises(Deposed, match="two led last; this one gave up leading: it cannot read a record"):
            raise masters.leaderships["one"].refusal()

    assert play(story).heard == [("one", 1), ("one", None), ("two", 2)]


def test_one_that_gives_up_leads_again_if_nobody_else_does() -> None:
    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        masters.leaderships["one"].give_up(masters.guards["one"], "it cannot read a record")
        await masters.until(lambda: masters.leading() == [], 0.5)
        assert await masters.until(lambda: masters.leading() == ["one"], 3.0) > 1.5
        await asyncio.sleep(3 * LEASE_S)
        assert masters.leading() == ["one"], "what it gave up was another term"

    assert play(story).heard == [("one", 1), ("one", None), ("one", 2)]


def test_one_that_begins_again_leads_at_once() -> None:
    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        masters.processes["one"].crash()
        masters.start("one")
        await masters.until(lambda: masters.guards["one"].guard.number == 2, 0.2)

    play(story)


def test_one_that_slept_longer_than_its_lease_changes_nothing() -> None:
    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        masters.start("two")
        await asyncio.sleep(LEASE_S)
        slept = masters.guards["one"]
        masters.processes["one"].pause()
        await masters.until(lambda: masters.leading() == ["two"])
        masters.processes["one"].resume()
        assert masters.leading() == ["two"]
        with pytest.raises(Deposed, match="master one leads no more: two does"):
            await GuardedStore(masters.server.client("one"), slept).txn([], [PutKey("what", b"ever")])
        assert await masters.server.client("one").get("what") is None
        await masters.until(lambda: ("one", None) in masters.heard, 0.5)
        with pytest.raises(Deposed):
            masters.leaderships["one"].check(slept)

    play(story)


def test_without_a_metastore_nobody_leads_and_afterwards_who_did_goes_on() -> None:
    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        masters.start("two")
        await asyncio.sleep(LEASE_S)
        masters.server.go_away()
        await masters.until(lambda: masters.leading() == [])
        with pytest.raises(Unavailable, match="could not renew its lease"):
            masters.leaderships["one"].check(masters.guards["one"])
        await asyncio.sleep(4 * LEASE_S)
        masters.server.come_back()
        await masters.until(lambda: masters.leading() == ["one"], 1.0)

    assert play(story).heard == [("one", 1)]


def test_renewals_whose_answers_are_lost_are_known_again() -> None:
    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        masters.server.faults = MetastoreFaults(answer_lost=0.5)
        for _ in range(200):
            await asyncio.sleep(LEASE_S / 10)
        masters.server.faults = NO_FAULTS
        await masters.until(lambda: masters.leading() == ["one"], 1.0)

    assert play(story).heard == [("one", 1)]


@pytest.mark.parametrize(
    "error", [Overloaded("too much"), PermissionDenied("no"), Corruption("odd", "there")], ids=repr
)
def test_whatever_the_metastore_says_it_is_asked_again(error: StelaeError) -> None:
    async def fail(*_: object) -> None:
        raise error

    async def story(masters: Masters) -> None:
        masters.start("one")
        await masters.until(lambda: masters.leading() == ["one"], 0.2)
        with mock.patch.object(SimMetastore, "txn", fail):
            await asyncio.sleep(2 * LEASE_S)
            with pytest.raises(Unavailable, match=f"could not renew its lease: {error}"):
                masters.leaderships["one"].check(masters.guards["one"])
        await masters.until(lambda: masters.leading() == ["one"], 1.0)

    assert play(story).heard == [("one", 1)]


# -- what is seen of a lease


def entry(revision: int, *, id_: str = "other", is_over: bool = False) -> Entry:
    lease = MasterLease("m", id_, "life", revision, 1_000, is_over)
    return Entry("master/lease", lease.value, Revision(1), Revision(revision), revision)


@pytest.mark.parametrize(
    ("seen", "at_s", "free"),
    [
        ([(0.0, None)], 0.0, True),
        ([(0.0, entry(2))], 1.0, False),
        ([(0.0, entry(2)), (0.4, entry(2)), (0.8, entry(2)), (1.2, entry(2))], 1.2, True),
        ([(0.0, entry(2)), (0.4, entry(2)), (0.8, entry(3)), (1.2, entry(3))], 1.2, False),
        ([(0.0, entry(2)), (1.2, entry(2))], 1.2, False),
        ([(0.0, entry(2, is_over=True))], 0.0, True),
        ([(0.0, entry(2, id_="mine"))], 0.0, True),
    ],
    ids=["none", "young", "old", "renewed", "not looked at", "given back", "of a former life"],
)
def test_a_lease_is_free(seen: list[tuple[float, Entry | None]], at_s: float, free: bool) -> None:
    lease = SeenLease()
    for when_s, read in seen:
        lease.note(read, when_s)
    assert lease.is_free("mine", at_s) is free


# -- whatever happens


async def disturbed(masters: Masters) -> None:
    """Masters are killed, stopped and cut off; then all is healed."""
    rng, server = masters.rng, masters.server
    written: list[int] = []

    async def follow() -> None:
        async for batch in server.client("observer").watch(JOURNAL, Revision(2)):
            written.extend(int(event.entry.value) for event in batch.events if isinstance(event, KeyPut))

    following = asyncio.create_task(follow())
    for name in NAMES:
        masters.start(name)
    server.faults = MetastoreFaults(
        refused=0.2 * rng.fraction(),
        request_lost=0.2 * rng.fraction(),
        answer_lost=0.2 * rng.fraction(),
        late=0.2 * rng.fraction(),
    )
    for _ in range(12):
        await asyncio.sleep(1.5 * LEASE_S * rng.fraction())
        aims = masters.leading() if rng.below(3) else []
        name = aims[0] if aims else NAMES[rng.below(len(NAMES))]
        process = masters.processes[name]
        match rng.below(9):
            case 8:
                if name in masters.guards:
                    masters.leaderships[name].give_up(masters.guards[name], "it cannot")
            case 0:
                process.crash()
                masters.start(name)
            case 1 | 2 | 3:
                process.pause()
            case 4 | 5:
                server.partition(name)
            case 6:
                server.go_away()
            case _:
                server.come_back()
        if not rng.below(4):
            for each in NAMES:
                masters.processes[each].resume()
                server.heal(each)
    server.come_back()
    server.faults = NO_FAULTS
    for each in NAMES:
        masters.processes[each].resume()
        server.heal(each)
    await masters.until(lambda: len(masters.leading()) == 1, 4.0)
    await asyncio.sleep(LEASE_S)
    following.cancel()
    assert written == sorted(written), "somebody wrote who was followed"
    assert all(len(each) <= 1 for each in masters.together), "two lead at once"
    begun = [number for _, number in masters.heard if number is not None]
    assert len(begun) == len(set(begun)), "a guard was given twice"


def test_one_leads_at_a_time_whatever_happens() -> None:
    for seed in seeds(2 * SEEDS):
        try:
            play(disturbed, seed)
        except AssertionError as error:
            raise AssertionError(f"{error}; to repeat: {repeat(seed)}") from error


def _uncompared() -> AbstractContextManager[Any]:
    async def txn(self: GuardedStore, compares: Any, changes: Any) -> Any:
        return await self._store.txn(compares, changes)

    return mock.patch.object(GuardedStore, "txn", txn)


def _hasty() -> AbstractContextManager[Any]:
    return mock.patch.object(leases, "_OTHERS_SHARE", 0.6)


def _trusting() -> AbstractContextManager[Any]:
    return mock.patch.object(leases, "_HOLDER_SHARE", 2.0)


_TWO = "two lead at once"
PLANTED_IN_LEADERSHIP = [
    Planted("no-guard", "a master writes without its guard", 18, 60, _uncompared, "somebody wrote who was followed"),
    Planted("hasty-followers", "others do not wait until a lease is over", 7, 30, _hasty, _TWO),
    Planted("relied-on-too-long", "a master relies on its lease for twice as long", 3, 30, _trusting, _TWO),
]


def first_found(planted: Planted, tried: range) -> int | None:
    with planted.patch():
        for seed in tried:
            try:
                play(disturbed, seed)
            except AssertionError as error:
                assert planted.complaint in str(error), (planted.name, seed, error)
                return seed
    return None


@pytest.mark.parametrize("planted", PLANTED_IN_LEADERSHIP, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    """From the seed on that found it first: code that was changed since draws other numbers."""
    found = first_found(planted, range(planted.seed, planted.seeds_max))
    assert found is not None, f"{planted.words}: not found by seeds {planted.seed} to {planted.seeds_max}"
