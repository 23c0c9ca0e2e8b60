"""Stories of snapshots, pins, horizons, masters and schemas over several shards, told step by step on the simulated
cluster. Which trap each of them plays stands in README.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import stelae
from stelae.master.locating import Locator
from stelae.model.errors import Retryable, SnapshotTooOld, UnknownOutcome
from stelae.model.hybrid import millis_of
from stelae.model.ids import Txn
from stelae.model.schema import ColumnsGroup
from stelae.registry.control_operations import TableLocation
from stelae.registry.tablet_records import read_tablets
from stelae.sim.world import WorldSettings
from tests.cluster.processes import MASTERS, SHARDS
from tests.cluster.scripted import CALL_S, LEASE_S, SOON, Stage, play

ROWS = ("a", "b", "n", "z")
ASKED_MAX = 4
"""So often masters may be asked where a table is, for one call."""
_HOUR_MS = 3_600_000
APART = WorldSettings(restart_s=SOON.restart_s, clock_offset_ms_max=900)
"""Clocks of hosts are up to 1.8 s apart."""


@dataclass(frozen=True, slots=True)
class Story:
    tell: Callable[[Stage], Coroutine[Any, Any, None]]
    settings: WorldSettings = SOON
    patience_s: float = 20.0

    def play(self, seed: int) -> None:
        play(self.tell, seed, settings=self.settings, patience_s=self.patience_s)


def put(row: str, value: int) -> Callable[[stelae.Database], int]:
    return lambda db: db.table("t").put({"k": row, "v": value})


def get(row: str, at: Any = None) -> Callable[[stelae.Database], int | None]:
    def look(db: stelae.Database) -> int | None:
        found = db.table("t").get(row, at=at)
        return None if found is None else found["v"]

    return look


def all_rows(db: stelae.Database, at: Any = None) -> dict[str, int]:
    return {row["k"]: row["v"] for row in db.table("t").scan(at=at)}


def rows_at(at: Any) -> Callable[[stelae.Database], dict[str, int]]:
    return lambda db: all_rows(db, at)


def compact(db: stelae.Database) -> bool:
    """Nothing of the past stays but what somebody holds."""
    db.table("t").compact(erase_now=True)
    return True


def add_column(name: str) -> Callable[[stelae.Database], bool]:
    def add(db: stelae.Database) -> bool:
        groups = [group for group in db.table("t").schema.groups if isinstance(group, ColumnsGroup)]
        if name not in {column.name for group in groups for column in group.columns}:
            db.alter_table("t", add={"g": {name: "int64"}})
        return True

    return add


def refused_or_right(read: Callable[[], Any]) -> None:
    """What may have been purged is not read, unless nothing of it was: then it is as it was."""
    try:
        found = read()
    except SnapshotTooOld:
        return
    assert [row and row["v"] for row in found] == [1], f"the snapshot was purged, and is read: {found}"


async def follow(stage: Stage) -> str:
    """Kill the leader of the table's first tablet, and keep it down, until another leads; who it was."""
    first = await stage.leader()
    stage.world.keep_down(first)
    await stage.until(lambda db: db.table("t").tablets()[0].server.partition("/")[0] != first)
    return first


async def above_what_was_read(stage: Stage) -> None:
    """A snapshot that was read stays as it is, whoever leads next, and whatever its clock says."""
    await stage.make_table(replicas=3)
    await stage.do(put("a", 1))
    at = await stage.do(lambda db: db.now())
    before = await stage.do(rows_at(at))
    await follow(stage)
    assert await stage.until(put("a", 2)) > at
    assert await stage.do(rows_at(at)) == before == {"a": 1}
    assert await stage.do(get("a")) == 2


async def above_what_a_leader_answered_that_is_back(stage: Stage) -> None:
    """The leader is started again at once, in another life: whoever leads next, it or another, begins above all that it
    answered."""
    await stage.make_table(replicas=3)
    await stage.do(put("a", 1))
    for value in range(2, 5):
        at = await stage.do(lambda db: db.now())
        before = await stage.do(rows_at(at))
        stage.world.kill(await stage.leader())
        assert await stage.until(put("a", value)) > at
        assert await stage.do(rows_at(at)) == before == {"a": value - 1}


