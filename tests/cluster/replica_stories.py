"""The stories of replication: interleavings that break a careless cluster, as scripts (`stories`).

Each has the number that it has among the traps, in the README. A story fails if something acknowledged is lost, if a
snapshot changes or an old value is read, if replicas differ, or if nobody serves in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stelae.master.replication.elections import OTHERS_S
from stelae.model.errors import DiskFailed
from stelae.model.hybrid import pack
from stelae.ports.metastore import PutKey
from stelae.registry.masters.heartbeats import HEARTBEAT_S
from stelae.registry.tablet_records import TABLETS_PREFIX
from tests.cluster.processes import MASTERS, SHARDS
from tests.cluster.stories import LEASE_S, OTHER, PROGRAM, Stage

Story = Callable[[Stage], Awaitable[None]]


async def _only_one_left(stage: Stage, left: str, others: list[str]) -> None:
    """The others are dead until the one that is left leads by the record; then all are healed."""
    for name in others:
        stage.world.keep_down(name)
    await stage.until(lambda: stage.led_by(left) is not None)
    await _heal(stage)


async def _heal(stage: Stage) -> None:
    links = stage.world.transport.links
    hosts = (*MASTERS, *SHARDS)
    for source in hosts:
        for target in hosts:
            while links.link(source, target).is_cut:
                links.heal(source, target)
    for name in SHARDS:
        stage.world.disk(name).mend()
        process = stage.world.process(name)
        if process is not None and process.is_paused:
            process.resume()
        stage.world.let_up(name)
    await asyncio.sleep(1.0)


async def _settle(answer: asyncio.Future[int]) -> None:
    """Whatever became of it."""
    await asyncio.wait([answer])


async def _as_soon_as(what: Callable[[], object]) -> None:
    """For what is over within some milliseconds."""
    for _ in range(30_000):
        if what():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come")


async def t1_only_all_is_enough(stage: Stage) -> None:
    """One member is cut off and does not get a write that the others have; then it is the one that is left."""
    await stage.put("a", 1)
    leader, (near, far) = stage.leader, stage.followers
    stage.world.transport.links.partition([leader], [far])
    answers = [stage.put_later("b", 2)]
    await asyncio.sleep(1.2)
    answers.append(stage.put_later("c", 3))
    await asyncio.sleep(0.5)
    await _only_one_left(stage, far, [leader, near])
    for answer in answers:
        await _settle(answer)
    await stage.judge()


async def t2_a_drop_that_nobody_has_answered(stage: Stage) -> None:
    """The leader wants to drop a member, and reaches no master: the member is still one."""
    await stage.put("a", 1)
    leader, (near, far) = stage.leader, stage.followers
    stage.world.transport.links.partition([leader], [far, *MASTERS])
    answer = stage.put_later("b", 2)
    await asyncio.sleep(6.0)
    await _only_one_left(stage, far, [leader, near])
    await _settle(answer)
    await stage.judge()


async def t3_a_drop_whose_answer_is_lost(stage: Stage) -> None:
    """The leader hears of no master, so it does not know whether a member was dropped that it has asked to drop: it
    goes on waiting for all three, and whoever is elected by the record has all that it has acknowledged."""
    await stage.put("a", 1)
    leader, (near, far) = stage.leader, stage.followers
    links = stage.world.transport.links
    links.partition([leader], [far])
    for master in MASTERS:
        links.cut(master, leader)
    answer = stage.put_later("b", 2)
    await asyncio.sleep(5.0)
    links.join([leader], [far])
    await asyncio.sleep(2.0)
    stage.world.keep_down(leader)
    await stage.until(lambda: stage.led_by(near) or stage.led_by(far))
    await _heal(stage)
    await _settle(answer)
    await stage.judge()


async def t1_an_old_value_is_not_read(stage: Stage) -> None:
    """A leader sleeps until another leads and has written; then it is asked by one who knows nothing of that."""
    await _sleep_and_be_asked(stage, 12.0, 4.0)


async def t4_nobody_leads_before_the_lease_is_over(stage: Stage) -> None:
    """A leader sleeps for less than it relies on its lease: nobody may have written meanwhile."""
    await _sleep_and_be_asked(stage, 14.0, 2.0)


async def _sleep_and_be_asked(stage: Stage, before_s: float, then_s: float) -> None:
    await stage.put("a", 1)
    assert await stage.get("a") == 1
    leader = stage.leader
    process = stage.world.start(leader)
    process.pause()
    await asyncio.sleep(before_s)
    written = stage.put_later("a", 2, by=OTHER)
    await asyncio.sleep(then_s)
    is_written, asked = written.done(), stage.ask(lambda db: db.table("t").get("a"), by=PROGRAM)
    await asyncio.sleep(0.2)
    process.resume()
    found = await asked
    assert found is not None
    assert found["v"] == 2 or not is_written, "a value was read that another had replaced before"
    await written
    await stage.judge()


async def t7_a_disk_that_hangs_is_no_leader(stage: Stage) -> None:
    await stage.put("a", 1)
    leader = stage.leader
    stage.world.disk(leader).pace.hang()
    answer = stage.put_later("b", 2)
    await stage.until(lambda: stage.leader not in ("", leader), 60.0)
    await stage.put("c", 3)
    stage.world.disk(leader).pace.free()
    await _settle(answer)
    await stage.judge()


async def t8_another_life_is_another_epoch(stage: Stage) -> None:
    await stage.put("a", 1)
    leader, epoch = stage.leader, stage.epoch
    stage.world.kill(leader)
    await stage.until(lambda: not stage.leader)
    await stage.until(lambda: stage.leader)
    assert stage.epoch > epoch
    await stage.put("b", 2)
    await stage.judge()


async def t9_what_is_void_stays_void(stage: Stage) -> None:
    """A leader has a write alone, sleeps, and is followed. When it is a member again it must not have it."""
    await stage.put("a", 1)
    leader = stage.leader
    stage.world.transport.links.partition([leader], stage.followers)
    void = stage.put_later("void", 9)
    await asyncio.sleep(0.3)
    stage.world.start(leader).pause()
    await stage.until(lambda: stage.leader not in ("", leader))
    at = await stage.put("c", 3, by=OTHER)
    before = await stage.rows(at)
    assert before == {"a": 1, "c": 3}
    await _heal(stage)
    await _settle(void)
    await stage.whole()
    await _only_one_left(stage, leader, stage.followers_of(leader))
    await stage.until(lambda: stage.leader)
    assert await stage.rows(at) == before, "a snapshot has changed"
    await stage.judge()


async def t10_what_the_leaders_disk_refuses_is_nowhere(stage: Stage) -> None:
    await stage.put("a", 1)
    leader = stage.leader
    for number in range(3):
        stage.world.disk(leader).pace.slow_s_max = 2.0
        stage.world.disk(leader).fail("sync", DiskFailed)
        answer = stage.put_later(f"b{number}", 2)
        await asyncio.sleep(2.5)
        stage.world.disk(leader).pace.slow_s_max = 0.0
        await _settle(answer)
        await stage.put(f"c{number}", 3)
    stage.world.keep_down(leader)
    await stage.until(lambda: stage.leader not in ("", leader))
    stage.world.let_up(leader)
    await stage.judge()


async def t12_what_an_older_leader_sends_late_changes_nothing(stage: Stage) -> None:
    """A leader with records that it could not send sleeps, is followed, wakes up, and sends them."""
    await stage.put("a", 1)
    leader = stage.leader
    stage.world.transport.links.partition([leader], stage.followers)
    answer = stage.put_later("b", 2)
    await asyncio.sleep(0.3)
    stage.world.start(leader).pause()
    await stage.until(lambda: stage.leader not in ("", leader))
    await stage.put("c", 3, by=OTHER)
    await stage.put("d", 4, by=OTHER)
    stage.world.transport.links.join([leader], [name for name in SHARDS if name != leader])
    stage.world.start(leader).resume()
    await asyncio.sleep(2.0)
    second = stage.leader
    (third,) = [name for name in SHARDS if name not in (leader, second)]
    await _only_one_left(stage, third, [second])
    await _settle(answer)
    await stage.judge()


async def t14_who_is_out_is_not_elected(stage: Stage) -> None:
    """A shard that was away, and lacks what was written meanwhile, is back and cut off from those that have it."""
    await stage.put("a", 1)
    leader, (near, far) = stage.leader, stage.followers
    stage.world.keep_down(far)
    await stage.put("b", 2)
    stage.world.transport.links.partition([far], [leader, near])
    stage.world.let_up(far)
    await asyncio.sleep(4.0)
    for name in (leader, near):
        stage.world.keep_down(name)
    await asyncio.sleep(LEASE_S + OTHERS_S + 8.0)  # so long nobody leads where fewer answer than a write needs
    await _heal(stage)
    await stage.put("c", 3)
    await stage.judge()


async def t16_a_torn_end_that_was_acknowledged_is_not_lost(stage: Stage) -> None:
    """A member's last group is damaged when its power goes, and the leader dies. What the marks beside its log say that
    it had is not given up in silence: it does not come up, and is filled anew, with an empty disk, from the others."""
    await stage.put("a", 1)
    await stage.put("b", 2)
    leader, (_, torn) = stage.leader, stage.followers
    stage.world.keep_down(leader)
    assert stage.world.disk(torn).flip_bit()
    stage.world.keep_down(torn)
    stage.world.disk(torn).crash()
    await asyncio.sleep(6.0)
    stage.world.disk(torn).wipe()
    await _heal(stage)
    assert await stage.rows() == {"a": 1, "b": 2}
    await stage.judge()


async def t16_a_torn_end_is_not_led_alone(stage: Stage) -> None:
    """The power goes everywhere. One member's last group is damaged, and no mark says so; it is up long before the
    others. Whoever leads alone has the others forget what it lacks."""
    await stage.put("a", 1)
    await asyncio.sleep(1.0)
    for number in range(3):
        await stage.put(f"b{number}", number)
    torn = stage.followers[1]
    assert stage.world.disk(torn).flip_bit()
    for name in SHARDS:
        stage.world.keep_down(name)
    for name in SHARDS:
        stage.world.disk(name).crash()
    stage.world.let_up(torn)
    await asyncio.sleep(30.0)
    words = [each.words for each in (await stage.master(lambda master: master.overview())).late]
    assert any("the log of every replica that answers has lost its end" in each for each in words), words
    stage.world.kill(torn)  # what is known of its log it knows after another start, too
    await asyncio.sleep(20.0)
    assert stage.led_by(torn) is None
    await _heal(stage)
    await stage.judge()


async def t16_what_was_acknowledged_stays_until_a_leader_has_sent_its_own(stage: Stage) -> None:
    """A new leader dies, and its disk is lost, at the moment at which the other member hears of it: that one has all
    that was acknowledged, though it was not told yet that all have it."""
    await stage.put("a", 1)
    await stage.put("b", 2)
    first, epoch = stage.leader, stage.epoch
    stage.world.keep_down(first)
    await _as_soon_as(
        lambda: len(stage.replicas) == 2 and all(each.promised > epoch for each in stage.replicas.values())
    )
    (left,) = [name for name in stage.replicas if stage.led_by(name) is None]
    (second,) = {*SHARDS} - {first, left}
    stage.world.keep_down(second)
    stage.world.disk(second).wipe()
    stage.world.let_up(second)
    await stage.until(lambda: stage.led_by(left) is not None)
    await _heal(stage)
    await stage.judge()


async def t17_a_new_disk_is_another_replica(stage: Stage) -> None:
    await stage.put("a", 1)
    leader, (one, _) = stage.leader, stage.followers
    for name in (leader, one):
        await stage.whole()
        stage.world.kill(name)
        stage.world.disk(name).wipe()
        await stage.until(lambda: stage.leader)
        await stage.put(f"after {name}", 2)
    await stage.judge()


async def t18_the_last_one_acknowledges_nothing(stage: Stage) -> None:
    """Both others are away; then the last one's disk is lost, and they are back."""
    await stage.put("a", 1)
    leader, others = stage.leader, stage.followers
    for name in others:
        stage.world.keep_down(name)
    answer = stage.put_later("b", 2)
    await asyncio.sleep(8.0)
    stage.world.keep_down(leader)
    stage.world.disk(leader).wipe()
    for name in others:
        stage.world.let_up(name)
    await stage.until(lambda: stage.leader)
    await _heal(stage)
    await _settle(answer)
    await stage.judge()


