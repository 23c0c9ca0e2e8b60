"""A seed runs the same way twice, and in another process whose sets of text have another order."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from stelae.sim.loop import SimLoop, simulate
from stelae.sim.trace import Trace
from tests.cluster.simulated import run_cluster, silent_remains
from tests.effort import HANG_S
from tests.sim.addresses import salted_addresses
from tests.sim.seeds import seeds
from tests.sim.traces import RUNS, trace_of

COUNTS = {"ledger": 40, "catalog": 4, "takeover": 3, "cluster": 2}
SALTED = {1: (0, 1), 3: (4, 5)}
"""Seeds, by replicas."""
ELSEWHERE = {"ledger": 8, "catalog": 2, "takeover": 2, "cluster": 6}


@pytest.mark.parametrize("what", RUNS)
def test_every_seed_runs_the_same_way_twice(what: str) -> None:
    digests: set[str] = set()
    for seed in seeds(COUNTS[what]):
        first, second = trace_of(what, seed), trace_of(what, seed)
        if first.digest != second.digest:
            raise AssertionError(f"seed {seed} of {what}: {_where_they_part(first, second)}")
        digests.add(first.digest)
    assert len(digests) == len(seeds(COUNTS[what]))


def test_runs_do_not_depend_on_the_order_of_sets_of_text() -> None:
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": other}
    asked = [f"{what}:{count}" for what, count in ELSEWHERE.items()]
    command = [sys.executable, "-m", "tests.sim.traces", *asked]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ran.returncode == 0, ran.stderr
    here = [f"{what} {seed} {trace_of(what, seed).digest}" for what in ELSEWHERE for seed in range(ELSEWHERE[what])]
    assert ran.stdout.splitlines() == here


@pytest.mark.parametrize("replicas", [1, 3])
def test_runs_do_not_depend_on_the_order_of_sets_of_objects(replicas: int) -> None:
    with silent_remains():
        for seed in SALTED[replicas]:
            traces = set()
            for salt in range(2):
                with salted_addresses(salt) as classes:
                    assert classes
                    traces.add(run_cluster(seed, replicas=replicas).trace)
            assert len(traces) == 1, f"seed {seed} with {replicas} replicas"


def _where_they_part(first: Trace, second: Trace) -> str:
    for number, (one, other) in enumerate(zip(first.lines, second.lines, strict=False)):
        if one != other:
            return f"line {number}: {one!r} and {other!r}"
    return f"{len(first.lines)} lines and {len(second.lines)}"


# -- what the hash covers


def digest(main: Callable[[SimLoop], object], seed: int = 1) -> str:
    trace = Trace()
    simulate(main, seed, trace=trace)  # type: ignore[arg-type]
    return trace.digest


def test_another_time_process_callback_or_order_is_another_hash() -> None:
    def first() -> None: ...
    def second() -> None: ...

    def world(delay_s: float = 1.0, name: str = "p", then: Callable[[], None] = first) -> Callable[[SimLoop], object]:
        async def main(loop: SimLoop) -> None:
            loop.call_later(delay_s, then)
            loop.spawn(name, asyncio.sleep(delay_s))
            await asyncio.sleep(2)

        return main

    base = digest(world())
    assert base == digest(world())
    assert len({base, digest(world(1.5)), digest(world(name="q")), digest(world(then=second))}) == 4
    assert len({digest(world(), seed) for seed in range(10)}) > 1


def test_what_is_left_behind_is_part_of_the_hash() -> None:
    digests = set()
    for what, data in (("disk", b"1"), ("disk", b"2"), ("disk1", b""), ("blobs", b"1")):
        trace = Trace()
        trace.add(what, data)
        digests.add(trace.digest)
    assert len(digests) == 4


def test_lines_tell_of_steps_when_they_are_kept() -> None:
    async def main(loop: SimLoop) -> None:
        await loop.spawn("process", asyncio.sleep(1)).ended()

    trace = Trace(lines_max=3)
    simulate(main, 1, trace=trace)
    assert len(trace.lines) == 3
    none = Trace()
    simulate(main, 1, trace=none)
    assert not none.lines
    assert none.digest == trace.digest
