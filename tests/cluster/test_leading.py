"""Which of two masters of a simulated cluster leads: the one that led is killed, or stopped for longer than its lease
lasts, and the other one leads within the time of two leases, by the world's clock; shards turn to it."""

from __future__ import annotations

import asyncio

import pytest

import stelae
from stelae.master.cluster import ClusterMaster
from tests.cluster.processes import SHARDS
from tests.cluster.scripted import LEASE_S, Stage, play

HEARD_S = 15.0
"""A heartbeat that is not answered is given up after a third of that, and so is who does not answer a look."""


async def followed(stage: Stage, how: str) -> ClusterMaster:
    """The other master, once it leads."""
    first = stage.leading
    process = stage.world.process(first)
    assert process is not None
    if how == "killed":
        stage.world.keep_down(first)
    else:
        process.pause()
    async with asyncio.timeout(2 * LEASE_S):
        while stage.leading in ("", first):
            await asyncio.sleep(0.05)
    return stage.masters[stage.leading]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_other_leads_within_two_leases_and_hears_of_all_shards(how: str, seed: int) -> None:
    """One that is stopped closes no connection: who goes on asking it waits for as long as it sleeps."""

    async def story(stage: Stage) -> None:
        await stage.make_table(splits=["c", "m"])
        leading = await followed(stage, how)

        def hears_of_all(_: stelae.Database) -> bool:
            return [each.heard is not None for each in leading.overview().shards] == [True] * len(SHARDS)

        async with asyncio.timeout(HEARD_S):
            await stage.until(hears_of_all, "looker")
        await stage.check()

    play(story, seed)
