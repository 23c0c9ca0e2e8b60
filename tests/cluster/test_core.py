"""Who is left has to do: a master, the metastore, and as many replicas of each tablet as its zone wants."""

from __future__ import annotations

import asyncio

from tests.cluster.processes import MASTERS
from tests.cluster.stories import Stage, play


async def a_stopped_master_is_left(stage: Stage) -> None:
    """The master that leads is stopped for good, and keeps its connections. Once the other leads, a follower is dead
    for good, too: its leader has to find the master that can take it out of the members."""
    await stage.put("a", 1)
    (leading,) = [name for name in MASTERS if stage.masters[name].guard is not None]
    (other,) = [name for name in MASTERS if name != leading]
    stage.world.start(leading).pause()
    await stage.until(lambda: stage.masters[other].guard is not None)
    stage.world.keep_down(stage.followers[0])
    await asyncio.wait_for(stage.put("b", 2), 60.0)
    assert await stage.rows() == {"a": 1, "b": 2}


def test_a_master_that_is_stopped_for_good_is_not_asked_for_ever() -> None:
    play(a_stopped_master_is_left)
