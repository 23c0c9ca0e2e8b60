"""Stories of tablets that become others, and have several replicas (`stories`)."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from stelae.master.records import Records
from stelae.model.errors import Retryable
from tests.cluster.processes import MASTERS
from tests.cluster.replica_stories import Story
from tests.cluster.stories import OTHER, Stage

ROWS = ("a", "b", "x", "y")
HALVES = 2


async def _leaders(stage: Stage, by: str) -> list[str]:
    """The processes that lead the table's tablets, in the order of their rows; a tablet that nobody leads is not
    there."""
    try:
        shown = await stage.ask(lambda db: db.table("t").tablets(), is_hasty=True, by=by)
    except Retryable:
        return []
    return [each.server.partition("/")[0] for each in shown]


async def _judge_halves(stage: Stage) -> None:
    """What was acknowledged is there, and all replicas of both halves are the same."""
    await stage.until(lambda: _is_whole(stage))
    found = await stage.rows()
    lost = {row: value for row, value in stage.acknowledged.items() if found.get(row) != value}
    assert not lost, f"acknowledged, and not there: {lost}; there is {found}"
    await stage.check()


def _is_whole(stage: Stage) -> bool:
    """Two tablets are led and open, each by one shard, with all their members."""
    alive = [shard for name, shard in stage.shards.items() if stage.world.is_alive(name)]
    hosts = [shard.server.hosting for shard in alive if shard.server.hosting is not None]
    led = [each for host in hosts for each in host.leading.led.values()]
    return len(led) == HALVES and all(each.is_open and len(each.lead.members) == len(stage.shards) for each in led)


async def t61_split_then_two_leaders(stage: Stage) -> None:
    """A tablet is split, and its leader is cut off as soon as that is recorded, but for the other members and for who
    knows it: it goes on with the whole tablet, for all that it was told, until others lead the halves. What it
    acknowledges meanwhile they must have."""
    for row in ROWS:
        await stage.put(row, 1)
    leader = stage.leader
    right, is_cut = Records.write, asyncio.Event()

    async def cut_off(self: Records, puts: Any, removed: Any = ()) -> None:
        await right(self, puts, removed)
        if removed and not is_cut.is_set():
            stage.world.transport.links.partition([leader], MASTERS)
            stage.world.metastore.partition(leader)
            is_cut.set()

    with mock.patch.object(Records, "write", cut_off):
        split = stage.ask(lambda db: db.table("t").split("m"), by=OTHER)
        await is_cut.wait()
        asked: list[asyncio.Future[Any]] = [split, *(stage.put_later(row, 2) for row in ROWS)]
        await asyncio.wait(asked)
    split.exception()  # whoever asked may not know what came of it: here it is known
    shown: list[str] = []
    while len(shown) < HALVES or leader in shown:
        await asyncio.sleep(0.2)
        shown = await _leaders(stage, OTHER)
    stage.world.keep_down(leader)
    stage.world.metastore.heal(leader)
    stage.world.transport.links.join([leader], MASTERS)
    for row in ROWS:
        await stage.put(row + "3", 3, by=OTHER)
    stage.world.let_up(leader)
    await _judge_halves(stage)


async def joined_with_rows_in_memory(stage: Stage) -> None:
    """All that both halves have is in the one that comes of them."""
    for row in ROWS:
        await stage.put(row, 1)
    await stage.do(lambda db: db.table("t").split("m"))
    for row in ROWS:
        await stage.put(row, 2)
    await stage.do(lambda db: db.table("t").join("m"))
    assert await stage.rows() == dict.fromkeys(ROWS, 2)
    await stage.judge()


STORIES: dict[str, Story] = {each.__name__: each for each in (t61_split_then_two_leaders, joined_with_rows_in_memory)}
