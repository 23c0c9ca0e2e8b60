"""Everybody crashes at each step of what replicas do: append and commit, flush, drop a member, bring one up to date,
take over, cut. Whoever it was is started again by itself, all goes on, and nothing acknowledged is lost.

A plain run tries a few steps of each; a soak tries all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tests.cluster.processes import MASTERS, SHARDS
from tests.cluster.stories import Stage, play
from tests.effort import is_soak

WAIT_S = 15.0
"""Of simulated time: what a phase waits for may need who has crashed."""
STEPS_MAX = 400
"""So many steps of whoever crashes, since the phase began: most phases are shorter."""
FEW = 2


async def _soon(what: Callable[[], object]) -> None:
    for _ in range(int(WAIT_S / 0.05)):
        if what():
            return
        await asyncio.sleep(0.05)


async def _puts(stage: Stage, prefix: str, count: int = 4) -> None:
    """Whatever becomes of them, some time."""
    await asyncio.wait([stage.put_later(f"{prefix}{number}", number) for number in range(count)])


async def append_and_commit(stage: Stage, _: Crash) -> None:
    await _puts(stage, "b")


async def flush(stage: Stage, _: Crash) -> None:
    await _puts(stage, "b")
    await asyncio.wait([stage.ask(lambda db: db.table("t").flush())])


async def drop_a_member(stage: Stage, crash: Crash) -> None:
    away = next(name for name in stage.followers if name != crash.who)
    stage.world.keep_down(away)
    later = asyncio.create_task(_puts(stage, "b", 1))
    await _soon(lambda: (led := stage.led_by(stage.leader)) is not None and len(led.lead.members) == 2)
    stage.world.let_up(away)
    await later


async def bring_a_member_up_to_date(stage: Stage, crash: Crash) -> None:
    away = stage.followers[0]
    stage.world.keep_down(away)
    await stage.put("b", 1)
    await stage.do(lambda db: db.table("t").flush())
    await stage.put("c", 1)
    crash.begin(stage)
    stage.world.let_up(away)
    await _puts(stage, "d")
    await _soon(lambda: (led := stage.led_by(stage.leader)) is not None and len(led.lead.members) == 3)


async def take_over(stage: Stage, crash: Crash) -> None:
    leader = stage.leader
    later = asyncio.create_task(_puts(stage, "b"))
    await asyncio.sleep(0.01)
    if crash.who != leader:
        stage.world.keep_down(leader)
    await _soon(lambda: stage.leader not in ("", leader))
    stage.world.let_up(leader)
    await later


async def cut(stage: Stage, crash: Crash) -> None:
    """A leader has records alone, is followed by another, and comes back."""
    leader, others = stage.leader, stage.followers
    links = stage.world.transport.links
    links.partition([leader], others)
    later = asyncio.create_task(_puts(stage, "b", 2))
    await _soon(lambda: stage.leader not in ("", leader))
    crash.begin(stage)
    links.join([leader], others)
    await _puts(stage, "c")
    await later


PHASES: list[Callable[[Stage, Crash], Awaitable[None]]] = [
    append_and_commit,
    flush,
    drop_a_member,
    bring_a_member_up_to_date,
    take_over,
    cut,
]
LATE = (bring_a_member_up_to_date, cut)
"""Phases that say themselves when the crash is to come."""


class Crash:
    """`who` dies `steps` steps after the phase began."""

    def __init__(self, who: str, steps: int) -> None:
        self.who = who
        self.steps = steps

    def begin(self, stage: Stage) -> None:
        process = stage.world.process(self.who)
        if process is not None and process.alive:
            process.crash_at(process.steps + self.steps)


def _play(phase: Callable[[Stage, Crash], Awaitable[None]], part: str, steps: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.put("a", 1)
        leading = next(name for name, master in stage.masters.items() if master.guard is not None)
        who = {"leader": stage.leader, "first": stage.followers[0], "second": stage.followers[1], "master": leading}[
            part
        ]
        crash = Crash(who, steps)
        if phase not in LATE:
            crash.begin(stage)
        await phase(stage, crash)
        for name in SHARDS:
            stage.world.let_up(name)
        await stage.judge()

    play(story, seed=steps)


@pytest.mark.parametrize("part", ["leader", "first", "second", "master"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_nothing_is_lost_whoever_crashes_at_whichever_step(
    phase: Callable[[Stage, Crash], Awaitable[None]], part: str
) -> None:
    assert len(MASTERS) == 2
    drawn = Random(f"{phase.__name__} {part}").sample(range(1, STEPS_MAX), FEW)
    for steps in range(1, STEPS_MAX) if is_soak() else drawn:
        _play(phase, part, steps)