async def above_what_was_answered_before_a_quick_restart(stage: Stage) -> None:
    """What a shard answered lies far above the last txn of its log."""
    await stage.make_table(splits=["m"])
    await stage.do(put("a", 1))
    await asyncio.sleep(1.0)
    at = await stage.do(lambda db: db.now())
    assert await stage.do(get("a", at)) == 1
    stage.world.kill(await stage.leader())
    assert await stage.until(put("a", 2)) > at
    assert await stage.do(get("a", at)) == 1


async def ahead_of_all_clocks(stage: Stage) -> None:
    """After several starts a shard is ahead of all clocks; others follow its times, and refuse none."""
    await stage.make_table(splits=["m"])
    ahead = other = 0
    for value in range(3):
        stage.world.kill(await stage.leader())
        ahead = await stage.until(put("a", value))
        other = await stage.until(put("z", value))
    await stage.until(put("b", 7))
    assert await stage.do(rows_at(max(ahead, other))) == {"a": 2, "z": 2}
    assert await stage.do(all_rows) == {"a": 2, "b": 7, "z": 2}


async def started_with_a_wrong_clock(stage: Stage) -> None:
    """A shard whose machine comes back with a clock that is an hour off goes by its master's: what it gives out is not
    an hour ahead, which everybody would have to follow for as long."""
    await stage.make_table(splits=["m"])
    server = await stage.leader()
    for value, off_ms in enumerate((_HOUR_MS, -_HOUR_MS)):
        stage.world.kill(server)
        clock = stage.world.clock(server)
        clock.step_wall_ms(off_ms)
        txn = await stage.until(put("a", value))
        right_ms = clock.wall_ms() - off_ms
        assert abs(millis_of(Txn(txn)) - right_ms) < _HOUR_MS // 10
        await stage.until(put("z", value))
        assert await stage.do(all_rows) == {"a": value, "z": value}
        clock.step_wall_ms(-off_ms)


async def now_has_what_is_done(stage: Stage) -> None:
    """Whoever asks has not heard of the write."""
    await stage.make_table(splits=["c", "m"])
    for value, row in enumerate(ROWS):
        await stage.do(put(row, value), "writer")
        assert (await stage.do(all_rows, "reader")).get(row) == value
        at = await stage.do(lambda db: db.now(), "other")
        assert (await stage.do(rows_at(at), "other")).get(row) == value


async def later_is_larger(stage: Stage) -> None:
    """What a program writes after it was told of something is later than that, on whichever shard."""
    await stage.make_table(splits=["c", "m"])
    last = 0
    for value in range(3):
        for row in ROWS:
            txn = await stage.do(put(row, value))
            assert txn > last
            last = txn


async def purged_by_another(stage: Stage) -> None:
    """The follower knows of no horizon: what it was handed says what is gone. What it was not told of yet is there."""
    await stage.make_table(replicas=3)
    old = await stage.do(put("a", 1))
    await stage.do(put("a", 2))
    assert await stage.do(get("a", old)) == 1
    await stage.do(compact)
    for row in ("m", "n"):
        await stage.do(put(row, 3))  # with which others are told that the config counts
    await follow(stage)
    assert await stage.do(get("a")) == 2

    def look_back(db: stelae.Database) -> None:
        table = db.table("t")
        refused_or_right(lambda: [table.get("a", at=old)])
        refused_or_right(lambda: [row for row in table.get_many(["a", "b"], at=old) if row is not None])
        refused_or_right(lambda: list(table.scan(at=old)))

    await stage.do(look_back)


