"""Everybody crashes at each step, and in the midst of each effect, of what a table of many shards lives through: it is
created, altered, its files are collected, it is truncated, dropped and recalled. Whoever it was is started again by
itself, who asked asks again, and all is as if nothing had happened: done once, whole, and every tablet works.

One world is one life of a table in which the same party dies in each phase, so far through it. A plain run tries a
place for some parties; a soak tries all that there are, for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from unittest import mock

import pytest

import stelae
from stelae.client.api.database import session_of
from stelae.master.garbage import collection
from stelae.master.garbage.collection import Collection, Needs, put_together
from stelae.model.ids import Txn
from stelae.registry.bulk_sessions import write_hold
from stelae.registry.changes.sessions import read_sessions
from stelae.registry.control_operations import FilesNeeded
from stelae.service.tickets import LoadTicket
from stelae.sim.effects import Effects
from stelae.sim.process import SimProcess
from stelae.tserver.jobs import holds
from stelae.tserver.jobs.holds import Holds
from tests.cluster.processes import MASTERS, SHARDS
from tests.cluster.scripted import Stage, play
from tests.effort import is_soak, long_run, tries
from tests.tserver.loading import written

LEADING, STANDBY, ASKER, JUDGE, HOLDER = "leading master", "other master", "asker", "judge", "holder"
PARTIES = (LEADING, STANDBY, *SHARDS, ASKER)
SPLITS = ("c", "m")
KEYS = ("a", "d", "g", "n")
"""One in each tablet, also when one was split at `CUT`."""
CUT = "f"
CRASHES = 12
FEW = 1
LOOKS_MAX = 60
GROUPS = [stelae.columns("g", {"v": "int64"})]


# -- what is asked; asking again does no harm


def _create(db: stelae.Database) -> bool:
    db.create_table("t", key={"k": "string"}, groups=GROUPS, splits=list(SPLITS), if_not_exists=True)
    return True


def _alter(db: stelae.Database) -> bool:
    if "w" not in _columns(db):
        db.alter_table("t", add={"g": {"w": "int64"}})
    return True


def _collect(db: stelae.Database) -> bool:
    db.table("t").compact(erase_now=True)
    return True


def _truncate(db: stelae.Database) -> bool:
    db.truncate_table("t")
    return True


def _drop(db: stelae.Database) -> bool:
    db.drop_table("t", if_exists=True)
    return True


def _recall(db: stelae.Database) -> bool:
    if "t" not in db.tables():
        db.recall_table("t")
    return True


def _columns(db: stelae.Database) -> list[str]:
    return [column.name for column in db.table("t").schema.groups[0].columns]  # type: ignore[union-attr]


def _rows(at: Any, db: stelae.Database) -> dict[str, int]:
    return {row["k"]: row["v"] for row in db.table("t").scan(at=at)}


# -- who dies, and when


Place = tuple[str, str, str]
"""A phase, a party, and of what it dies: a step or an effect."""


class Counting:
    """Nobody dies: how many steps and effects there are is learned."""

    def __init__(self) -> None:
        self.found: dict[Place, int] = {}

    @contextmanager
    def during(self, stage: Stage, phase: str) -> Iterator[None]:
        names = {who: name_of(stage, who) for who in PARTIES}
        before = {who: _counts(stage, name) for who, name in names.items()}
        yield
        for who, name in names.items():
            for what, count in _counts(stage, name).items():
                self.found[phase, who, what] = count - before[who][what]


@dataclass
class Crashes:
    """In each phase a party dies of one of its steps or effects: so far through them, from 0 to 1."""

    who: str
    what: str
    share: float
    counts: dict[Place, int]
    died: set[str] = field(default_factory=set)

    @contextmanager
    def during(self, stage: Stage, phase: str) -> Iterator[None]:
        count = self.counts[phase, self.who, self.what]
        name = name_of(stage, self.who)
        lives = stage.world.lives(name)
        if count:
            self._arm(stage, name, 1 + int(self.share * count))
        yield
        _effects(stage, name).crash_at(None)
        _process(stage, name).crash_at(None)
        if stage.world.lives(name) > lives or not stage.world.is_alive(name):
            self.died.add(phase)

    def _arm(self, stage: Stage, name: str, number: int) -> None:
        if self.what == "step":
            process = _process(stage, name)
            process.crash_at(process.steps + number)
        else:
            effects = _effects(stage, name)
            effects.crash_at(effects.count + number)


def name_of(stage: Stage, who: str) -> str:
    """The process that is this party now."""
    leading = stage.leading or MASTERS[0]
    return {LEADING: leading, STANDBY: next(name for name in MASTERS if name != leading)}.get(who, who)


def _process(stage: Stage, name: str) -> SimProcess:
    process = stage.world.process(name)
    assert process is not None
    return process


def _effects(stage: Stage, name: str) -> Effects:
    return stage.world.effects(name)


def _counts(stage: Stage, name: str) -> dict[str, int]:
    return {"step": _process(stage, name).steps, "effect": _effects(stage, name).count}


# -- the life of a table


class Life:
    """`rows`: what the table has, as far as a program was told that it is done."""

    def __init__(self, stage: Stage, crashes: Counting | Crashes) -> None:
        self._stage = stage
        self._crashes = crashes
        self._value = 0
        self.rows: dict[str, int] = {}

    async def live(self) -> None:
        for who in (ASKER, HOLDER):
            await self._stage.surely(lambda db: db.tables(), who)
        await self._create()
        await self._alter()
        await self._collect()
        await self._truncate()
        await self._drop()

    async def _create(self) -> None:
        await self._ask("create", _create)
        assert len(await self._stage.tablets()) == len(SPLITS) + 1
        await self._work()

    async def _alter(self) -> None:
        before = await self._stage.surely(lambda db: db.table("t").schema.version, JUDGE)
        await self._ask("alter", _alter)
        assert await self._stage.surely(_columns, JUDGE) == ["v", "w"]
        after = {each.schema_version for each in await self._stage.tablets()}
        assert after == {before + 1}, f"altered once, from version {before}: the tablets have {after}"
        await self._work()

    async def _collect(self) -> None:
        """Of two versions of each row, each in files, one is held by a snapshot; a tablet was split."""
        stage, held = self._stage, []
        await stage.surely(lambda db: db.table("t").flush())
        await stage.surely(lambda db: held.append(db.snapshot()), HOLDER)
        before = dict(self.rows)
        await self._work()
        await stage.surely(lambda db: db.table("t").flush())
        await stage.surely(_split)
        await self._ask("collect", _collect)
        await only_needed(stage)
        assert await stage.surely(partial(_rows, held[-1]), HOLDER) == before, "what was held reads as before"
        await stage.surely(lambda _: held[-1].close(), HOLDER)
        await self._work()

    async def _truncate(self) -> None:
        at = await self._stage.surely(lambda db: db.now(), JUDGE)
        await self._ask("truncate", _truncate)
        assert await self._stage.surely(partial(_rows, at), JUDGE) == self.rows, "what was before is as it was"
        self.rows.clear()
        await self._work()

    async def _drop(self) -> None:
        await self._ask("drop", _drop)
        assert await self._stage.surely(lambda db: db.tables(), JUDGE) == []
        await self._stage.until(_recall, JUDGE)
        await self._work()

    async def _ask(self, phase: str, ask: Callable[[stelae.Database], bool]) -> None:
        stage = self._stage
        with self._crashes.during(stage, phase):
            await stage.until(ask, ASKER)
        stage.world.story.tell(f"it is told: {phase} is done")
        while not all(stage.world.is_alive(name) for name in (*MASTERS, *SHARDS, ASKER)):
            await asyncio.sleep(0.1)
        await stage.check(JUDGE)

    async def _work(self) -> None:
        """What the table had is there, and nothing else; a put and a get on every tablet, and all is there after it."""
        stage = self._stage
        assert await stage.surely(partial(_rows, None), JUDGE) == self.rows
        self._value += 1
        value = self._value

        def put(key: str, db: stelae.Database) -> int:
            return db.table("t").put({"k": key, "v": value})

        def get(key: str, db: stelae.Database) -> int | None:
            found = db.table("t").get(key)
            return None if found is None else found["v"]

        for key in KEYS:
            await stage.surely(partial(put, key), JUDGE)
            self.rows[key] = value
            assert await stage.surely(partial(get, key), JUDGE) == value
        assert await stage.surely(partial(_rows, None), JUDGE) == self.rows


def _split(db: stelae.Database) -> None:
    table = db.table("t")
    if len(table.tablets()) == len(SPLITS) + 1:
        table.split(CUT)


async def only_needed(stage: Stage) -> None:
    """In the end exactly those files are there that the shards need."""
    needed: set[str] = set()
    there: set[str] = set()
    for _ in range(LOOKS_MAX):
        found = [await stage.do(partial(_files_of, stage, name), JUDGE) for name in SHARDS]
        needed, there = {name for each in found for name in each.names}, set(stage.world.blobs)
        if there == needed:
            return
        await asyncio.sleep(1.0)
    raise AssertionError(f"needed and not there: {needed - there}; there and not needed: {there - needed}")


def _files_of(stage: Stage, name: str, _: stelae.Database) -> FilesNeeded:
    return stage.shards[name].server.files_needed()


def _live(crashes: Counting | Crashes, seed: int = 1) -> None:
    play(lambda stage: Life(stage, crashes).live(), seed)


@cache
def _counted() -> dict[Place, int]:
    counting = Counting()
    _live(counting)
    return counting.found


def _shares(who: str, what: str, few: int) -> Sequence[float]:
    """Through a phase: a few places, others for each party; in a soak as many as the longest phase has, or so."""
    longest = max(count for (_, party, kind), count in _counted().items() if (party, kind) == (who, what))
    count = min(tries(CRASHES), longest) if is_soak() else few
    offset = 0.5 / count if is_soak() else (0.5 + PARTIES.index(who)) / len(PARTIES) / few
    return [offset + number / count for number in range(count)]


def test_all_phases_have_steps_and_effects_that_can_be_died_of() -> None:
    counts = _counted()
    phases = {phase for phase, _, _ in counts}
    assert phases == {"create", "alter", "collect", "truncate", "drop"}
    for phase in phases:
        assert counts[phase, LEADING, "step"] > CRASHES
        assert counts[phase, ASKER, "step"] > 1
    assert counts["collect", LEADING, "effect"] > 1, "files are deleted one after the other"
    for shard in SHARDS:
        assert counts["truncate", shard, "effect"]
        assert counts["create", shard, "effect"]


def _tried(parties: Sequence[str], in_plain_runs: Sequence[str]) -> list[Any]:
    return [pytest.param(who, marks=() if who in in_plain_runs else long_run) for who in parties]


@pytest.mark.parametrize("who", _tried(PARTIES, (LEADING, SHARDS[0], ASKER)))
def test_whoever_dies_at_whichever_step_all_is_done_once_and_whole(who: str) -> None:
    for share in _shares(who, "step", FEW):
        crashes = Crashes(who, "step", share, _counted())
        _live(crashes)
        assert "create" in crashes.died


@pytest.mark.parametrize("who", _tried([LEADING, *SHARDS], (LEADING, SHARDS[1])))
def test_whoever_dies_in_the_midst_of_whichever_effect_all_is_done_once_and_whole(who: str) -> None:
    for share in _shares(who, "effect", FEW):
        crashes = Crashes(who, "effect", share, _counted())
        _live(crashes)
        assert crashes.died


# -- what a collection must not miss


async def a_load_ends_while_a_shard_is_asked(stage: Stage) -> None:
    """A shard is slow to say what it needs; meanwhile what was loaded on another one becomes a tablet's. It had said
    before that it does not need that."""

    def make(db: stelae.Database) -> bool:
        db.create_table("n", key={"id": "int64"}, groups=[stelae.columns("g", {"a": "int64"})], if_not_exists=True)
        return bool(db.table("n").tablets())

    def begin(db: stelae.Database) -> LoadTicket:
        table = db.table("n")._id
        return session_of(db).ask(lambda backend, until: backend.begin_load(table, "job", deadline=until))

    await stage.until(make)
    (tablet,) = await stage.surely(lambda db: db.table("n").tablets())
    slow = next(name for name in SHARDS if not tablet.server.startswith(name))
    ticket = await stage.surely(begin)
    file = written(stage.world.blobs_of("player"), ticket, "01", {1: 1, 2: 2})

    def commit(db: stelae.Database) -> Txn:
        return session_of(db).ask(lambda backend, until: backend.commit_load(ticket.ticket, [file], deadline=until))

    await asyncio.sleep(0.5)
    process = _process(stage, slow)
    process.pause()
    leading = stage.masters[stage.leading]
    collecting = stage.start(lambda _: leading.collect(), "collector")
    await asyncio.sleep(0.3)
    await stage.do(commit)
    while await read_sessions(stage.world.metastore.client("judge")):
        await asyncio.sleep(0.05)
    assert not collecting.done()
    process.resume()
    await collecting
    assert file.file.name in set(stage.world.blobs), "a file that was loaded is gone"
    assert await stage.surely(lambda db: db.table("n").count()) == 2
    await stage.check()


async def a_hold_is_written_down_slowly(stage: Stage) -> None:
    """The files of a hold are chosen, and it is not in the metastore yet, when a compaction has replaced them and what
    nobody needs is removed."""
    chosen, go_on = asyncio.Event(), asyncio.Event()
    files: list[str] = []
    right = write_hold

    async def write(*args: Any) -> Any:
        files.extend(args[-1])
        chosen.set()
        await go_on.wait()
        return await right(*args)

    def hold(db: stelae.Database) -> object:
        table = db.table("t")._id
        return session_of(db).ask(lambda backend, until: backend.hold(table, deadline=until))

    await stage.make_table()
    for value in range(2):
        await stage.surely(lambda db, value=value: db.table("t").put({"k": "a", "v": value}))  # type: ignore[misc]
        await stage.surely(lambda db: db.table("t").flush())
    with mock.patch.object(holds, "write_hold", write):
        holding = stage.start(hold, HOLDER)
        await chosen.wait()
        await stage.surely(_collect)
        assert not holding.done()
        go_on.set()
        await holding
    upkeep = stage.shards[await stage.leader()].server.upkeep
    assert not upkeep.needed_files().intersection(files), "the compaction has replaced them"
    gone = set(files) - set(stage.world.blobs)
    assert not gone, f"files are gone that are held: {gone}"
    await stage.check()


def _gathering_holds_are_ignored() -> AbstractContextManager[Any]:
    """Bug 32 of simulation.md: what a hold keeps counts when it is written down, not when it is chosen."""

    def kept(self: Holds) -> dict[str, frozenset[str]]:
        return {ticket: hold.files for ticket, hold in self._holds.items()}

    return mock.patch.object(Holds, "kept", kept)


@contextmanager
def _sessions_are_read_after_the_shards_were_asked() -> Iterator[None]:
    collecting: list[Collection] = []
    right = Collection.collect

    def collect(self: Collection, *args: Any, **options: Any) -> tuple[int, int]:
        collecting[:] = [self]
        return right(self, *args, **options)

    def put_together_late(asked: Txn, answers: Any, _: Any) -> Needs:
        mine = collecting[0]
        late = mine._run(read_sessions(mine._store))
        return put_together(asked, answers, [each.session.prefix for each in late if each.session.prefix])

    with (
        mock.patch.object(Collection, "collect", collect),
        mock.patch.object(collection, "put_together", put_together_late),
    ):
        yield


@pytest.mark.parametrize("story", [a_load_ends_while_a_shard_is_asked, a_hold_is_written_down_slowly])
def test_nothing_is_collected_that_somebody_comes_to_need(story: Any) -> None:
    play(story, 1)


@pytest.mark.parametrize(
    ("story", "planted", "words"),
    [
        (a_hold_is_written_down_slowly, _gathering_holds_are_ignored, "files are gone that are held"),
        (a_load_ends_while_a_shard_is_asked, _sessions_are_read_after_the_shards_were_asked, "that was loaded is gone"),
    ],
)
def test_a_bug_that_is_planted_in_the_collection_is_found(
    story: Any, planted: Callable[[], AbstractContextManager[Any]], words: str
) -> None:
    with planted(), pytest.raises(AssertionError, match=words):
        play(story, 1)
