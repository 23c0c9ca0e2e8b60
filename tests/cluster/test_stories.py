"""Stories of replication that go wrong in a careless cluster, played step by step."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest

import stelae
from stelae.master.records import Records
from stelae.model.errors import Unavailable, UnknownOutcome
from stelae.ports.metastore import PutKey
from stelae.registry.tablet_records import TABLETS_PREFIX
from tests.cluster import replica_stories, resize_stories
from tests.cluster.planted import PlantedInStory
from tests.cluster.planted_resizes import PLANTED_IN_RESIZES
from tests.cluster.planted_stories import PLANTED_IN_STORIES
from tests.cluster.processes import MASTERS, SHARDS
from tests.cluster.replica_stories import LEASES_S
from tests.cluster.stories import LEASE_S, Stage, play
from tests.cluster.test_planted import FOUND

STORIES = replica_stories.STORIES | resize_stories.STORIES


@pytest.mark.parametrize("name", STORIES)
def test_a_story_ends_well(name: str) -> None:
    play(STORIES[name], lease_s=LEASES_S.get(name, LEASE_S))


def test_a_torn_end_is_not_led_alone_where_one_replica_is_enough() -> None:
    play(STORIES["t16_a_torn_end_is_not_led_alone"], min_replicas=1)


def first_found(planted: PlantedInStory, seeds: range) -> int | None:
    with planted.patch():
        for seed in seeds:
            try:
                play(STORIES[planted.story], seed=seed, lease_s=LEASES_S.get(planted.story, LEASE_S))
            except FOUND:
                return seed
    return None


@pytest.mark.parametrize("planted", [*PLANTED_IN_STORIES, *PLANTED_IN_RESIZES], ids=lambda planted: planted.name)
def test_a_story_finds_the_bug_that_is_planted(planted: PlantedInStory) -> None:
    """From the seed on that found it first: code that was changed since draws other delays."""
    found = first_found(planted, range(planted.seed, planted.seeds_max))
    assert found is not None, f"{planted.words}: not found by seeds {planted.seed} to {planted.seeds_max}"


def test_a_drained_shard_leads_nothing_and_nobody_notices() -> None:
    async def story(stage: Stage) -> None:
        first, epoch = stage.leader, stage.epoch
        before = await stage.do(lambda db: db.now())
        puts = [stage.put_later(f"r{number}", number) for number in range(20)]
        drained = await stage.master(lambda master: master.drain_servers(first))
        assert (drained.shards, drained.moved, drained.alone) == ((f"{first}/0",), 1, 0)
        assert stage.led_by(first) is None
        assert stage.epoch == epoch + 1
        assert len(await asyncio.gather(*puts)) == 20
        txn = await stage.put("after", 1)
        assert txn > before
        await asyncio.sleep(20.0)
        assert stage.led_by(first) is None, "it is not elected again"
        stage.world.kill(first)
        await stage.until(lambda: stage.world.is_alive(first))
        await stage.whole()
        (other,) = {"shard-1", "shard-2", "shard-3"} - {first, stage.leader}
        await stage.master(lambda master: master.drain_servers(stage.leader))
        await stage.master(lambda master: master.drain_servers(other))
        assert stage.leader == first, "started again, it is drained no more"
        assert len(await stage.rows()) == 21
        await stage.check()

    play(story)


def test_t59_a_leader_that_reaches_no_other_member_is_followed_by_one_that_does() -> None:
    async def story(stage: Stage) -> None:
        await stage.put("a", 1)
        first, (one, other) = stage.leader, stage.followers
        stage.world.transport.links.partition([first], [one, other])
        lost = stage.put_later("b", 2)
        await stage.until(lambda: stage.leader not in ("", first))
        with suppress(UnknownOutcome):
            await lost
        await stage.put("c", 3)
        found = await stage.rows()
        assert found in ({"a": 1, "c": 3}, {"a": 1, "b": 2, "c": 3})
        stage.world.transport.links.join([first], [one, other])
        await stage.whole()
        assert await stage.rows() == found, "what was given up stays so"
        await stage.check()

    play(story)


def test_a_leader_that_nobody_could_follow_goes_on() -> None:
    """The others are dead: reads go on, writes are refused in words, and all goes on by itself when one is back."""

    async def story(stage: Stage) -> None:
        await stage.put("a", 1)
        first, others = stage.leader, stage.followers
        for name in others:
            stage.world.keep_down(name)
        waiting = stage.put_later("waiting", 1)
        await asyncio.sleep(4.0)
        with pytest.raises(Unavailable, match="1 of 3 replicas within reach"):
            await stage.ask(lambda db: db.table("t").put({"k": "b", "v": 2}), is_hasty=True)
        await asyncio.sleep(30.0)
        assert stage.leader == first
        assert await stage.do(lambda db: db.table("t").get("a")) == {"k": "a", "v": 1}
        stage.world.let_up(others[0])
        await stage.put("c", 3)
        with suppress(UnknownOutcome):
            await waiting
        found = await stage.rows()
        assert found.pop("waiting", 1) == 1
        assert found == {"a": 1, "c": 3}

    play(story)


def test_a_leader_stays_where_the_next_could_not_take_writes_either() -> None:
    """Writes need all three, and one is dead: whoever led next could not even open the tablet. So reads go on."""

    async def story(stage: Stage) -> None:
        await stage.put("a", 1)
        first, epoch, dead = stage.leader, stage.epoch, stage.followers[0]
        stage.world.keep_down(dead)
        waiting = stage.put_later("waiting", 1)
        for _ in range(40):
            await asyncio.sleep(1.0)
            assert await stage.get("a") == 1
        assert (stage.leader, stage.epoch) == (first, epoch)
        with pytest.raises(Unavailable, match="2 of 3 replicas within reach"):
            await stage.ask(lambda db: db.table("t").put({"k": "b", "v": 2}), is_hasty=True)
        stage.world.let_up(dead)
        with suppress(UnknownOutcome):
            await waiting
        await stage.put("c", 3)
        await stage.judge()

    play(story, min_replicas=3)


def test_a_replica_with_a_greater_place_that_never_counted_comes_back() -> None:
    """One that lags is elected alone and logs its config; then the others are led without it, and put all they have
    into files. What they begin with lies below its last record, and is not there."""

    async def story(stage: Stage) -> None:
        await stage.put("a", 1)
        first, (near, far) = stage.leader, stage.followers
        links = stage.world.transport.links
        links.partition([first], [far])
        later = [stage.put_later(f"b{number}", number) for number in range(5)]
        await asyncio.sleep(0.6)
        for name in (first, near):
            stage.world.keep_down(name)
        links.join([first], [far])
        await stage.until(lambda: stage.led_by(far) is not None)
        await asyncio.sleep(0.3)
        stage.world.keep_down(far)
        for name in (first, near):
            stage.world.let_up(name)
        await stage.until(lambda: stage.leader not in ("", far))
        await asyncio.wait(later)
        await stage.do(lambda db: db.table("t").flush())
        stage.world.let_up(far)
        await stage.judge()

    for seed in range(3):
        play(story, seed=seed)


def test_a_leader_that_was_left_alone_lets_go_of_what_is_in_files() -> None:
    """Its log and its memory would grow with all that is written, and so would what it sends to who comes back."""

    async def story(stage: Stage) -> None:
        await stage.put("a", 1)
        first, others = stage.leader, stage.followers
        for name in others:
            stage.world.keep_down(name)
        await stage.put("b", 2)
        for number in range(4):
            for row in "cdef":
                await stage.put(row, number)
            await stage.do(lambda db: db.table("t").flush())
        await stage.until(lambda: len(stage.replicas[first].tail) <= 2, 10.0)
        for name in others:
            stage.world.let_up(name)
        await stage.judge()

    play(story, min_replicas=1)


def test_a_tablet_that_cannot_be_led_holds_up_no_other_and_it_is_said_why() -> None:
    """The record of one tablet is put back to what it was before its last leader; the other tablets of the shard that
    should lead it are led."""

    async def story(stage: Stage) -> None:
        groups = [stelae.columns("g", {"v": "int64"})]
        key = {"k": "string"}
        await stage.do(lambda db: db.create_table("u", key=key, groups=groups, zone="copies", splits=["f", "m"]))
        store = stage.world.metastore.client("backup")
        old = (await store.range(TABLETS_PREFIX)).entries[0]

        def led() -> set[int]:
            alive = [shard for name, shard in stage.shards.items() if stage.world.is_alive(name)]
            hosts = [shard.server.hosting for shard in alive]
            return {
                led.tablet for each in hosts if each is not None for led in each.leading.led.values() if led.is_open
            }

        everything = led()
        for _ in range(4):
            for name in SHARDS:
                stage.world.kill(name)
            await stage.until(lambda: led() == everything and all(stage.world.is_alive(name) for name in SHARDS))
        await store.txn([], [PutKey(old.key, old.value)])
        for name in (*MASTERS, *SHARDS):
            stage.world.kill(name)
        left = everything - {min(everything)}
        await stage.until(lambda: led() == left)
        await asyncio.sleep(10.0)
        assert led() == left
        overview = await stage.master(lambda master: master.overview())
        assert any("was the metastore restored from an older copy?" in late.words for late in overview.late)

    play(story)


def test_what_a_zone_says_by_now_counts_for_tablets_that_are_led() -> None:
    async def story(stage: Stage) -> None:
        await stage.put("a", 1)
        await stage.do(lambda db: db.alter_zone("copies", min_replicas=3))
        dead = stage.followers[0]
        stage.world.keep_down(dead)
        waiting = stage.put_later("waiting", 1)
        await asyncio.sleep(6.0)
        with pytest.raises(Unavailable, match="2 of 3 replicas within reach"):
            await stage.ask(lambda db: db.table("t").put({"k": "b", "v": 2}), is_hasty=True)
        await stage.do(lambda db: db.alter_zone("copies", replicas=2, min_replicas=2))
        await stage.put("c", 3)
        with suppress(UnknownOutcome):
            await waiting
        stage.world.let_up(dead)
        await asyncio.sleep(20.0)
        led = stage.led_by(stage.leader)
        assert led is not None
        assert len(led.lead.members) == 2
        await stage.do(lambda db: db.alter_zone("copies", replicas=3))
        await stage.judge()

    play(story)


def test_a_check_finds_replicas_that_differ() -> None:
    """What the log on a disk has lost, and what a replica in memory has otherwise."""

    async def story(stage: Stage) -> None:
        for number in range(5):
            await stage.put(f"r{number}", number)
        await stage.check()
        leader, (one, other) = stage.leader, stage.followers
        replica = stage.replicas[one]
        last = replica.tail[-1]
        replica.tail[-1] = last._replace(payload=bytes(last.payload) + b"!")
        words = [str(each) for each in await stage.do(lambda db: db.check().problems)]
        assert any(f"on {one}/0" in each and "is not the same there" in each and leader in each for each in words), (
            words
        )
        assert all("move the shard's directory away" in each for each in words), words
        replica.tail.pop()
        words = [str(each) for each in await stage.do(lambda db: db.check().problems)]
        assert any(f"on {one}/0" in each and "is missing there" in each for each in words), words
        replica.tail.append(last)
        await stage.check()
        assert stage.world.disk(other).flip_bit()
        words = [str(each) for each in await stage.do(lambda db: db.check().problems)]
        assert any(f"on {other}/0" in each or f"{other}" in each for each in words), words

    play(story)


def test_what_a_split_that_failed_has_left_goes_by_itself() -> None:
    """All members have what comes out of the tablet, and then it is not recorded."""

    async def story(stage: Stage) -> None:
        for row in "abcxyz":
            await stage.put(row, 1)
        right, failed = Records.write, list[Any]()

        async def fail_once(self: Records, puts: Any, removed: Any = ()) -> None:
            if removed and not failed:
                failed.append(removed)
                raise Unavailable("the metastore is away")
            await right(self, puts, removed)

        with mock.patch.object(Records, "write", fail_once), suppress(UnknownOutcome):
            await stage.do(lambda db: db.table("t").split("m"))
        assert failed

        def tablets() -> set[int]:
            alive = (shard for name, shard in stage.shards.items() if stage.world.is_alive(name))
            return {tablet for shard in alive for tablet in shard.server.shard.replicas}

        count = len(await stage.do(lambda db: db.table("t").tablets()))
        assert len(tablets()) > count, "nothing was left: the story has lost its point"
        await stage.until(lambda: len(tablets()) == count, 300.0)
        assert await stage.rows() == dict.fromkeys("abcxyz", 1)

    play(story)