async def held_through_a_change_of_leaders(stage: Stage) -> None:
    """The pin was told to one shard, and another has the tablet when history is to go."""
    await stage.make_table(replicas=3)
    for row in ROWS:
        await stage.do(put(row, 1))
    held: list[Any] = []
    await stage.do(lambda db: held.append(db.table("t").scan()), "reader")
    for row in ROWS:
        await stage.do(put(row, 2))
    stage.world.let_up(await follow(stage))  # what is erased now is asked of all
    await stage.until(compact)
    found = await stage.do(lambda _: {row["k"]: row["v"] for row in held[0]}, "reader")
    assert found == dict.fromkeys(ROWS, 1)
    await stage.do(lambda _: held[0].close(), "reader")


async def pins_and_horizons_meet(stage: Stage) -> None:
    """Whoever pins the newest snapshot reads it, and reads it again, though history goes all the time."""
    await stage.make_table(splits=["c", "m"])
    for row in ROWS:
        await stage.do(put(row, 0))
    is_over = False

    async def purge() -> None:
        value = 0
        while not is_over:
            value += 1
            for row in ROWS:
                await stage.do(put(row, value), "writer")
            await stage.do(compact, "writer")

    def twice(db: stelae.Database) -> None:
        with db.snapshot() as snapshot:
            first = all_rows(db, snapshot)
            db.table("t").compact()
            assert all_rows(db, snapshot) == first

    purging = asyncio.create_task(purge())
    for _ in range(6):
        assert set(await stage.do(all_rows, "reader")) == set(ROWS)
        await stage.do(twice, "reader")
    is_over = True
    await purging


def _altered_while(how: str) -> Callable[[Stage], Coroutine[Any, Any, None]]:
    async def tell(stage: Stage) -> None:
        """An alteration is not told as done while a shard has not followed it; in the end all have."""
        world = stage.world
        await stage.make_table(splits=["c", "m"])
        for row in ROWS:
            await stage.do(put(row, 1))
        away = await stage.leader(1)
        process = world.process(away)
        assert process is not None
        if how == "cut off":
            world.transport.links.partition([away], MASTERS)
        elif how == "stopped":
            process.pause()
        else:
            world.keep_down(away)
        try:
            await stage.do(add_column("w"))
        except (UnknownOutcome, Retryable) as error:
            stage.world.story.tell(f"nobody is told that the table is altered: {error}")
        else:
            raise AssertionError("a shard that is away has followed the alteration")
        world.transport.links.heal_all()
        if how == "stopped":
            process.resume()
        elif how == "dead":
            world.let_up(away)
        await stage.until(add_column("x"))

        def write(db: stelae.Database) -> bool:
            for row in ROWS:
                db.table("t").put({"k": row, "v": 2, "w": 3, "x": 4})
            return len({each.schema_version for each in db.table("t").tablets()}) == 1

        await stage.until(write)
        found = await stage.do(lambda db: {row["k"]: (row["w"], row["x"]) for row in db.table("t").scan()})
        assert found == dict.fromkeys(ROWS, (3, 4))

    return tell


async def led_by_who_was_behind_the_catalog(stage: Stage) -> None:
    """The follower's catalog comes late: it leads only when it has come, and reads blocks of all versions."""
    world = stage.world
    await stage.make_table(replicas=3)
    await stage.do(put("a", 1))
    first = await stage.leader()
    others = [name for name in SHARDS if name != first]
    for name in others:
        world.metastore.partition(name)
    await stage.until(add_column("w"))
    await stage.do(lambda db: db.table("t").put({"k": "b", "v": 2, "w": 3}))
    for name in others:
        world.metastore.heal(name)
    await follow(stage)
    await stage.until(lambda db: db.table("t").put({"k": "n", "v": 4, "w": 5}))
    found = await stage.do(lambda db: {row["k"]: row["w"] for row in db.table("t").scan()})
    assert found == {"a": None, "b": 3, "n": 5}


