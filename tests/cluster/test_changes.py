"""Changes of many tablets at one txn: nobody sees half of one, nobody waits for whoever began it, and whatever crashes,
somebody else brings it to its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any
from unittest import mock

import pytest

from stelae.model.errors import Conflict, Corruption, Retryable, UnknownOutcome
from stelae.model.ids import Txn
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.registry.changes.asking import AdoptChange, ChangeReport, ChangeRequest, PrepareChange
from stelae.registry.changes.sessions import ChangeState, read_session, read_sessions
from stelae.service.deadlines import Deadline
from stelae.service.tickets import LoadedFile
from stelae.sim.loop import SimDeadlock, SimOverrun, SimUnhandled
from stelae.sim.process import SimProcess
from stelae.sim.rng import SimRng
from stelae.sim.world import SimWorld, run_world
from stelae.storage.tablet.doubts import Doubts
from stelae.tserver.server import TabletServer
from tests.cluster.changing import COORDINATORS, CUT, KEYS, SERVERS, TABLE, Changing, swapped
from tests.cluster.disturbed_changes import run_changes
from tests.cluster.planted import Planted
from tests.cluster.planted_changes import PLANTED_CHANGES
from tests.cluster.processes import simulated_threads
from tests.cluster.simulated import silent_remains
from tests.effort import long_run, tries
from tests.sim.seeds import repeat, seeds
from tests.tserver.boxes import row

FIRST, SECOND = COORDINATORS
OWN = [swapped(1, 0)[0], swapped(1, 1)[0]]
READER_S_MAX = 0.3
READ_FOR_NS = 10**9
"""Twice as long as the floor is ahead that is announced, from which on readers are in doubt."""
Script = Callable[[Changing], Coroutine[Any, Any, None]]


def play(script: Script, seed: int = 1) -> None:
    """In peace, but for what the script does."""

    async def main(world: SimWorld) -> None:
        changing = Changing(world)
        await changing.begin()
        await script(changing)

    with silent_remains(), simulated_threads(SimRng(seed)):
        run_world(main, seed, repeat=repeat(seed))


class Stopped:
    """A load whose coordinator is stopped, as by SIGSTOP, where it is about to ask for something, or has asked."""

    def __init__(self, changing: Changing, kind: type, *, after: bool = False) -> None:
        self._changing = changing
        self._right = changing.ask_change
        self._kind = kind
        self._after = after
        self._is_there = asyncio.Event()
        self._asked = 0

    async def load(self, number: int, *, replaces: bool = False) -> asyncio.Task[Txn]:
        return await self._begin(self._changing.load(number, FIRST, replaces=replaces))

    async def truncate(self) -> asyncio.Task[Txn]:
        return await self._begin(self._changing.truncate(FIRST))

    async def _begin(self, change: Coroutine[Any, Any, Txn]) -> asyncio.Task[Txn]:
        self._changing.ask_change = self._ask  # type: ignore[method-assign]
        task = asyncio.ensure_future(change)
        await self._is_there.wait()
        self._process.pause()
        self._changing.ask_change = self._right  # type: ignore[method-assign]
        return task

    def go_on(self) -> None:
        self._process.resume()

    @property
    def _process(self) -> SimProcess:
        process = self._changing.world.process(FIRST)
        assert process is not None
        return process

    async def _ask(
        self,
        server: str,
        request: ChangeRequest,
        files: Sequence[LoadedFile] = (),
        deadline: Deadline | None = None,
    ) -> ChangeReport:
        if isinstance(request, self._kind):
            self._asked += 1
            if not self._after and self._asked == len(SERVERS):
                self._is_there.set()
                await asyncio.sleep(0.001)
            report = await self._right(server, request, files)
            if self._after:
                self._asked -= 1
                if self._asked == 0:
                    self._is_there.set()
                    await asyncio.sleep(0.001)
            return report
        return await self._right(server, request, files)


def test_a_load_an_overwrite_and_a_truncation_over_two_servers() -> None:
    async def script(changing: Changing) -> None:
        before = await changing.now()
        first = await changing.load(1, FIRST)
        assert await changing.read(await changing.now(), "scan") == (1, 1, 1, 1)
        assert await changing.load(1, FIRST) == first, "a job is loaded once"
        second = await changing.load(2, FIRST, replaces=True)
        third = await changing.truncate(FIRST)
        for how in ("scan", "many", "newest"):
            assert await changing.read(before, how) == (None,) * 4
            assert await changing.read(first, how) == (1,) * 4
            assert await changing.read(Txn(second - 1), how) == (1,) * 4
            assert await changing.read(second, how) == (2,) * 4
            assert await changing.read(third, how) == (None,) * 4
        assert not await read_sessions(changing.world.metastore.client("judge")), "all is forgotten"

    play(script)


@pytest.mark.parametrize("how", ["scan", "many", "newest"])
def test_a_reader_in_doubt_does_not_wait_for_a_coordinator_that_is_stopped(how: str) -> None:
    """It finishes while the coordinator does not go on: what was decided is adopted by whoever asks."""

    async def script(changing: Changing) -> None:
        stopped = Stopped(changing, AdoptChange)
        task = await stopped.load(1)
        await asyncio.sleep(2)  # the floor that was announced has passed
        at = await changing.now()
        assert await changing.read(at, how) == (1,) * 4
        assert not task.done()
        stopped.go_on()
        assert await task <= at

    play(script)


@pytest.mark.parametrize("then", ["it stays so", "it is killed, and followed", "the driver is gone, too"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [PrepareChange, AdoptChange])
@pytest.mark.parametrize("what", ["overwrite", "truncate"])
def test_no_reader_waits_longer_than_is_promised(what: str, kind: type, after: bool, then: str) -> None:
    """Whoever of those that change the table is stopped or dead, at whichever step: `READER_S_MAX` of the world's time
    for what takes each server an answer or two, of which each is up to a fiftieth of a second on its way."""

    async def script(changing: Changing) -> None:
        await changing.load(1, FIRST)
        stopped = Stopped(changing, kind, after=after)
        task = await (stopped.truncate() if what == "truncate" else stopped.load(2, replaces=True))
        if then == "it is killed, and followed":
            changing.world.kill(FIRST)
            changing.world.start(SECOND)
        elif then == "the driver is gone, too":
            task.cancel()
        seen = set()
        until_ns = changing.world.loop.now_ns + READ_FOR_NS
        while changing.world.loop.now_ns < until_ns:
            for how in ("scan", "many", "newest"):
                begun_ns = changing.world.loop.now_ns
                found = await changing.read(await changing.now(), how)
                assert changing.world.loop.now_ns - begun_ns < READER_S_MAX * 1e9
                assert len(set(found)) == 1
                seen.add(found[0])
        assert seen <= {1, None if what == "truncate" else 2}
        task.cancel()

    play(script)


@pytest.mark.parametrize("how", ["scan", "many", "newest"])
def test_what_is_read_before_the_decision_stays_as_it_was_read(how: str) -> None:
    """And the change happens above all of it."""

    async def script(changing: Changing) -> None:
        stopped = Stopped(changing, PrepareChange, after=True)
        task = await stopped.load(1)
        await asyncio.sleep(2)
        seen = {at: await changing.read(at, how) for at in [await changing.now() for _ in range(3)]}
        assert set(seen.values()) == {(None,) * 4}
        assert not task.done()
        stopped.go_on()
        txn = await task
        assert txn > max(seen)
        assert {at: await changing.read(at, how) for at in seen} == seen
        assert await changing.read(txn, how) == (1,) * 4

    play(script)


async def _swap_after_a_decision(changing: Changing) -> None:
    stopped = Stopped(changing, AdoptChange)
    task = await stopped.load(1)
    await asyncio.sleep(2)
    for key in OWN:
        await changing.swap(key, 7)
    assert not changing.swapped, "the rows are there"
    stopped.go_on()
    await task


def test_a_write_on_a_condition_conflicts_with_a_load_that_was_decided() -> None:
    play(_swap_after_a_decision)
    with mock.patch.object(Doubts, "check"), pytest.raises(AssertionError, match="the rows are there"):
        play(_swap_after_a_decision)


def test_a_write_on_a_condition_comes_before_a_load_that_was_not() -> None:
    async def script(changing: Changing) -> None:
        stopped = Stopped(changing, PrepareChange, after=True)
        task = await stopped.load(1)
        await asyncio.sleep(2)
        for key in OWN:
            await changing.swap(key, 8)
        assert [key for key, _ in changing.swapped] == OWN
        stopped.go_on()
        txn = await task
        assert all(at < txn for _, at in changing.swapped)
        await changing.check_end()

    play(script)


@pytest.mark.parametrize("kind", [PrepareChange, AdoptChange])
@pytest.mark.parametrize("how", ["killed", "lost power"])
def test_a_server_that_is_started_again_knows_what_was_prepared(kind: type, how: str) -> None:
    async def script(changing: Changing) -> None:
        stopped = Stopped(changing, kind)
        task = await stopped.load(1)
        for name in SERVERS:
            if how == "killed":
                changing.world.kill(name)
            else:
                changing.world.lose_power(name)
        stopped.go_on()
        try:
            txn = await task
        except (Retryable, UnknownOutcome):
            txn = await changing.surely(changing.load, 1, FIRST)
        assert await changing.surely(changing.read, txn, "scan") == (1,) * 4
        assert await changing.surely(changing.read, Txn(txn - 1), "scan") == (None,) * 4
        await changing.check_end()

    play(script)


def test_a_coordinator_that_dies_after_the_decision_is_followed_by_one_that_goes_on() -> None:
    async def script(changing: Changing) -> None:
        task = await Stopped(changing, AdoptChange).load(1)
        changing.world.kill(FIRST)
        store = changing.world.metastore.client("judge")
        (held,) = await read_sessions(store)
        assert held.session.state is ChangeState.COMMITTED
        changing.world.start(SECOND)
        await changing.check_end()
        assert await changing.surely(changing.load, 1, SECOND) == held.session.txn
        task.cancel()

    play(script)


def test_what_a_dead_driver_left_is_given_up_when_it_expires_and_cannot_be_committed() -> None:
    async def script(changing: Changing) -> None:
        ticket, files = await changing.begin_load(1, FIRST, ttl_s=3.0)
        await asyncio.sleep(10)
        assert not await read_sessions(changing.world.metastore.client("judge"))
        with pytest.raises(Conflict, match="was given up"):
            await changing.commit_load(ticket, files, FIRST)
        assert await changing.read(await changing.now(), "scan") == (None,) * 4

    play(script)


def test_another_attempt_at_a_job_ends_the_one_before() -> None:
    async def script(changing: Changing) -> None:
        old, files = await changing.begin_load(1, FIRST)
        new, others = await changing.begin_load(1, FIRST)
        store = changing.world.metastore.client("judge")
        with pytest.raises(Conflict, match="was given up"):
            await changing.commit_load(old, files, FIRST)
        txn = await changing.commit_load(new, others, FIRST)
        assert await read_session(store, TABLE, new.ticket) is None
        again = await changing.commit_load(new, others, FIRST)
        assert again == txn, "it is forgotten, and its job knows"

    play(script)


def test_a_request_that_comes_late_prepares_nothing() -> None:
    async def script(changing: Changing) -> None:
        right, late = changing.ask_change, []

        async def ask(server: str, request: Any, files: Any = (), deadline: Any = None) -> Any:
            if isinstance(request, PrepareChange):
                late.append((server, request, files))
            return await right(server, request, files)

        changing.ask_change = ask  # type: ignore[method-assign]
        txn = await changing.load(1, FIRST)
        for server, request, files in late:
            with pytest.raises(Retryable, match="is not prepared for attempt 1 any more"):
                await right(server, request, files)
        await changing.check_end()
        assert await changing.read(txn, "newest") == (1,) * 4

    play(script)


def test_both_halves_of_a_tablet_that_is_split_have_what_was_prepared() -> None:
    async def script(changing: Changing) -> None:
        stopped = Stopped(changing, PrepareChange, after=True)
        task = await stopped.load(1, replaces=True)
        for at in (10, 75):
            await changing.split(at)
        stopped.go_on()
        txn = await task
        for name in SERVERS:
            changing.world.kill(name)
        for how in ("scan", "newest"):
            assert await changing.surely(changing.read, txn, how) == (1,) * 4
        await changing.check_end()

    play(script)


def test_a_table_in_which_nothing_is_prepared_is_read_without_the_metastore() -> None:
    async def script(changing: Changing) -> None:
        txn = await changing.load(1, FIRST)
        changing.world.metastore.go_away()
        found = [
            await changing.mail.do(SERVERS[key >= CUT], TabletServer.newest, TABLE, row(key), ALL_COLUMNS)
            for key in KEYS
        ]
        assert [values for _, values in found] == [{"a": 1}] * 4
        assert all(at >= txn for at, _ in found)

    play(script)


def test_in_doubt_without_the_metastore_is_an_error_in_words() -> None:
    async def script(changing: Changing) -> None:
        stopped = Stopped(changing, AdoptChange)
        task = await stopped.load(1)
        await asyncio.sleep(2)
        changing.world.metastore.go_away()
        at = await changing.now()
        with pytest.raises(Retryable, match=r"whether change 'load-.*' of the table has happened cannot be learned"):
            await changing.read(at, "scan")
        changing.world.metastore.come_back()
        stopped.go_on()
        await task

    play(script)


CRASHES = 12


async def _load_surely(changing: Changing, number: int, replaces: bool) -> Txn:
    """Through whoever leads: if the first coordinator is gone, another one."""
    while True:
        if not changing.world.is_alive(FIRST):
            changing.world.start(SECOND)
        through = FIRST if changing.world.is_alive(FIRST) else SECOND
        try:
            return await changing.load(number, through, replaces=replaces)
        except (Retryable, UnknownOutcome):
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("who", [FIRST, *SERVERS])
@pytest.mark.parametrize("replaces", [False, True])
def test_whoever_crashes_at_whatever_step_of_a_load_it_happens_once_and_whole(who: str, replaces: bool) -> None:
    """Each is a step that it takes while a load begins, is prepared, decided, adopted and forgotten."""
    steps: list[int] = []

    def process(changing: Changing) -> SimProcess:
        found = changing.world.process(who)
        assert found is not None
        return found

    async def count(changing: Changing) -> None:
        await _load_surely(changing, 1, False)
        steps.append(process(changing).steps)
        await _load_surely(changing, 2, replaces)
        steps.append(process(changing).steps)

    async def crash(changing: Changing, at: int) -> None:
        first = await _load_surely(changing, 1, False)
        process(changing).crash_at(at)
        second = await _load_surely(changing, 2, replaces)
        for txn, value in ((first, 1), (Txn(second - 1), 1), (second, 2)):
            assert await changing.surely(changing.read, txn, "scan") == (value,) * 4
        if not changing.world.is_alive(FIRST):
            changing.world.start(SECOND)
        await changing.check_end()
        assert await _load_surely(changing, 2, replaces) == second

    play(count)
    begun, ended = steps
    assert ended - begun > CRASHES
    for step in range(begun + 1, ended, max(1, (ended - begun) // tries(CRASHES))):
        play(partial(crash, at=step))


SEEDS = 60
SHARES = 4
PLANTED_SEEDS_MAX = 100
"""Bugs that take more seeds are looked for in a soak alone."""

FOUND = (AssertionError, Corruption, SimDeadlock, SimOverrun, SimUnhandled)
"""What is wrong with what was seen, or with a server; who cannot go on; an error that nobody took."""


@pytest.mark.parametrize("number", range(SHARES))
def test_nobody_sees_half_of_a_change_whatever_is_disturbed(number: int) -> None:
    found = seeds(SEEDS)
    outcomes: Counter[str] = Counter()
    with silent_remains():
        for seed in found if len(found) == 1 else found[number::SHARES]:
            changing = run_changes(seed).result
            outcomes.update(done=len(changing.acknowledged), looks=len(changing.seen), swaps=len(changing.swapped))
    assert all(outcomes[what] for what in ("done", "looks")), outcomes


def _first_found(planted: Planted, tried: range) -> int | None:
    with silent_remains(), planted.patch():
        for seed in tried:
            try:
                run_changes(seed)
            except FOUND:
                return seed
    return None


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(each, id=each.name, marks=long_run if each.seeds_max > PLANTED_SEEDS_MAX else ())
        for each in PLANTED_CHANGES
    ],
)
def test_a_bug_that_is_planted_in_changes_is_found(planted: Planted) -> None:
    """From the seed on that found it first, up to the bound: code that was changed since draws other numbers."""
    found = _first_found(planted, range(planted.seed, planted.seeds_max))
    assert found is not None, f"{planted.words}: not found by seeds {planted.seed} to {planted.seeds_max}"