async def t19_nothing_is_written_below_what_was_read(stage: Stage) -> None:
    """A leader whose clock is ahead is read at its time, which nobody else hears of; then another leads."""
    await stage.put("a", 1)
    leader = stage.leader
    stage.world.transport.links.partition([leader], [*stage.followers, *MASTERS])
    stage.world.clock(leader).step_wall_ms(8_000)
    await asyncio.sleep(1.0)
    at = pack(stage.world.clock(leader).wall_ms(), 0)
    before = await stage.rows(at)
    assert before == {"a": 1}
    stage.world.keep_down(leader)
    await stage.until(lambda: stage.leader not in ("", leader))
    txn = await stage.put("c", 3, by=OTHER)
    assert txn > at, "a txn lies below a snapshot that was answered"
    await _heal(stage)
    assert await stage.rows(at) == before, "a snapshot has changed"
    await stage.judge()


async def t20_a_new_master_takes_nothing_from_those_that_serve(stage: Stage) -> None:
    await stage.put("a", 1)
    leader, epoch = stage.leader, stage.epoch
    for name in MASTERS:
        if stage.masters[name].guard is not None:
            stage.world.keep_down(name)
            break
    await asyncio.sleep(12.0)
    assert (stage.leader, stage.epoch) == (leader, epoch)
    await stage.put("b", 2)
    await stage.judge()


