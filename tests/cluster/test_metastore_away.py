"""A simulated cluster whose metastore goes away for longer than leases last, and comes back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import stelae
from stelae.sim.rng import SimRng
from stelae.sim.threads.thread import run_in_thread
from stelae.sim.world import ProcessPorts, SimWorld, run_world
from tests.cluster.processes import (
    LEASE_S_MAX,
    MASTERS,
    SHARDS,
    connect,
    run_master,
    run_shard,
    simulated_threads,
    sleep,
)
from tests.cluster.simulated import silent_remains
from tests.sim.seeds import repeat

AWAY_S = 30.0
PATIENCE_S = 0.3
KEYS = ("a", "z")
NO_LEASE = "could not renew its lease, and answers nothing about rows"
NO_TIME = "write was sent, and may or may not have happened"
"""What a program is told whose time was up just when it tried again."""


@dataclass
class Program:
    """Puts and gets rows of two shards, again and again. `told`: when a call ended, and the error, if it was one."""

    told: list[tuple[float, stelae.StelaeError | None]] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    is_over: bool = False

    async def run(self, ports: ProcessPorts) -> None:
        await run_in_thread(ports.loop, self._work, ports)
        await asyncio.Event().wait()

    def _work(self, ports: ProcessPorts) -> None:
        db = connect(ports)
        groups = [stelae.columns("g", {"v": "int64"})]
        db.create_table("t", key={"k": "string"}, groups=groups, splits=["m"])
        table = connect(ports, PATIENCE_S).table("t")
        value = 0
        while not self.is_over:
            value += 1
            for key in KEYS:
                if self._call(ports, partial(table.put, {"k": key, "v": value})):
                    self.acknowledged[key] = value
                self._call(ports, partial(self._check, table, key))
            sleep(0.2)
        for key in KEYS:
            self._check(table, key)

    def _check(self, table: stelae.Table, key: str) -> None:
        """What was acknowledged is there, or what came after it."""
        found = table.get(key)
        assert found is None or found["v"] >= self.acknowledged.get(key, 0)

    def _call(self, ports: ProcessPorts, job: Any) -> bool:
        error: stelae.StelaeError | None = None
        try:
            job()
        except (stelae.Retryable, stelae.UnknownOutcome) as failed:
            error = failed
        self.told.append((ports.loop.now_ns / 1e9, error))
        return error is None

    def since(self, begun: int) -> list[stelae.StelaeError | None]:
        return [error for _, error in self.told[begun:]]


async def _story(world: SimWorld, program: Program) -> None:
    for name in MASTERS:
        world.add(name, run_master)
    for name in SHARDS[:2]:
        world.add(name, run_shard)
    world.add("program", program.run, restarts=False)
    for name in (*MASTERS, *SHARDS[:2]):
        world.start(name)
    await asyncio.sleep(1.0)
    world.start("program")
    await _until(lambda: len(program.told) > 8 * len(KEYS))
    assert set(program.since(0)) == {None}
    world.metastore.go_away()
    await asyncio.sleep(LEASE_S_MAX)
    begun = len(program.told)
    await asyncio.sleep(AWAY_S - LEASE_S_MAX)
    refused = [str(error) for error in program.since(begun + 1) if error is not None]  # one may have been under way
    assert len(refused) == len(program.told) - begun - 1 > len(KEYS)
    assert all(any(words in told for words in (NO_LEASE, NO_TIME)) for told in refused), set(refused)
    assert sum(NO_LEASE in told for told in refused) > len(refused) / 2
    world.metastore.come_back()
    begun = len(program.told)
    await _until(lambda: program.since(begun)[-8:] == [None] * 8, LEASE_S_MAX)
    program.is_over = True


async def _until(holds: Any, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.1)


def test_reads_and_writes_end_at_the_lease_in_words_and_go_on_when_the_metastore_is_back() -> None:
    with silent_remains():
        for seed in range(3):
            program = Program()
            with simulated_threads(SimRng(seed)):
                run_world(partial(_story, program=program), seed, repeat=repeat(seed))
