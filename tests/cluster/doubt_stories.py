"""Stories of replicas whose logs have lost their ends, while nothing is written that would show it (`stories`).

A machine loses power, and what it was writing is torn, or what it had written is damaged. It is back in seconds, and
its log says of every replica in it that it may lack what was acknowledged. Until somebody tells it that it does not, or
fills it, it may not lead alone: so that must not wait for the next write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest import mock

from stelae.model.errors import DiskFull
from stelae.tserver.replication import streams
from tests.cluster.replica_stories import _heal
from tests.cluster.stories import Stage

Story = Callable[[Stage], Awaitable[None]]


def _lose_power(stage: Stage, name: str) -> None:
    """And what was synced last is damaged. The mark beside the log, which may be older than the log after that, says
    nothing of it."""
    disk = stage.world.disk(name)
    assert disk.flip_bit()
    stage.world.lose_power(name)
    disk._synced = [None]


async def _put_some(stage: Stage) -> None:
    for number in range(4):
        await stage.put(f"a{number}", number)
    await asyncio.sleep(1.0)


async def an_idle_tablet_is_whole_again(stage: Stage) -> None:
    """One member loses power and the end of its log, and is back. Nothing is written. Then the others are gone, and it
    leads, with all that was acknowledged."""
    await _put_some(stage)
    torn = stage.followers[0]
    _lose_power(stage, torn)
    await stage.until(lambda: torn in stage.replicas and stage.replicas[torn].may_lack)
    await stage.until(lambda: not stage.replicas[torn].may_lack, 40.0)
    for name in stage.followers_of(torn):
        stage.world.keep_down(name)
    await stage.until(lambda: stage.led_by(torn) is not None, 40.0)
    assert await stage.rows() == stage.acknowledged
    await _heal(stage)
    await stage.judge()


async def a_doubt_that_the_disk_refused_is_not_forgotten(stage: Stage) -> None:
    """The power goes everywhere. One member's log has lost its end; the disk lets the rest of that be cut off, and
    refuses the note that it was lost. However often it is started, it does not lead alone."""
    await _put_some(stage)
    torn = stage.followers[0]
    for name in stage.followers_of(torn):
        stage.world.keep_down(name)
    disk = stage.world.disk(torn)
    _lose_power(stage, torn)
    disk.fail_on("sync", DiskFull)
    await asyncio.sleep(6.0)
    disk.mend()
    stage.world.kill(torn)
    await stage.until(lambda: stage.world.is_alive(torn) and torn in stage.replicas)
    await asyncio.sleep(30.0)
    assert stage.led_by(torn) is None, "it leads alone, and lacks what was acknowledged"
    await _heal(stage)
    await stage.judge()


async def who_has_lost_records_does_not_count_for_them(stage: Stage) -> None:
    """Two of three have what is written, and one of these loses it. While that one is filled again, slowly, the third
    gets it, too. When it is told to be durable the others go, and the one that had lost it is the one that is left. How
    much is lost depends on the seed."""
    await _put_some(stage)
    leader, (torn, late) = stage.leader, stage.followers
    links = stage.world.transport.links
    links.partition([leader], [late])
    led, disk = stage.led_by(leader), stage.world.disk(torn)
    assert led is not None
    disk.pace.hang()  # so that most of what comes lies in one group there
    written = [stage.put_later(f"b{number}", number) for number in range(10)]
    await stage.until(lambda: led.quorum.here >= 15)
    disk.pace.free()
    name = next(each for each in led.others if each.startswith(f"{torn}/"))
    await stage.until(lambda: led.others[name].matched == led.quorum.here == led.replica.last.index >= 15)
    _lose_power(stage, torn)
    disk.pace.slow_s_max = 1.0
    with mock.patch.object(streams, "_REQUEST_BYTES_MAX", 1):
        await stage.until(lambda: torn in stage.replicas)
        kept = stage.replicas[torn].last.index
        await stage.until(lambda: stage.replicas[torn].last.index > kept or kept >= led.quorum.here)
        links.join([leader], [late])
        await asyncio.wait(written)
        for name in stage.followers_of(torn):
            stage.world.keep_down(name)
        disk.mend()
        await asyncio.sleep(20.0)
    await _heal(stage)
    await stage.judge()


STORIES: dict[str, Story] = {
    each.__name__: each
    for each in (
        an_idle_tablet_is_whole_again,
        a_doubt_that_the_disk_refused_is_not_forgotten,
        who_has_lost_records_does_not_count_for_them,
    )
}
MIN_REPLICAS = {"who_has_lost_records_does_not_count_for_them": 3}
"""How many replicas a write needs; else one."""