async def t20_whoever_hands_over_says_how_far_it_came(stage: Stage) -> None:
    """A leader whose clock is ahead is read at its time, which nobody else hears of. Then it is drained."""
    await stage.put("a", 1)
    leader, links = stage.leader, stage.world.transport.links
    links.partition([leader], [*stage.followers, *MASTERS])
    await asyncio.sleep(2 * HEARTBEAT_S)  # its last heartbeat says an older time, and waits to be carried on
    stage.world.clock(leader).step_wall_ms(8_000)
    await asyncio.sleep(1.0)
    at = pack(stage.world.clock(leader).wall_ms(), 0)
    before = await stage.rows(at)
    assert before == {"a": 1}
    links.join([leader], [*stage.followers, *MASTERS])
    await stage.master(lambda master: master.drain_servers(leader))
    txn = await stage.put("c", 3, by=OTHER)
    assert txn > at, "a txn lies below a snapshot that was answered"
    assert await stage.rows(at) == before, "a snapshot has changed"
    await stage.judge()


async def t58_an_older_metastore_is_not_followed(stage: Stage) -> None:
    """The record of the tablet is put back to what it was before the last leader: nobody leads in an epoch again."""
    store = stage.world.metastore.client("backup")
    (old,) = (await store.range(TABLETS_PREFIX)).entries
    stage.world.kill(stage.leader)
    await stage.until(lambda: not stage.leader)
    await stage.until(lambda: stage.leader)
    await stage.put("a", 1)
    await store.txn([], [PutKey(old.key, old.value)])
    for name in (*MASTERS, *SHARDS):
        stage.world.kill(name)
    await asyncio.sleep(30.0)
    assert not stage.leader, "it is led in an epoch that another has led in before"


STORIES: dict[str, Story] = {
    name: story for name, story in list(globals().items()) if name.startswith("t") and name[1:2].isdigit()
}
LEASES_S = {"t4_nobody_leads_before_the_lease_is_over": 30.0}
"""Where the length of leases matters."""
