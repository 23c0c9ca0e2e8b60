"""Everybody crashes at each step of what replicas do: append and commit, flush, drop a member, bring one up to date,
take over, cut. Whoever it was is started again by itself, all goes on, and nothing acknowledged is lost.

How many steps a phase takes is counted first. A plain run tries one step of each, a soak tries all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tests.cluster.processes import MASTERS, SHARDS
from tests.cluster.stories import Stage, play
from tests.effort import is_soak

WAIT_S = 60.0
"""Of simulated time: what a phase waits for may need who has crashed."""
FEW = 1


class Crash:
    """`who` dies `steps` steps after the phase began; None: nobody does, and its steps are counted."""

    def __init__(self, who: str, steps: int | None) -> None:
        self.who = who
        self.steps = steps
        self._began_at = 0

    def begin(self, stage: Stage) -> None:
        process = stage.world.process(self.who)
        assert process is not None
        assert process.alive
        self._began_at = process.steps
        if self.steps is not None:
            process.crash_at(process.steps + self.steps)

    def taken(self, stage: Stage) -> int:
        """How many steps it has taken since."""
        process = stage.world.process(self.who)
        assert process is not None
        assert process.alive
        return process.steps - self._began_at

    @property
    def counts(self) -> bool:
        return self.steps is None


Phase = Callable[[Stage, Crash], Awaitable[None]]


async def _soon(what: Callable[[], object]) -> None:
    for _ in range(int(WAIT_S / 0.05)):
        if what():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the phase does not end")


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
    stage.world.let_up(away)
    crash.begin(stage)
    await _puts(stage, "d")
    await _soon(lambda: (led := stage.led_by(stage.leader)) is not None and len(led.lead.members) == 3)


async def take_over(stage: Stage, crash: Crash) -> None:
    leader, epoch = stage.leader, stage.epoch
    later = asyncio.create_task(_puts(stage, "b"))
    await asyncio.sleep(0.01)
    if crash.who != leader:
        stage.world.keep_down(leader)
    if crash.who != leader or not crash.counts:
        await _soon(lambda: stage.epoch > epoch)
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


PHASES: list[Phase] = [
    append_and_commit,
    flush,
    drop_a_member,
    bring_a_member_up_to_date,
    take_over,
    cut,
]
LATE = (bring_a_member_up_to_date, cut)
"""Phases that say themselves when the crash is to come."""


def _play(phase: Phase, part: str, steps: int | None) -> int:
    """How many steps the phase takes, if nobody crashes."""
    taken = [0]

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
        if crash.counts:
            taken[0] = crash.taken(stage)
        for name in SHARDS:
            stage.world.let_up(name)
        await stage.judge()

    play(story)
    return taken[0]


@pytest.mark.parametrize("part", ["leader", "first", "second", "master"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_nothing_is_lost_whoever_crashes_at_whichever_step(phase: Phase, part: str) -> None:
    """The same is drawn each time, so a phase goes as it was counted until somebody crashes."""
    assert len(MASTERS) == 2
    count = _play(phase, part, None)
    assert count > 0
    drawn = Random(f"{phase.__name__} {part}").sample(range(1, count + 1), FEW)
    for steps in range(1, count + 1) if is_soak() else drawn:
        _play(phase, part, steps)