async def others_change_meanwhile(stage: Stage) -> None:
    """A change of a table waits for a shard that is stopped; those of tables that have none of it do not."""
    await stage.make_table(splits=["c", "m"])
    away = await stage.leader(1)
    process = stage.world.process(away)
    assert process is not None
    process.pause()
    waiting = stage.start(add_column("w"), "patient")
    groups = [stelae.columns("g", {"v": "int64"})]

    def make(db: stelae.Database) -> bool:
        db.create_namespace("more", if_not_exists=True)
        made = db.create_table("more.u", key={"k": "string"}, groups=groups, if_not_exists=True)
        made.put({"k": "a", "v": 1})
        db.drop_table("more.u")
        return True

    await stage.until(make)
    process.resume()
    with suppress(UnknownOutcome, Retryable):
        await waiting
    await stage.until(add_column("x"))


async def a_master_that_slept(stage: Stage) -> None:
    """The leading master is stopped until another leads, and wakes with what it knew: it deletes nothing of what it has
    never heard of, and changes nothing."""
    await stage.make_table()
    await stage.do(put("a", 1))
    process = stage.world.process(MASTERS[0])  # which was started first
    assert process is not None
    process.pause()
    groups = [stelae.columns("g", {"v": "int64"})]

    def make(db: stelae.Database) -> bool:
        made = db.create_table("late", key={"k": "string"}, groups=groups, splits=["m"], if_not_exists=True)
        made.put({"k": "a", "v": 1})
        made.put({"k": "z", "v": 2})
        return True

    await stage.until(make)
    process.resume()
    for _ in range(8):
        await asyncio.sleep(LEASE_S / 2)
        found = await stage.until(lambda db: {row["k"]: row["v"] for row in db.table("late").scan()})
        assert found == {"a": 1, "z": 2}
    await stage.until(lambda db: not db.check().problems)


async def between_two_who_are_behind(stage: Stage) -> None:
    """A program has the routes of before. The shard that they name, and the master that led then, are cut off from all
    but programs, and others have followed both. The program's call ends, and not many are asked for it."""
    world = stage.world
    await stage.make_table(replicas=3)
    await stage.do(put("a", 1))
    behind = (MASTERS[0], await stage.leader())  # the first of the masters leads
    others = [name for name in (*MASTERS, *SHARDS) if name not in behind]
    for name in behind:
        world.metastore.partition(name)
    world.transport.links.partition(behind, [*others, *behind])
    store = world.metastore.client("onlooker")
    async with asyncio.timeout(CALL_S):
        while (await read_tablets(store))[0].server.partition("/")[0] in behind:
            await asyncio.sleep(0.2)
    asked: list[object] = []
    right = Locator.locate

    async def locate(self: Locator, *args: Any) -> TableLocation:
        asked.append(self)
        return await right(self, *args)

    with mock.patch.object(Locator, "locate", locate):
        await stage.do(put("a", 2))
    assert len(asked) <= ASKED_MAX, f"masters were asked {len(asked)} times where rows are"
    assert await stage.do(get("a")) == 2


STORIES = {
    "above what was read": Story(above_what_was_read, APART),
    "above what a leader answered that is back": Story(above_what_a_leader_answered_that_is_back, APART),
    "above what was answered before a quick restart": Story(above_what_was_answered_before_a_quick_restart, APART),
    "ahead of all clocks": Story(ahead_of_all_clocks, APART),
    "started with a wrong clock": Story(started_with_a_wrong_clock),
    "now has what is done": Story(now_has_what_is_done, APART),
    "later is larger": Story(later_is_larger, APART),
    "purged by another": Story(purged_by_another),
    "held through a change of leaders": Story(held_through_a_change_of_leaders),
    "pins and horizons meet": Story(pins_and_horizons_meet),
    "altered while one is cut off": Story(_altered_while("cut off"), patience_s=8.0),
    "altered while one is stopped": Story(_altered_while("stopped"), patience_s=8.0),
    "altered while one is dead": Story(_altered_while("dead"), patience_s=8.0),
    "led by who was behind the catalog": Story(led_by_who_was_behind_the_catalog),
    "others change meanwhile": Story(others_change_meanwhile),
    "a master that slept": Story(a_master_that_slept),
    "between two who are behind": Story(between_two_who_are_behind),
}
