"""Snapshots, pins, horizons and schemas over several shards: the stories T19 to T26 and T39, played on the simulated
cluster (see the table in README.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import stelae
from stelae.model.errors import SnapshotTooOld, StelaeError, UnknownOutcome
from stelae.sim.world import WorldSettings
from tests.cluster.processes import SHARDS
from tests.cluster.scripted import SOON, Stage, play

SEEDS = range(3)
ROWS = ("a", "b", "n", "z")
APART = WorldSettings(restart_s=SOON.restart_s, clock_offset_ms_max=900)


def put(row: str, value: int) -> Any:
    return lambda db: db.table("t").put({"k": row, "v": value})


def get(row: str, at: Any = None) -> Any:
    def look(db: stelae.Database) -> int | None:
        found = db.table("t").get(row, at=at)
        return None if found is None else found["v"]

    return look


def all_rows(db: stelae.Database, at: Any = None) -> dict[str, int]:
    return {row["k"]: row["v"] for row in db.table("t").scan(at=at)}


async def follow(stage: Stage, place: int = 0) -> str:
    """Kill the leader of a tablet for good; who leads then."""
    first = await stage.leader(place)
    stage.world.keep_down(first)
    await stage.until(lambda db: db.table("t").tablets()[place].server.partition("/")[0] != first)
    return await stage.leader(place)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_writes_above_what_was_read(seed: int) -> None:
    """T19: a snapshot that was read stays as it is, whoever leads next, and whatever its clock says."""

    async def story(stage: Stage) -> None:
        await stage.make_table(replicas=3)
        await stage.do(put("a", 1))
        at = await stage.do(lambda db: db.now())
        before = await stage.do(lambda db: all_rows(db, at))
        await follow(stage)
        after = await stage.until(put("a", 2))
        assert after > at
        assert await stage.do(lambda db: all_rows(db, at)) == before == {"a": 1}
        assert await stage.do(get("a")) == 2

    play(story, seed, settings=APART)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shard_that_is_quickly_started_again_writes_above_what_it_answered(seed: int) -> None:
    """T21: what it answered lies far above the last txn of its log."""

    async def story(stage: Stage) -> None:
        await stage.make_table(splits=["m"])
        await stage.do(put("a", 1))
        await asyncio.sleep(1.0)
        at = await stage.do(lambda db: db.now())
        assert await stage.do(get("a", at)) == 1
        stage.world.kill(await stage.leader())
        assert await stage.until(put("a", 2)) > at
        assert await stage.do(get("a", at)) == 1

    play(story, seed, settings=APART)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shard_whose_txns_are_ahead_is_read_with_all_others(seed: int) -> None:
    """T22: after several starts a shard is ahead of all clocks; others follow its times, and refuse none."""

    async def story(stage: Stage) -> None:
        await stage.make_table(splits=["m"])
        for value in range(3):
            stage.world.kill(await stage.leader())
            ahead = await stage.until(put("a", value))
            other = await stage.until(put("z", value))
        await stage.until(put("b", 7))
        assert await stage.do(lambda db: all_rows(db, max(ahead, other))) == {"a": 2, "z": 2}
        assert await stage.do(all_rows) == {"a": 2, "b": 7, "z": 2}

    play(story, seed, settings=APART)


@pytest.mark.parametrize("seed", SEEDS)
def test_now_has_what_anybody_was_told_is_done(seed: int) -> None:
    """T24: whoever asks has not heard of the write, and its clock and those of the shards are up to 1.8 s apart."""

    async def story(stage: Stage) -> None:
        await stage.make_table(splits=["c", "m"])
        for value, row in enumerate(ROWS):
            await stage.do(put(row, value), "writer")
            assert (await stage.do(all_rows, "reader"))[row] == value
            at = await stage.do(lambda db: db.now(), "other reader")
            assert (await stage.do(lambda db, at=at: all_rows(db, at), "other reader"))[row] == value  # type: ignore[misc]

    play(story, seed, settings=APART)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_leader_has_purged_its_follower_does_not_read(seed: int) -> None:
    """T25: the follower knows of no horizon. What it was handed says what is gone."""

    async def story(stage: Stage) -> None:
        await stage.make_table(replicas=3)
        old = await stage.do(put("a", 1))
        await stage.do(put("a", 2))
        assert await stage.do(get("a", old)) == 1
        await stage.do(lambda db: db.table("t").compact(erase_now=True))
        await follow(stage)
        assert await stage.do(get("a")) == 2

        def look_back(db: stelae.Database) -> None:
            table = db.table("t")
            for read in (table.get, lambda row, at: table.get_many([row, "b"], at=at), table.history):
                with pytest.raises(SnapshotTooOld):
                    read("a", at=old)
            with pytest.raises(SnapshotTooOld):
                list(table.scan(at=old))

        await stage.do(look_back)

    play(story, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_that_is_held_outlives_the_leader_and_what_its_follower_would_purge(seed: int) -> None:
    """T26: the pin was told to one shard, and another has the tablet when history is to go."""

    async def story(stage: Stage) -> None:
        await stage.make_table(replicas=3)
        for row in ROWS:
            await stage.do(put(row, 1))
        held: list[Any] = []
        await stage.do(lambda db: held.append(db.table("t").scan()), "reader")
        for row in ROWS:
            await stage.do(put(row, 2))
        await follow(stage)
        await stage.until(lambda db: db.table("t").compact(erase_now=True) is not None or True)
        with_scan = await stage.do(lambda _: {row["k"]: row["v"] for row in held[0]}, "reader")
        assert with_scan == dict.fromkeys(ROWS, 1)
        await stage.do(lambda _: held[0].close(), "reader")

    play(story, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pin_and_a_horizon_meet(seed: int) -> None:
    """T26 on shards that have their tablets alone: whoever pins the newest snapshot reads it, though history goes all
    the time."""

    async def story(stage: Stage) -> None:
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
                await stage.do(lambda db: db.table("t").compact(erase_now=True), "writer")

        purging = asyncio.create_task(purge())
        for _ in range(6):
            assert set(await stage.do(all_rows, "reader")) == set(ROWS)

            def twice(db: stelae.Database) -> tuple[Any, Any]:
                with db.snapshot() as snapshot:
                    first = all_rows(db, snapshot)
                    db.table("t").compact()
                    return first, all_rows(db, snapshot)

            first, second = await stage.do(twice, "reader")
            assert first == second
        is_over = True
        await purging

    play(story, seed)


# -- schemas (2.12)


def add_column(name: str) -> Any:
    return lambda db: db.alter_table("t", add={"g": {name: "int64"}})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["cut off", "stopped", "dead"])
def test_an_alteration_that_returned_is_known_to_every_shard(seed: int, how: str) -> None:
    """T39, S2: an alteration is not told as done while a shard has not followed; once it is, every shard refuses what
    was made for the schema before, and makes it anew."""

    async def story(stage: Stage) -> None:
        world = stage.world
        await stage.make_table(splits=["c", "m"])
        for row in ROWS:
            await stage.do(put(row, 1))
        away = await stage.leader(1)
        match how:
            case "cut off":
                world.transport.links.partition([away], ["master", "master-2"])
            case "stopped":
                process = world.process(away)
                assert process is not None
                process.pause()
            case _:
                world.keep_down(away)
        with pytest.raises((StelaeError, TimeoutError)) as raised:
            await stage.do(add_column("w"))
        assert isinstance(raised.value, UnknownOutcome), raised.value
        match how:
            case "cut off":
                world.transport.links.heal_all()
            case "stopped":
                assert process is not None
                process.resume()
            case _:
                world.let_up(away)
        await stage.until(lambda db: db.alter_table("t", add={"g": {"x": "int64"}}) or True)

        def write_new(db: stelae.Database) -> bool:
            table = db.table("t")
            for row in ROWS:
                table.put({"k": row, "v": 2, "w": 3, "x": 4})
            versions = {each.schema_version for each in table.tablets()}
            return len(versions) == 1

        await stage.until(write_new)
        found = await stage.do(lambda db: {row["k"]: (row["w"], row["x"]) for row in db.table("t").scan()})
        assert found == dict.fromkeys(ROWS, (3, 4))

    play(story, seed, patience_s=8.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_leads_after_an_alteration_knows_it(seed: int) -> None:
    """T39 and T40: the follower's catalog comes late; it leads only when it has come, and reads blocks of all
    versions."""

    async def story(stage: Stage) -> None:
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

    play(story, seed)
